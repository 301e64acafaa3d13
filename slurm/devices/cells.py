"""What all parsers share: what they return, and how a number is read. A number that is not quite one is None."""

import re
from dataclasses import dataclass, field

from slurm.devices.device import Device, Process

BUS_ID = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
UUID = re.compile(r"(?:GPU-|MX-)?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
ATTACHED = re.compile(r"Attached GPUs\s*:\s*([0-9]{1,4})")
BANNER = re.compile(r"mx-smi\s+version\s*:.*|=+ .* =+|Timestamp\s*:.*|Attached GPUs\s*:.*|End of Log|[-+|=\s]*")


@dataclass(frozen=True)
class Found:
    """What one answer of a tool says. `left`: its rows that were not understood, in words or meaning."""

    devices: tuple[Device, ...] = ()
    links: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    nics: dict[str, str] = field(default_factory=dict[str, str])
    processes: tuple[Process, ...] = ()
    attached: int | None = None
    """How many cards the tool says there are."""
    driver: str | None = None
    runtime: str | None = None
    left: tuple[str, ...] = ()


def lines_of(text: str) -> list[str]:
    """Lines without colours and blanks around them."""
    return [ESCAPE.sub("", line).strip() for line in text.splitlines()]


def attached(text: str) -> int | None:
    """The number of cards in the banner."""
    found = ATTACHED.search(text)
    return int(found[1]) if found else None


def count(text: str) -> int | None:
    """A whole number, alone."""
    return int(text) if re.fullmatch(r"[0-9]{1,12}", text.strip()) else None


def quantity(text: str, unit: str) -> float | None:
    """A number with this unit after it, and nothing else."""
    found = re.fullmatch(rf"([0-9]{{1,12}}(?:\.[0-9]{{1,6}})?)\s*{re.escape(unit)}", text.strip())
    return float(found[1]) if found else None


def share(text: str, unit: str) -> tuple[float | None, float | None]:
    """`57W / 350W` or `826/65536 MiB`: the unit stands at least at the second number."""
    first, slash, second = text.partition("/")
    if not slash:
        return None, None
    whole = quantity(second, unit)
    part = quantity(first, unit)
    return (part if part is not None or whole is None else quantity(first, "")), whole


def bus_id(text: str) -> str | None:
    """A PCI address in one form, 0000:0e:00.0."""
    found = BUS_ID.fullmatch(text.strip())
    if not found:
        return None
    domain, bus, device, function = found.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()
