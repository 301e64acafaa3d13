"""The tables of `mx-smi`: cards, in any layout whose header names the columns, and processes.

Up to 2.2.3 a card has no state there; 2.2.9 has one (GPU-State). A card is as many lines as the header has, and a cell
holds as many values as its place in the header has names.
"""

import re
from dataclasses import dataclass, field, replace

from slurm.devices.cells import BANNER, Found, attached, bus_id, count, lines_of, quantity, share
from slurm.devices.device import Device, Process

DRIVER = re.compile(r"Kernel Mode Driver Version:\s*([^\s|]+)")
RUNTIME = re.compile(r"MACA Version:\s*([^\s|]+)")
IGNORED = {"board", "persist-m", "perf", "sgpu-m"}
"""Columns that say nothing of interest here."""
ABSENT = {"", "-", "N/A", "NA"}
PROCESS = re.compile(r"([0-9]{1,4})\s+([0-9]{1,10})\s+(\S.*?)\s{2,}([0-9]{1,9})")

Rows = list[list[str]]


@dataclass
class _Card:
    """The values of one card, by field of `Device`, as they are found."""

    values: dict[str, object] = field(default_factory=dict[str, object])
    odd: bool = False
    """Something in it is not understood."""

    def put(self, name: str, value: object, cell: str) -> None:
        """Note a value; one that does not parse, or contradicts another of the same card, is none."""
        if value is None and cell.strip() not in ABSENT:
            self.odd = True
        if name in self.values and self.values[name] != value:
            self.odd = True
            value = f"{self.values[name]} / {value}" if name == "state" else None
        self.values[name] = value


def parse_table(text: str) -> Found:
    """The cards of `mx-smi`, and the versions above them."""
    devices: list[Device] = []
    left: list[str] = []
    header: Rows | None = None
    block: list[str] = []
    for line in [*_cards(text), "+-+"]:
        if not _is_rule(line):
            block.append(line)
            continue
        if "=" in line:
            header = _rows(block)
            left += block if header is None else _unknown_columns(header)
        elif block and header is None:
            left += [row for row in block if not _is_version(row)]
        elif block and header is not None:
            device, is_odd = _device(header, _rows(block))
            devices += [device] if device else []
            left += block if is_odd else []
        block = []
    driver, runtime = DRIVER.search(text), RUNTIME.search(text)
    return Found(
        devices=tuple(devices),
        attached=attached(text),
        driver=_version(driver),
        runtime=_version(runtime),
        left=tuple(left),
    )


def parse_processes(text: str) -> Found:
    """The table of `mx-smi --show-process`, which also ends the table of cards."""
    processes: list[Process] = []
    left: list[str] = []
    is_below = False
    for line in lines_of(text):
        inside = line.strip("|").strip()
        if re.fullmatch(r"Process(es)?:", inside):
            is_below = True
        elif is_below and not BANNER.fullmatch(line) and not inside.startswith("no process"):
            found = PROCESS.fullmatch(inside)
            if found:
                processes.append(Process(int(found[1]), int(found[2]), found[3], float(found[4])))
            elif not (inside.startswith("GPU") and "PID" in inside) and inside != "Usage(MiB)":
                left.append(line)
    return Found(processes=tuple(processes), left=tuple(left))


def _cards(text: str) -> list[str]:
    """The lines of the table of cards, rules included."""
    lines: list[str] = []
    for line in lines_of(text):
        if re.fullmatch(r"\|\s*Process(es)?:\s*\|", line):
            break
        if _is_rule(line) or not BANNER.fullmatch(line):
            lines.append(line)
    return lines


def _is_rule(line: str) -> bool:
    return bool(re.fullmatch(r"[+|][-+|=]{2,}", line))


def _is_version(line: str) -> bool:
    return "MX-SMI" in line or bool(DRIVER.search(line) or RUNTIME.search(line))


def _version(found: re.Match[str] | None) -> str | None:
    return found[1] if found and found[1].casefold() != "unknown" else None


def _rows(block: list[str]) -> Rows | None:
    """The cells of each line; None when the lines are no rows of one table."""
    if not block or any(len(line) < 2 or line[0] != "|" or line[-1] != "|" for line in block):
        return None
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in block]
    return rows if len({len(row) for row in rows}) == 1 and len(rows[0]) > 1 else None


def _unknown_columns(header: Rows) -> list[str]:
    known = IGNORED | {"gpu", "name", "bus-id", "gpu-util", "pwr:usage/cap", "temp", "memory-usage", "gpu-state"}
    names = [name for row in header for cell in row for name in cell.split()]
    return [f"column {name!r}" for name in names if name.casefold() not in known]


def _device(header: Rows, rows: Rows | None) -> tuple[Device | None, bool]:
    """The card of a block of rows, and whether something in it is odd."""
    if rows is None or len(rows) != len(header) or len(rows[0]) != len(header[0]):
        return None, True
    card = _Card()
    for names, cells in zip(header, rows, strict=True):
        for name, cell in zip(names, cells, strict=True):
            values = _split(cell, len(name.split()))
            if values is None:
                card.odd = True
                values = [""] * len(name.split())
            for word, value in zip(name.split(), values, strict=True):
                _read(card, word.casefold(), value)
    index = card.values.get("index")
    if not isinstance(index, int):
        return None, True
    return replace(Device(index), **card.values), card.odd  # pyright: ignore[reportArgumentType]


def _split(cell: str, number: int) -> list[str] | None:
    """The values of a cell, apart by two blanks, or by one where the column is narrow."""
    if number < 2:
        return [cell][:number] if number or not cell else None
    parts = re.split(r"\s{2,}", cell)
    if len(parts) != number:
        parts = cell.split(None, number - 1)
    return parts if len(parts) == number else None


def _read(card: _Card, column: str, cell: str) -> None:
    if column == "gpu":
        card.put("index", count(cell), cell)
    elif column == "name":
        card.put("name", cell or None, cell)
    elif column == "bus-id":
        card.put("bus_id", bus_id(cell), cell)
    elif column == "gpu-state":
        card.put("state", cell, cell)
    elif column == "gpu-util":
        card.put("utilisation", quantity(cell, "%"), cell)
    elif column == "temp":
        card.put("temperature", quantity(cell, "C"), cell)
    elif column == "pwr:usage/cap":
        used, cap = share(cell, "W")
        card.put("power", used, cell)
        card.put("power_cap", cap, cell)
    elif column == "memory-usage":
        used, total = share(cell, "MiB")
        card.put("memory_used", used, cell)
        card.put("memory_total", total, cell)
