"""An NVIDIA node, as nvidia-smi tells it."""

import re
from collections.abc import Mapping
from pathlib import Path

from slurm.devices.cells import UUID, Found, bus_id, count, lines_of, quantity
from slurm.devices.combine import combine
from slurm.devices.command import ask
from slurm.devices.device import BAD_STATE, Device, Devices, Process
from slurm.devices.topo import parse_topo

CARDS = (
    "--query-gpu=index,name,uuid,pci.bus_id,driver_version,memory.used,memory.total,temperature.gpu,power.draw,"
    "power.limit,utilization.gpu --format=csv"
)
ECC = (
    "--query-gpu=index,pci.bus_id,ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.volatile.total,"
    "retired_pages.double_bit.count --format=csv"
)
PROCESSES = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv"
TOPO, TABLE = "topo -m", ""
QUANTITIES = {
    "memory.used": ("memory_used", "MiB"),
    "memory.total": ("memory_total", "MiB"),
    "temperature.gpu": ("temperature", ""),
    "power.draw": ("power", "W"),
    "power.limit": ("power_cap", "W"),
    "utilization.gpu": ("utilisation", "%"),
}
COUNTS = {
    "ecc.errors.corrected.volatile.total": "ecc_corrected",
    "ecc.errors.uncorrected.volatile.total": "ecc_uncorrected",
    "retired_pages.double_bit.count": "retired_pages",
}
NEEDED = ("memory_used", "memory_total", "temperature")
"""A card that answers these is one that the driver can use."""


def read_nvidia(tool: Path) -> Devices:
    """Ask nvidia-smi. When it hangs once it is not asked again."""
    texts: dict[str, str] = {}
    trouble: list[str] = []
    for arguments in (CARDS, ECC, TABLE, TOPO, PROCESSES):
        answer = ask(tool, *arguments.split())
        texts[arguments] = answer.text
        trouble += [answer.trouble] if answer.trouble else []
        if answer.hung:
            break
    return nvidia_devices(texts, tuple(trouble))


def nvidia_devices(texts: Mapping[str, str], trouble: tuple[str, ...] = ()) -> Devices:
    """What the answers, by the arguments of nvidia-smi, say together."""
    cards = parse_query(texts.get(CARDS, ""))
    founds = {
        CARDS: cards,
        ECC: parse_query(texts.get(ECC, "")),
        TABLE: parse_runtime(texts.get(TABLE, "")),
        TOPO: parse_topo(texts.get(TOPO, "")),
        PROCESSES: parse_processes(texts.get(PROCESSES, ""), {card.uuid: card.index for card in cards.devices}),
    }
    return combine("nvidia", "nvidia-smi", {key: founds[key] for key in texts}, texts, trouble)


def parse_query(text: str) -> Found:
    """`--query-gpu=... --format=csv`, whose header names the columns, in any order."""
    names, rows = _table(text)
    if "index" not in names or len(set(names)) != len(names):
        return Found(left=tuple(lines_of(text)))
    devices: list[Device] = []
    left: list[str] = []
    driver: str | None = None
    for row in rows:
        cells = dict(zip(names, row, strict=False))
        index = count(cells["index"]) if len(row) == len(names) else None
        if index is None:
            left.append(", ".join(row))
            continue
        driver = driver or cells.get("driver_version")
        devices.append(_device(index, cells))
    return Found(devices=tuple(devices), driver=driver, left=tuple(left))


def _device(index: int, cells: dict[str, str]) -> Device:
    amounts = {name: quantity(cells[key], unit) for key, (name, unit) in QUANTITIES.items() if key in cells}
    counts = {name: count(cells[key]) for key, name in COUNTS.items() if key in cells}
    wrong = [cell for key, cell in cells.items() if key != "name" and BAD_STATE.search(cell)]
    answers = all(amounts.get(name) is not None for name in NEEDED)
    return Device(
        index,
        name=cells.get("name"),
        uuid=cells["uuid"] if UUID.fullmatch(cells.get("uuid", "")) else None,
        bus_id=bus_id(cells.get("pci.bus_id", "")),
        state=wrong[0] if wrong else "Available" if answers else None,
        memory_used=amounts.get("memory_used"),
        memory_total=amounts.get("memory_total"),
        temperature=amounts.get("temperature"),
        power=amounts.get("power"),
        power_cap=amounts.get("power_cap"),
        utilisation=amounts.get("utilisation"),
        ecc_corrected=counts.get("ecc_corrected"),
        ecc_uncorrected=counts.get("ecc_uncorrected"),
        retired_pages=counts.get("retired_pages"),
    )


def parse_runtime(text: str) -> Found:
    """The version of CUDA that the driver has, from the head of the table, where alone it stands."""
    found = re.search(r"CUDA Version:\s*([0-9][0-9.]*)", text)
    return Found(runtime=found[1] if found else None)


def parse_processes(text: str, indices: Mapping[str | None, int]) -> Found:
    """`--query-compute-apps`, whose cards are told by UUID."""
    names, rows = _table(text)
    if not {"gpu_uuid", "pid", "process_name"} <= set(names):
        return Found(left=tuple(lines_of(text)))
    processes: list[Process] = []
    left: list[str] = []
    for row in rows:
        cells = dict(zip(names, row, strict=False))
        pid = count(cells.get("pid", ""))
        index = indices.get(cells.get("gpu_uuid"))
        if pid is None or index is None or len(row) != len(names):
            left.append(", ".join(row))
            continue
        memory = quantity(cells.get("used_gpu_memory", cells.get("used_memory", "")), "MiB")
        processes.append(Process(index, pid, cells["process_name"], memory))
    return Found(processes=tuple(processes), left=tuple(left))


def _table(text: str) -> tuple[list[str], list[list[str]]]:
    """Names of the columns without their units, and the rows. The format knows no quotes."""
    rows = [[cell.strip() for cell in line.split(",")] for line in lines_of(text) if line]
    if not rows:
        return [], []
    return [re.sub(r"\s*\[.*\]$", "", name).casefold() for name in rows[0]], rows[1:]
