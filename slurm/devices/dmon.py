"""`mx-smi dmon --format csv`."""

import csv

from slurm.devices.cells import Found, bus_id, count, lines_of, quantity
from slurm.devices.device import Device

DMON = {
    "power": ("power", "W"),
    "gpu": ("utilisation", "%"),
    "hottemp": ("temperature", "C"),
    "total": ("memory_total", "GB"),
}
"""Columns of dmon: the field they fill, and the unit that they must have."""


def parse_dmon(text: str) -> Found:
    """A row of names, a row of units, and a row for each die. Of several dies the hottest counts."""
    rows = [row for row in _csv(text) if any(row)]
    start = next((number for number, row in enumerate(rows) if row[0].casefold() == "dev"), None)
    if start is None or len(rows) < start + 2:
        return Found(left=tuple(lines_of(text)))
    names, units = [name.casefold() for name in rows[start]], rows[start + 1]
    left = [",".join(row) for row in rows[:start]]
    devices: dict[int, Device] = {}
    for row in rows[start + 2 :]:
        device = _die(names, units, row) if len(row) == len(names) else None
        if device is None:
            left.append(",".join(row))
            continue
        before = devices.get(device.index)
        if before is None or (device.temperature or 0) > (before.temperature or 0):
            devices[device.index] = device
    return Found(devices=tuple(devices.values()), left=tuple(left))


def _die(names: list[str], units: list[str], row: list[str]) -> Device | None:
    index, address = None, None
    values: dict[str, float | None] = {}
    for column, (name, cell) in enumerate(zip(names, row, strict=True)):
        unit = units[column] if column < len(units) else ""
        if name == "dev":
            index = count(cell) if names.count("dev") == 1 else None
        elif name == "bdfid":
            address = bus_id(cell)
        elif name in DMON and unit == DMON[name][1] and names.count(name) == 1:
            field, scale = DMON[name][0], 1024 if unit == "GB" else 1
            number = quantity(cell, "")
            values[field] = None if number is None else scale * number
    if index is None:
        return None
    return Device(
        index,
        bus_id=address,
        memory_total=values.get("memory_total"),
        temperature=values.get("temperature"),
        power=values.get("power"),
        utilisation=values.get("utilisation"),
    )


def _csv(text: str) -> list[list[str]]:
    """Rows of trimmed cells; the comma that ends a row of units adds none."""
    try:
        rows = list(csv.reader(text.replace("\0", "").splitlines()))
    except csv.Error:  # a quote that never closes, a field of a megabyte
        return []
    return [[cell.strip() for cell in row] for row in rows if row]
