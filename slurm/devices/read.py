"""From a node to its `Devices`. Nothing here imports torch, and no answer of a tool raises."""

import os
import shutil
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from slurm.devices.device import Devices, Kind
from slurm.devices.metax import read_metax
from slurm.devices.nvidia import read_nvidia

VENDORS = {"0x9999": "MetaX", "0x10de": "NVIDIA"}
"""PCI vendors, MetaX's as in gpustack/runtime. Other graphics chips, as that of a server's console, do not count."""
MX_SMI = Path("opt/mxdriver/bin/mx-smi")


def read_devices(root: Path = Path("/")) -> Devices:
    """Ask this node about its cards; a tool that hangs is ended soon. `root` is that of /dev, /sys and /opt."""
    kind, tool, trouble = _find(root)
    if kind == "metax" and tool:
        found = read_metax(tool)
    elif kind == "nvidia" and tool:
        found = read_nvidia(tool)
    else:
        found = Devices(kind=kind, trouble=(trouble,) if trouble else ())
    return replace(found, cores=len(os.sched_getaffinity(0)), memory=psutil.virtual_memory().total / 2**20)


def kind_of_node(root: Path = Path("/")) -> Kind:
    """What `read_devices` would take this node for, without asking any tool."""
    return _find(root)[0]


def count_cards(root: Path = Path("/")) -> int:
    """How many cards of MetaX or NVIDIA the kernel shows; 0 also when it cannot be seen."""
    return len([path for path in root.glob("sys/class/drm/renderD*") if _vendor(path) in VENDORS])


def _find(root: Path) -> tuple[Kind, Path | None, str]:
    """The kind, its tool, and what is odd. The version of torch comes first, since it decides what the ranks run."""
    is_vendor_torch = "metax" in torch_version()
    tool = _tool("mx-smi", root / MX_SMI)
    if tool:
        return "metax", tool, ""
    cards = _cards(root)
    if is_vendor_torch:
        seen = f"{cards} is there" if cards else "no card in /dev: a login node, or a container without its devices"
        return "unknown", None, f"torch is MetaX's build, but there is no mx-smi, and {seen}"
    tool = _tool("nvidia-smi", None)
    if tool:
        return "nvidia", tool, ""
    if cards:
        return "unknown", None, f"{cards} is there, but neither mx-smi nor nvidia-smi, so nothing is known of the cards"
    return "cpu", None, ""


def torch_version() -> str:
    """Version of the installed torch, which is not imported; empty without one."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def _tool(name: str, other: Path | None) -> Path | None:
    found = shutil.which(name)
    if found is None and other is not None and os.access(other, os.X_OK):
        return other
    return Path(found) if found else None


def _cards(root: Path) -> str:
    """The first sign of a card in /dev, or nothing."""
    for pattern in ("dev/mxcd", "dev/mxgvm", "dev/nvidia[0-9]*", "dev/nvidiactl"):
        for path in sorted(root.glob(pattern)):
            return f"/{path.relative_to(root)}"
    for path in sorted(root.glob("dev/dri/renderD*")):
        vendor = _vendor(root / "sys/class/drm" / path.name)
        if vendor is None or vendor in VENDORS:
            return f"/dev/dri/{path.name} of {VENDORS[vendor] if vendor else 'an unknown vendor'}"
    return ""


def _vendor(drm: Path) -> str | None:
    """PCI vendor of an entry of /sys/class/drm; None when it cannot be read."""
    try:
        return (drm / "device/vendor").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
