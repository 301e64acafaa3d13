"""An algorithm as a picture: boxes in layers, what can run side by side beside each other."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stages.algorithms.algorithm import LOSS, Algorithm
from stages.algorithms.kinds import GIVEN, Kind
from stages.algorithms.load import load_algorithm
from stages.algorithms.node import Node
from stages.algorithms.order import sources
from stages.algorithms.spec import find_algorithm, read_spec
from workflow.config import RunConfig, load
from workflow.request import leaves

ARROWS = str.maketrans("←→▼·", "<>v-")
"""For a terminal that knows no others."""
EDGES = 4
"""Columns of a box beside its text."""


def draw_file(name: str) -> RenderableType:
    """A shipped algorithm or a file by itself. Raises ValueError for all that `qianka run` would find wrong with it."""
    find_algorithm(name)
    return draw_algorithm(load([], {"rl": {"algorithm": name}}))


def draw_algorithm(run: RunConfig) -> RenderableType:
    """The algorithm of a run, with the values that its settings have there."""
    algorithm = load_algorithm(run.rl.algorithm)
    parts: list[RenderableType] = [_head(algorithm, _settings(run))]
    sections = (("experience", "once a step, without gradient"), ("update", "for every micro-batch, with gradient"))
    for section, when in sections:
        nodes = getattr(algorithm, section)
        if nodes:
            parts += [Text(), Text.assemble((section, "bold"), f"  {when}"), Section(nodes, algorithm.kinds)]
    taken = {source for node in (*algorithm.experience, *algorithm.update) for source in node.takes.values()}
    parts.insert(1, _pairs("given", {name: str(kind) for name, kind in GIVEN.items() if name in taken}))
    metrics = {**algorithm.experience_metrics, **algorithm.update_metrics}
    if metrics:
        parts += [Text(), _pairs("metrics", {name: f"← {source}" for name, source in metrics.items()})]
    return Arrows(Group(*parts))


class Arrows:
    """A picture whose arrows are letters where the terminal knows no others."""

    def __init__(self, picture: RenderableType) -> None:
        self.picture = picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """All segments of the picture."""
        for segment in console.render(self.picture, options):
            if options.ascii_only:
                segment = segment._replace(text=segment.text.translate(ARROWS))
            yield segment


class Section:
    """The nodes of a section, layer below layer: each waits only for boxes above it."""

    def __init__(self, nodes: Sequence[Node], kinds: Mapping[str, Kind]) -> None:
        self.nodes, self.kinds = nodes, kinds

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As many boxes side by side as the width allows."""
        for number, layer in enumerate(_layers(self.nodes)):
            if number:
                yield Text("  ▼", style="dim")
            yield from _rows([_lines(node, self.kinds) for node in layer], layer, options.max_width)


def _layers(nodes: Sequence[Node]) -> list[list[Node]]:
    depth: dict[str, int] = {}
    layers: list[list[Node]] = []
    for node in nodes:
        depth[node.name] = max((depth[source] + 1 for source in sources(node) & depth.keys()), default=0)
        layers += [[] for _ in range(depth[node.name] + 1 - len(layers))]
        layers[depth[node.name]].append(node)
    return layers


def _rows(texts: Sequence[Text], nodes: Sequence[Node], width: int) -> Iterator[Table]:
    """Boxes of one layer, in rows that fit the width."""
    row: list[tuple[Text, Node]] = []
    taken = 0
    for text, node in zip(texts, nodes, strict=True):
        wide = _width(text, node)
        if row and taken + wide > width:
            yield _row(row, width)
            row, taken = [], 0
        row.append((text, node))
        taken += wide + 1
    yield _row(row, width)


def _row(boxes: Sequence[tuple[Text, Node]], width: int) -> Table:
    height = max(len(text.split("\n")) for text, _ in boxes) + 2
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_row(*(_box(text, node, height, width) for text, node in boxes))
    return table


def _width(text: Text, node: Node) -> int:
    return max(*(cell_len(line.plain) for line in text.split("\n")), cell_len(node.name) + 2, 12) + EDGES


def _box(text: Text, node: Node, height: int, width: int) -> Panel:
    style = "green" if node.name == LOSS else "cyan" if node.in_order else ""
    return Panel(
        text,
        box=box.ROUNDED,
        title=Text(node.name, style="bold"),
        title_align="left",
        subtitle=Text("all ranks", style="dim") if node.in_order else None,
        subtitle_align="right",
        border_style=style,
        width=min(_width(text, node), width),
        height=height,
    )


def _lines(node: Node, kinds: Mapping[str, Kind]) -> Text:
    """What stands in a box: the operator, its values, what it takes and gives."""
    lines = [Text(node.operator.name)]
    values = [f"{name} {_number(value)}" for name, value in node.values.items()]
    values += [f"retries {node.retries}"] if node.retries else []
    values += [f"at most {node.seconds:g} s"] if node.seconds is not None else []
    lines += [Text(value, style="yellow") for value in values]
    longest = max(map(len, node.takes), default=0)
    for name, source in node.takes.items():
        lines.append(Text.assemble((f"{name:{longest}} ← ", "dim"), source))
    for name in node.operator.outputs:
        if not name or name in node.wanted:
            gives = f"{node.name}.{name}" if name else node.name
            lines.append(Text.assemble(("→ ", "dim"), (f".{name} " if name else ""), (str(kinds[gives]), "dim")))
    return Text("\n").join(lines)


def _head(algorithm: Algorithm, settings: Mapping[str, str]) -> RenderableType:
    loops = {"epochs": str(algorithm.epochs), "minibatches": str(algorithm.minibatches)}
    if algorithm.skip_where_zero is not None:
        loops["skip where zero"] = algorithm.skip_where_zero
    if algorithm.resample:
        loops["resample"] = f"at most {algorithm.resample} more rounds"
    needs = [
        word
        for word, needed in (("a critic", algorithm.needs_values), ("a reference", algorithm.needs_reference))
        if needed
    ]
    if needs:
        loops["needs"] = " and ".join(needs)
    parts: list[RenderableType] = [Text(f"algorithm {algorithm.name}", style="bold")]
    if algorithm.description:
        parts.append(Padding(Text(algorithm.description), (0, 0, 0, 2)))
    parts += [Text(), _pairs("loop", loops)]
    if settings:
        parts.append(_pairs("settings", settings))
    return Group(*parts)


def _pairs(title: str, pairs: Mapping[str, str]) -> RenderableType:
    """`name value` after `name value`, as many in a line as fit; none is broken."""
    table = Table.grid(padding=(0, 2, 0, 0))
    items = [Text.assemble((name, "dim"), " ", value) for name, value in pairs.items()]
    for item in items:
        item.no_wrap = True
    table.add_row(Text(f"{title:8}", style="bold"), Flow(items))
    return table


class Flow:
    """Pieces of text one after the other, each whole in its line."""

    def __init__(self, items: Iterable[Text]) -> None:
        self.items = list(items)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As many in a line as fit."""
        line = Text()
        for item in self.items:
            if line and line.cell_len + 3 + item.cell_len > options.max_width:
                yield line
                line = Text()
            line = Text.assemble(line, (" · ", "dim"), item) if line else item.copy()
        yield line


def _settings(run: RunConfig) -> dict[str, str]:
    """The values of the keys that the file sets, and what the file says where the run has another one."""
    values = dict(leaves(run.rl.model_dump(mode="json")))
    shown: dict[str, str] = {}
    for key, value in leaves(read_spec(find_algorithm(run.rl.algorithm)).settings):
        now, there = _number(values[key]), _number(value)
        shown[".".join(key)] = now if values[key] == value or now == there else f"{now} (the file has {there})"
    return shown


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
