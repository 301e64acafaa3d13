"""Curves as an SVG picture, panel beside panel, in the colours of the dashboard."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import NamedTuple

COLOURS = ("#d9720b", "#1f77b4", "#14906f")
INK, SOFT, GRID = "#1d2127", "#626b77", "#e4e4de"
WIDTH, HEIGHT, LEFT, TOP, GAP = 280, 200, 50, 60, 48
"""Of the plot of a panel, the space before and above the first, and that between two."""


class Line(NamedTuple):
    """A curve and its name; shares from 0 to 1 at equal distances."""

    name: str
    values: Sequence[float]


def draw(panels: Mapping[str, Sequence[Line]], what: str, below: str, each: int) -> str:
    """The text of the picture of `what`. The horizontal axis counts `below`, with `each` of them to a value."""
    width = LEFT + len(panels) * (WIDTH + GAP)
    parts = [_text(LEFT, 22, what, INK)]
    for line, colour, left in zip(next(iter(panels.values())), COLOURS, count(LEFT + 240, 140), strict=False):
        parts += [f'<path d="M{left} 18h22" stroke="{colour}" stroke-width="3"/>', _text(left + 28, 22, line.name, INK)]
    for number, (title, lines) in enumerate(panels.items()):
        parts += _panel(LEFT + number * (WIDTH + GAP), title, lines, below, each)
    size = f'width="{width}" height="{TOP + HEIGHT + 48}"'
    paper = '<rect width="100%" height="100%" fill="#fff"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="DejaVu Sans, sans-serif" font-size="12">'
    return "\n".join([head, paper, *parts, "</svg>", ""])


def _panel(left: int, title: str, lines: Sequence[Line], below: str, each: int) -> list[str]:
    parts = [_text(left, TOP - 12, title, INK, "bold")]
    for tick in range(5):
        y = TOP + HEIGHT * (1 - tick / 4)
        parts.append(f'<path d="M{left} {y}h{WIDTH}" stroke="{GRID}"/>')
        if left == LEFT:
            parts.append(_text(left - 6, y + 4, f"{25 * tick}%", SOFT, anchor="end"))
    values = max(len(line.values) for line in lines)
    for share in (0, 0.5, 1):
        parts.append(
            _text(left + share * WIDTH, TOP + HEIGHT + 18, f"{share * values * each:,.0f}", SOFT, anchor="middle")
        )
    parts.append(_text(left + WIDTH / 2, TOP + HEIGHT + 36, below, SOFT, anchor="middle"))
    for line, colour in zip(lines, COLOURS, strict=False):
        points = (
            f"{left + WIDTH * place / values:.1f},{TOP + HEIGHT * (1 - value):.1f}"
            for place, value in enumerate(line.values, 1)
        )
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    return parts


def _text(x: float, y: float, text: str, colour: str, weight: str = "normal", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}" font-weight="{weight}" text-anchor="{anchor}">{text}</text>'
