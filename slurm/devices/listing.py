"""What mx-smi says on one line a card: `-L` and `--show-unavailable-reason`; and `-j`."""

import json
import re
from collections.abc import Iterator
from typing import Any

from slurm.devices.cells import BANNER, BUS_ID, UUID, Found, attached, bus_id, count, lines_of
from slurm.devices.device import AVAILABLE, Device

CARD = re.compile(r"GPU#([0-9]{1,4})\b\s*(.*)")
NAME = re.compile(r"MX[A-Z]+[0-9]+\S*")
MOST_STARTS, MOST_PARTS = 20, 100_000
"""Braces that are tried, and objects of a JSON text that are looked at."""


def parse_list(text: str) -> Found:
    """`GPU#0  MXC500  0000:0e:00.0  Available`, the columns in any order, with or without a UUID.

    What is left of a line is the state: also a column that nobody knows, so that its card is not taken for available.
    """
    devices: list[Device] = []
    left: list[str] = []
    for line in lines_of(text):
        card = CARD.fullmatch(line)
        device = parse_card(int(card[1]), card[2]) if card else None
        if device and (device.bus_id or device.name):
            devices.append(device)
        elif not BANNER.fullmatch(line):
            left.append(line)
    return Found(devices=tuple(devices), attached=attached(text), left=tuple(left))


def parse_unavailable(text: str) -> Found:
    """The same lines with `available`, or else why the card is not."""
    found = parse_list(text)
    devices = [
        device
        if device.state is None or device.state.casefold() == AVAILABLE
        else Device(device.index, device.name, device.uuid, device.bus_id, f"unavailable: {device.state}")
        for device in found.devices
    ]
    return Found(devices=tuple(devices), attached=found.attached, left=found.left)


def parse_card(index: int, rest: str) -> Device:
    """A card from what stands behind its number, as `-L` has it and as it heads longer answers."""
    name = uuid = address = None
    others: list[str] = []
    for word in rest.split():
        bare = word.strip("(),")
        if address is None and BUS_ID.fullmatch(bare):
            address = bus_id(bare)
        elif uuid is None and UUID.fullmatch(bare):
            uuid = bare
        elif name is None and NAME.fullmatch(bare):
            name = bare
        elif bare != "UUID:":
            others.append(word)
    return Device(index, name, uuid, address, " ".join(others) or None)


def parse_json(text: str) -> Found:
    """`-j`: somewhere in the first JSON object, cards with `device_id` and `unavailable_reason`. Text may precede."""
    value = _first_object(text)
    devices: list[Device] = []
    for part in _parts(value):
        index, reason = part.get("device_id"), part.get("unavailable_reason")
        number = count(str(index)) if isinstance(index, (int, str)) and not isinstance(index, bool) else None
        if number is not None and isinstance(reason, str) and reason.strip():
            is_available = reason.strip().casefold() == AVAILABLE
            devices.append(Device(number, state="Available" if is_available else f"unavailable: {reason.strip()}"))
    return Found(devices=tuple(devices), left=() if devices else tuple(lines_of(text)))


def _first_object(text: str) -> Any:
    """The value at the first brace that begins one."""
    for start in [found.start() for found in re.finditer(r"\{", text)][:MOST_STARTS]:
        try:
            return json.JSONDecoder().raw_decode(text, start)[0]
        except (ValueError, RecursionError):
            continue
    return None


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside a JSON value."""
    waiting = [value]
    for _ in range(MOST_PARTS):
        if not waiting:
            return
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
