"""The matrix of links: `mx-smi topo -m` and `-n`, `nvidia-smi topo -m`. They are written alike."""

import re

from slurm.devices.cells import BANNER, Found, attached, lines_of

END = re.compile(r"(?:GPU|NIC)[0-9]{1,4}")
LINK = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|PXN|MX|ETH|NA|NV[0-9]{1,3}")
NIC = re.compile(r"(NIC[0-9]{1,4})\s*:\s*(\S+)")
LEGEND = re.compile(r"\S+\s*=\s.*|(?:NIC )?Legend:|Device link type matrix")


def parse_topo(text: str) -> Found:
    """Link types by two ends, and the names of the network cards.

    A row fits when it has a known word for each column and its X at itself; a link that is not the same from both
    sides is left out.
    """
    ends: list[str] = []
    links: dict[str, dict[str, str]] = {}
    nics: dict[str, str] = {}
    left: list[str] = []
    for line in lines_of(text):
        words = line.split()
        nic = NIC.fullmatch(line)
        if nic:
            nics[nic[1]] = nic[2]
        elif BANNER.fullmatch(line) or LEGEND.fullmatch(line):
            continue
        elif not ends:
            ends = _ends(words)
            left += [] if ends else [line]
        else:
            row = _row(words, ends) if words[0] not in links else None
            if row is None:
                left.append(line)
            else:
                links[words[0]] = row
    left += _one_sided(links)
    return Found(links=links, nics=nics, attached=attached(text), left=tuple(left))


def _ends(words: list[str]) -> list[str]:
    """The columns of the header up to the last end; none when it is no header, or an end stands there twice."""
    numbers = [number for number, word in enumerate(words) if END.fullmatch(word)]
    if not numbers or numbers[0] != 0 or "X" in words:
        return []
    ends = words[: numbers[-1] + 1]
    return ends if len(set(ends)) == len(ends) else []


def _row(words: list[str], ends: list[str]) -> dict[str, str] | None:
    name, cells = words[0], words[1 : len(ends) + 1]
    if name not in ends or not END.fullmatch(name) or len(cells) != len(ends):
        return None
    row = {end: cell for end, cell in zip(ends, cells, strict=True) if END.fullmatch(end)}
    fits = all(LINK.fullmatch(cell) and (cell == "X") == (end == name) for end, cell in row.items())
    return {end: cell for end, cell in row.items() if end != name} if fits else None


def _one_sided(links: dict[str, dict[str, str]]) -> list[str]:
    """Take out the links that the two ends do not agree on, and say which they were."""
    pairs = [(one, other) for one, row in links.items() for other in row if other in links and one < other]
    wrong = [(one, other) for one, other in pairs if links[one][other] != links[other].get(one)]
    said: list[str] = []
    for one, other in wrong:
        said.append(f"{one} to {other}: {links[one].pop(other)}, and back: {links[other].pop(one, 'nothing')}")
    return said
