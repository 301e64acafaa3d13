"""Fault lines of the drivers in kern.log, the journal or syslog: MetaX's EID, NVIDIA's Xid."""

import re
from dataclasses import dataclass
from typing import Literal

Severity = Literal["fatal", "error", "warning", "info", "unknown"]
SEVERITIES: dict[str, Severity] = {
    "FATAL": "fatal",
    "CRITICAL": "fatal",
    "ERROR": "error",
    "ERR": "error",
    "WARNING": "warning",
    "WARN": "warning",
    "INFO": "info",
    "DEBUG": "info",
}
# METAX.B3A00.D0.V0.SMI.ERROR text; MXCD.B3A00.D0.IOCTL.ERROR EID (0000:3a:00.0): 0x2202, text; SDK.<date>.UMD.FATAL ...
METAX = re.compile(r"\b(METAX|MXCD|SDK)((?:\.\w+){1,6})\s+(\S.*)")
EID = re.compile(r"\bEID\s*\(([^)]*)\)\s*:\s*(0x[0-9a-fA-F]+)\s*,?\s*(.*)")
XID = re.compile(r"\bNVRM: Xid \(PCI:([^)]*)\):\s*(\d+)\s*,?\s*(.*)")


@dataclass(frozen=True)
class Event:
    """One line of a driver's log that may tell of a fault."""

    source: str
    """METAX and MXCD (kernel), SDK (runtime), NVRM (kernel)."""
    severity: Severity
    module: str
    """The part of the driver, such as SMI or UMD; empty when the line has none."""
    code: str | None
    """EID 0x3104 or Xid 79. There is no public list of what the EIDs mean."""
    bus_id: str | None
    message: str
    line: str


def scan_log(text: str) -> list[Event]:
    """The drivers' lines in a log, in its order. Lines of others are no events."""
    return [event for line in text.splitlines() if (event := _metax(line) or _nvidia(line))]


def is_fault(event: Event) -> bool:
    """Whether the line tells of an error. One whose severity nobody knows does when it has a code."""
    return event.severity in ("fatal", "error") or (event.severity == "unknown" and event.code is not None)


def _metax(line: str) -> Event | None:
    found = METAX.search(line)
    if not found:
        return None
    source, rest, message = found.groups()
    *before, last = rest.strip(".").split(".")
    severity = SEVERITIES.get(last.upper(), "unknown")
    module = last if severity == "unknown" else before[-1] if before else ""
    eid = EID.search(message)
    if not eid:
        return Event(source, severity, module, None, None, message.strip(), line)
    bus_id, code, said = eid.groups()
    return Event(source, severity, module, f"EID {code.lower()}", bus_id.strip() or None, said.strip(), line)


def _nvidia(line: str) -> Event | None:
    found = XID.search(line)
    if not found:
        return None
    bus_id, number, message = found.groups()
    return Event("NVRM", "error", "", f"Xid {number}", bus_id.strip() or None, message.strip(), line)
