"""What is known of a node's cards, the same for MetaX, NVIDIA and none. What is unknown is None, and never healthy."""

import re
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["metax", "nvidia", "cpu", "unknown"]
AVAILABLE = "available"
BAD_STATE = re.compile(
    r"unavail|not\s*avail|fault|error|\berr\b|lost|fail|fell|fallen|abnormal|offline|reset", re.IGNORECASE
)
"""In a card's state these words say that it cannot be used. Any other word but `available` says nothing to us."""


@dataclass(frozen=True)
class Device:
    """One card. None: the tool did not say, or said what could not be read."""

    index: int
    """The tool's number, which is not that of /dev/dri/cardN."""
    name: str | None = None
    uuid: str | None = None
    bus_id: str | None = None
    """PCI address, 0000:0e:00.0."""
    state: str | None = None
    """In the tool's words. nvidia-smi has none: a card that answers all that is asked counts as Available."""
    memory_used: float | None = None
    """MiB."""
    memory_total: float | None = None
    """MiB."""
    temperature: float | None = None
    """Celsius."""
    power: float | None = None
    """Watts."""
    power_cap: float | None = None
    """Watts."""
    utilisation: float | None = None
    """Percent."""
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    retired_pages: int | None = None
    doubt: str = ""
    """Why what was read may be of another card, or of none."""


@dataclass(frozen=True)
class Process:
    """A process that holds memory of a card."""

    device: int
    pid: int
    name: str
    memory: float | None
    """MiB."""


@dataclass(frozen=True)
class Devices:
    """The cards of this node.

    A node is well when `trouble` is empty and `health` says so of each of the expected number of devices: without
    devices, or of the kind `unknown`, it is never well where cards are expected.
    """

    kind: Kind
    driver: str | None = None
    """Version of the kernel's driver."""
    runtime: str | None = None
    """Version of MACA or CUDA, as the tool says it."""
    devices: tuple[Device, ...] = ()
    links: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """Link type by two ends, `links["GPU0"]["NIC1"] == "PIX"`; MX is MetaXLink, NV# NVLink."""
    nics: dict[str, str] = field(default_factory=dict[str, str])
    """The system's names of the network cards: NIC0 is mlx5_0."""
    processes: tuple[Process, ...] = ()
    cores: int | None = None
    """Of the node, that this process may use."""
    memory: float | None = None
    """MiB of the node."""
    trouble: tuple[str, ...] = ()
    """What went wrong while the node was asked: a tool that hangs, a layout that nobody has seen."""
    raw: dict[str, str] = field(default_factory=dict[str, str])
    """By command, the whole text of each answer that was not wholly understood."""


def health(device: Device) -> str:
    """`healthy`, `bad: why` or `unknown: why`.

    Healthy is only a card that is said to be available and whose uncorrectable ECC errors were read and are none.
    """
    if device.state is not None and BAD_STATE.search(device.state):
        return f"bad: its state is {device.state!r}"
    if device.ecc_uncorrected:
        return f"bad: {device.ecc_uncorrected} uncorrectable ECC errors"
    if device.doubt:
        return f"unknown: {device.doubt}"
    if device.state is None:
        return "unknown: its state is not shown"
    if device.state.strip().casefold() != AVAILABLE:
        return f"unknown: nobody has told us what the state {device.state!r} means"
    if device.ecc_uncorrected is None:
        return "unknown: its uncorrectable ECC errors could not be read"
    if device.retired_pages:
        return f"unknown: {device.retired_pages} retired pages, and how many are too many is not public"
    return "healthy"
