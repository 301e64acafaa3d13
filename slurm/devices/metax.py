"""A MetaX node, as mx-smi tells it. Nothing here was run on a card: see docs/profile-metax.md for what it rests on."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from slurm.devices.cells import Found
from slurm.devices.combine import combine
from slurm.devices.command import ask
from slurm.devices.device import Device, Devices
from slurm.devices.dmon import parse_dmon
from slurm.devices.ecc import parse_ecc
from slurm.devices.listing import parse_json, parse_list, parse_unavailable
from slurm.devices.table import parse_processes, parse_table
from slurm.devices.topo import parse_topo

TABLE, LIST, REASON, ECC = "", "-L", "--show-unavailable-reason", "--count-ecc"
TOPO, PROCESSES, JSON = "topo -n", "--show-process", "-j"
DMON = (
    "dmon --show-temperature --show-board-power --show-usage --show-memory --total-memory --show-bdf --format csv -c 1"
)
PARSERS: dict[str, Callable[[str], Found]] = {
    TABLE: parse_table,
    LIST: parse_list,
    REASON: parse_unavailable,
    ECC: parse_ecc,
    TOPO: parse_topo,
    PROCESSES: parse_processes,
    JSON: parse_json,
    DMON: parse_dmon,
}
"""By the arguments of mx-smi. The last two are asked when the others leave something open."""


def read_metax(tool: Path) -> Devices:
    """Ask mx-smi. When it hangs once it is not asked again, since each question would hang as well."""
    texts: dict[str, str] = {}
    trouble: list[str] = []

    def question(arguments: str) -> bool:
        answer = ask(tool, *arguments.split())
        texts[arguments] = answer.text
        trouble.extend([answer.trouble] if answer.trouble else [])
        return not answer.hung

    answers = all(question(arguments) for arguments in (TABLE, LIST, REASON, ECC, TOPO, PROCESSES))
    so_far = metax_devices(texts).devices
    if answers and any(device.state is None for device in so_far):
        answers = question(JSON)
    if answers and (not so_far or any(device.temperature is None for device in so_far)):
        question(DMON)
    return metax_devices(texts, tuple(trouble))


def metax_devices(texts: Mapping[str, str], trouble: tuple[str, ...] = ()) -> Devices:
    """What the answers, by the arguments of mx-smi, say together."""
    founds = {arguments: PARSERS[arguments](text) for arguments, text in texts.items()}
    node = combine("metax", "mx-smi", founds, texts, trouble)
    return replace(node, devices=tuple(_with_doubt(device) for device in node.devices))


def _with_doubt(device: Device) -> Device:
    is_silent = device.state is None and not device.doubt
    return replace(device, doubt="this mx-smi shows no state") if is_silent else device
