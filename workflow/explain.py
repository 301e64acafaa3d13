"""`qianka plan --explain`: where a run's stages would be placed on the site. It needs no cluster."""

import sys
from pathlib import Path

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from slurm.exclusions import excluded
from slurm.topology import site
from slurm.topology.choose import eligible
from slurm.topology.draw import draw, legend, relay_words
from slurm.topology.links import WHEN, loads
from slurm.topology.options import option_notes, sbatch_options
from slurm.topology.plan import Plan
from slurm.topology.planner import Need, plan
from slurm.topology.site import LEVELS, Level, Topology
from workflow.config import INPUTS, RunConfig
from workflow.paths import RunPaths

WIDTH = 80
"""Of what goes to a file."""


def explain_placement(run: RunConfig, cards: int | None) -> None:
    """Draw each stage of several ranks on the site's topology, or the rl stage as if it asked for so many cards.

    Raises ValueError without a topology file, or when a stage does not fit.
    """
    if not run.slurm.topology:
        raise ValueError(
            "slurm.topology names no file, so there is nothing to place stages on; `qianka doctor --topology` drafts "
            "one, and workflow/profiles/metax/topology.yaml is an example"
        )
    topology = site.load(Path(run.slurm.topology))
    avoided = frozenset(excluded(RunPaths(run.name).folder))
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    if cards:
        console.print(_explained("rl", topology, need_of_cards(topology, cards, run, avoided)))
        return
    shapes = {stage: run.slurm.resources(stage) for stage in INPUTS}
    several = {stage: shape for stage, shape in shapes.items() if shape.nodes * shape.tasks_per_node > 1}
    for stage, shape in several.items():
        console.print(_explained(stage, topology, Need.of(shape, avoided)))
    if not several:
        console.print("every stage of this run is one rank (slurm.STAGE.nodes, tasks_per_node); try --cards 64")


def _explained(stage: str, topology: Topology, need: Need) -> Group:
    try:
        planned = plan(topology, need)
    except ValueError as error:
        raise ValueError(f"slurm.{stage}: {error}") from error
    return explain(stage, planned, need.excluded)


def need_of_cards(topology: Topology, cards: int, run: RunConfig, avoided: frozenset[str]) -> Need:
    """The rl stage with so many cards: as many on each node as enough nodes of the site have."""
    sizes = sorted({topology.cards_of(supernode) for supernode in topology.supernodes}, reverse=True)
    if cards < sizes[0]:
        return Need(1, cards, shard_ranks=run.slurm.rl.shard_ranks, excluded=avoided)
    even = [size for size in sizes if cards % size == 0]
    if not even:
        near = max(1, round(cards / sizes[0])) * sizes[0]
        raise ValueError(f"--cards {cards}: no even share for nodes of {sizes[0]} cards; {near} is near")
    enough = [size for size in even if sum(map(len, eligible(topology, size, avoided))) >= cards // size]
    each = (enough or even)[0]
    return Need(cards // each, each, shard_ranks=run.slurm.rl.shard_ranks, excluded=avoided)


def explain(stage: str, planned: Plan, avoided: frozenset[str] = frozenset()) -> Group:
    """One stage: sizes, picture, links, options, notes."""
    ways = f" x {planned.tensor_parallel} (tensor parallel)" if planned.tensor_parallel > 1 else ""
    sizes = (
        f"{stage}: {_count(planned.world_size, 'rank')} on {_count(len(planned.nodes), 'node')} of "
        f"{_count(len(planned.supernodes), 'supernode')}; {_count(planned.replicas, 'copy')} of the model, sharded "
        f"over {planned.shard_ranks}{ways} ranks"
    )
    options = [f"--{name}={value}" for name, value in sbatch_options(planned).items()]
    notes = [*planned.notes, *option_notes(planned)]
    if planned.idle_cards:
        notes.append(f"{planned.idle_cards} cards of these nodes have no rank")
    lines = [
        f"new weights: {'; '.join(relay_words(planned)) or 'one node, no relay'}",
        f"sbatch: {' '.join(options) or 'no option'}",
        *(f"note: {note}" for note in notes),
    ]
    return Group(
        Text(sizes, style="bold"),
        draw(planned, avoided),
        Text(legend(planned, avoided), style="dim"),
        _loads(planned),
        Text(_classes(planned.topology)),
        Text(WHEN, style="dim"),
        *(Text(line) for line in lines),
        Text(""),
    )


def _loads(planned: Plan) -> Table:
    """Links by level and collective."""
    found = loads(planned)
    levels: list[Level] = [level for level in LEVELS if any(level in load.links for load in found)]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("links", no_wrap=True)
    for level in levels:
        words = level.split("_") if "_" in level else ["within", level]
        table.add_column("\n".join(words), justify="right")
    table.add_column("share of\nthe model", justify="right")
    for load in found:
        share = "activations" if load.share is None else f"{load.share:.3g}"
        table.add_row(load.name, *(f"{load.links.get(level, 0):,}" for level in levels), share)
    return table


def _classes(topology: Topology) -> str:
    """What the links of each level are."""
    words: list[str] = []
    for level in LEVELS:
        expected = topology.expected(level)
        speed = f" {expected[0]:g}-{expected[1]:g} GB/s" if expected else ""
        if getattr(topology.links, level):
            words.append(f"{level.replace('_', ' ')} {topology.link_name(level)}{speed}")
    return "link classes: " + (", ".join(words) or "the file names none")


def _count(number: int, word: str) -> str:
    plural = {"copy": "copies"}.get(word, f"{word}s")
    return f"{number} {word if number == 1 else plural}"
