"""A node's cards as the vendor's tool and the kernel's log describe them (`slurm.devices`)."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from slurm.devices.builds import vendor_builds
from slurm.devices.command import HUNG
from slurm.devices.device import Devices, health
from slurm.devices.events import is_fault, scan_log
from slurm.devices.read import read_devices
from slurm.health.finding import Finding

LOGS = (Path("/var/log/kern.log"), Path("/var/log/messages"), Path("/var/log/syslog"))
LOG_BYTES = 4 << 20
"""The end of each log that is read."""
VISIBLE = ("CUDA_VISIBLE_DEVICES", "MACA_VISIBLE_DEVICES")
REPLACE = "drain the node and have the card reset or replaced"
SHOWN = 3


def check_cards(node: str, wanted: int) -> list[Finding]:
    """State, ECC errors, links and visibility of the cards, the builds of torch and vllm, and the driver's log.

    `wanted` is how many cards the run asks for on a node; 0 is content with none.
    """
    found = read_devices()
    findings = [*judge_devices(node, found, wanted), _visible(node)]
    if found.kind in ("metax", "nvidia"):
        findings += [_links(node, found), _log(node)]
    wrong = vendor_builds(found.kind)
    parts = [text.partition(": ") for text in wrong]
    return findings + [Finding("vendor builds", node, "bad", what, way_out) for what, _, way_out in parts]


def judge_devices(node: str, found: Devices, wanted: int) -> list[Finding]:
    """The state of each card that is not well, and one line for those that are."""
    findings = [_trouble(node, found.trouble)] if found.trouble else []
    healthy = 0
    for device in found.devices:
        judged, _, why = health(device).partition(": ")
        if judged == "healthy":
            healthy += 1
        else:
            verdict, way_out = ("bad", REPLACE) if judged == "bad" else ("unknown", "")
            findings.append(Finding(f"card {device.index}", node, verdict, why, way_out))
    seen = f"{len(found.devices)} of the kind {found.kind}, {healthy} healthy"
    measured = "no card is seen" if found.kind == "cpu" else seen
    if found.devices and found.driver:
        measured += f", driver {found.driver}"
    if wanted > len(found.devices):
        way_out = "ask for fewer (gpus_per_node), or ask the administrator where the others are"
        if found.kind == "unknown" or found.trouble:
            findings.append(Finding("cards", node, "unknown", f"{measured}, {wanted} are asked for", way_out))
        else:
            findings.append(Finding("cards", node, "bad", f"{measured}, {wanted} are asked for", way_out))
    elif found.devices:
        findings.append(Finding("cards", node, "ok" if healthy == len(found.devices) else "unknown", measured))
    elif found.kind == "cpu":
        findings.append(Finding("cards", node, "ok", "no card, and none is asked for"))
    return findings


def _trouble(node: str, troubles: Sequence[str]) -> Finding:
    """A tool that hangs waits for a driver that does not answer; anything else may be a layout that nobody has seen."""
    said = "; ".join(troubles)
    hangs = HUNG in said
    return Finding("vendor's tool", node, "bad" if hangs else "unknown", said, REPLACE if hangs else "")


def _visible(node: str) -> Finding:
    """Slurm sets CUDA's variable; MetaX's own libraries also read the other, and two answers are none."""
    values = {name: os.environ[name] for name in VISIBLE if name in os.environ}
    measured = ", ".join(f"{name}={value}" for name, value in values.items()) or "not set"
    if len(set(values.values())) > 1:
        return Finding("visible cards", node, "bad", measured, "set both alike, or neither (slurm.environment)")
    return Finding("visible cards", node, "ok", measured)


def _links(node: str, found: Devices) -> Finding:
    cards = [end for end in found.links if end.startswith("GPU")]
    pairs = [found.links[one].get(other, "?") for place, one in enumerate(cards) for other in cards[place + 1 :]]
    if not pairs:
        return Finding("links in the node", node, "unknown", "the tool shows none")
    counts = ", ".join(f"{kind} x {count}" for kind, count in Counter(pairs).most_common())
    return Finding("links in the node", node, "unknown", f"{counts}; what they should be is not known here")


def _log(node: str) -> Finding:
    """Fault lines of the drivers: EID of MetaX, Xid of NVIDIA. There is no public list of what an EID means."""
    texts = [_tail(path) for path in LOGS if os.access(path, os.R_OK)]
    if not texts:
        return Finding("driver's log", node, "unknown", "no log of the kernel can be read by you")
    faults = [event for text in texts for event in scan_log(text) if is_fault(event)]
    if not faults:
        return Finding("driver's log", node, "ok", "no fault line of a driver")
    last = "; ".join(event.line.strip() for event in faults[-SHOWN:])
    return Finding(
        "driver's log", node, "unknown", f"{len(faults)} fault lines, the last: {last}", "show it the vendor"
    )


def _tail(path: Path) -> str:
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - LOG_BYTES))
        return stream.read().decode(errors="replace")
