"""One view of a node out of several answers of its tool."""

from collections.abc import Mapping
from dataclasses import fields, replace

from slurm.devices.cells import Found
from slurm.devices.device import AVAILABLE, BAD_STATE, Device, Devices, Kind


def combine(
    kind: Kind, tool: str, founds: Mapping[str, Found], texts: Mapping[str, str], trouble: tuple[str, ...] = ()
) -> Devices:
    """The first answer that says a thing is believed, except that the worse of two states is."""
    devices: dict[int, Device] = {}
    for found in founds.values():
        for device in found.devices:
            before = devices.get(device.index)
            devices[device.index] = device if before is None else _merge(before, device)
    return Devices(
        kind=kind,
        driver=next((found.driver for found in founds.values() if found.driver), None),
        runtime=next((found.runtime for found in founds.values() if found.runtime), None),
        devices=tuple(devices[index] for index in sorted(devices)),
        links=next((found.links for found in founds.values() if found.links), {}),
        nics=next((found.nics for found in founds.values() if found.nics), {}),
        processes=next((found.processes for found in founds.values() if found.processes), ()),
        trouble=(*trouble, *_missing(tool, founds, set(devices))),
        raw={f"{tool} {arguments}".strip(): texts[arguments] for arguments, found in founds.items() if found.left},
    )


def _merge(one: Device, other: Device) -> Device:
    """`one`, with what only `other` knows. The worse state stays, and two addresses are a doubt."""
    known = {f.name: getattr(other, f.name) for f in fields(Device) if getattr(one, f.name) is None}
    both = replace(one, **known)
    if one.state is not None and other.state is not None:
        both = replace(both, state=max(one.state, other.state, key=_badness))
    if one.bus_id and other.bus_id and one.bus_id != other.bus_id:
        doubt = f"two answers give it two addresses, {one.bus_id} and {other.bus_id}"
        both = replace(both, doubt=both.doubt or doubt)
    return both


def _badness(state: str) -> int:
    return 2 if BAD_STATE.search(state) else int(state.strip().casefold() != AVAILABLE)


def _missing(tool: str, founds: Mapping[str, Found], indices: set[int]) -> list[str]:
    """Cards that some answers know of and others do not, and answers of which nothing was understood."""
    said: list[str] = []
    for arguments, found in founds.items():
        command = f"{tool} {arguments}".strip()
        seen = {device.index for device in found.devices}
        if found.attached is not None and found.attached != len(indices):
            said.append(f"`{command}` counts {found.attached} cards, and {len(indices)} were understood")
        if seen and seen != indices:
            missing = ", ".join(str(index) for index in sorted(indices - seen))
            said.append(f"`{command}` says nothing that is understood of card {missing}")
        if found.left and found == Found(attached=found.attached, left=found.left):
            said.append(f"`{command}` answers in a layout that is not known; it begins {found.left[0][:80]!r}")
    if not indices:
        said.append(f"{tool} shows no card")
    return said
