"""The site's topology file: supernodes, their nodes and cards, and the links between cards."""

import difflib
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import BeforeValidator, Field, PositiveInt, ValidationError, model_validator

from data.section import Section
from slurm.query.nodelist import expand

Level = Literal["island", "node", "supernode", "between_supernodes", "between_pods"]
"""How far apart two cards are: the smallest of these that holds both."""
LEVELS: tuple[Level, ...] = get_args(Level)
"""The closest first."""
Scheduler = Literal["tree", "block", "features", "none"]


def _names(value: Any) -> Any:
    """A node list of Slurm, or several of them, as names."""
    if isinstance(value, str):
        return tuple(expand(value))
    if isinstance(value, list):
        return tuple(name for item in value for name in expand(str(item)))
    return value


class Link(Section):
    """A class of links."""

    name: str
    """MetaXLink, optical link, RoCE ..."""
    all_reduce: tuple[float, float] | None = None
    """Bus bandwidth of an all-reduce over such links, at least and at most, in GB/s."""
    source: str = ""
    """Who measured or promised it."""

    @model_validator(mode="after")
    def _range(self) -> Self:
        if self.all_reduce and not 0 < self.all_reduce[0] <= self.all_reduce[1]:
            raise ValueError(f"all_reduce {list(self.all_reduce)} is no range: the smaller number comes first, above 0")
        return self


class Links(Section):
    """The class of the links at each level; a level that is left out is unknown."""

    island: Link | None = None
    """Cards of one island, where nodes have several."""
    node: Link | None = None
    """Cards of one node, where it has islands in two of them."""
    supernode: Link | None = None
    """Cards of two nodes of one supernode."""
    between_supernodes: Link | None = None
    between_pods: Link | None = None


class Supernode(Section):
    """Nodes with fast links among them."""

    name: str
    nodes: Annotated[tuple[str, ...], BeforeValidator(_names), Field(min_length=1)]
    """In Slurm's syntax: mx[0-7]."""
    pod: str | None = None
    """The group above, such as a group of a dragonfly; for all supernodes or for none."""
    cards: PositiveInt | None = None
    """Cards of each node, where it is not the site's number."""
    islands: PositiveInt | None = None


class Topology(Section):
    """A topology file."""

    cards: PositiveInt
    """Cards of each node."""
    islands: PositiveInt = 1
    """Groups of cards within a node that have faster links among them, all of one size."""
    scheduler: Scheduler = "none"
    """What Slurm knows of the supernodes. tree: they are leaf switches; block: they are blocks; features: the name of
    each is a feature of its nodes; none: nothing."""
    supernodes: tuple[Supernode, ...] = Field(min_length=1)
    links: Annotated[Links, BeforeValidator(lambda value: {} if value is None else value)] = Links()
    nics: tuple[str, ...] = ()
    """Names of network cards, for people; what a job uses stands in slurm.interface and slurm.environment."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for what, names in (
            ("supernode", [supernode.name for supernode in self.supernodes]),
            ("node", [node for supernode in self.supernodes for node in supernode.nodes]),
        ):
            for name, count in Counter(names).items():
                if count > 1:
                    homes = [each.name for each in self.supernodes if name in each.nodes]
                    where = f" ({', '.join(dict.fromkeys(homes))})" if homes else ""
                    raise ValueError(f"the {what} {name} is here {count} times{where}; each has one place")
        with_pod = [supernode.name for supernode in self.supernodes if supernode.pod]
        if with_pod and len(with_pod) < len(self.supernodes):
            without = next(supernode.name for supernode in self.supernodes if not supernode.pod)
            raise ValueError(f"{with_pod[0]} has a pod and {without} has none; give all supernodes one, or none")
        for supernode in self.supernodes:
            cards, islands = self.cards_of(supernode), self.islands_of(supernode)
            if cards % islands:
                raise ValueError(f"{supernode.name}: {cards} cards are not {islands} islands of one size")
        return self

    def cards_of(self, supernode: Supernode) -> int:
        """Cards of each node of a supernode."""
        return supernode.cards or self.cards

    def islands_of(self, supernode: Supernode) -> int:
        """Islands of each node of a supernode."""
        return supernode.islands or self.islands

    @cached_property
    def home(self) -> dict[str, int]:
        """The place in `supernodes` of each node's supernode."""
        return {node: place for place, supernode in enumerate(self.supernodes) for node in supernode.nodes}

    def supernode_of(self, node: str) -> Supernode | None:
        """The supernode of a node; None when the file does not place it."""
        place = self.home.get(node)
        return None if place is None else self.supernodes[place]

    @cached_property
    def num_cards(self) -> int:
        """Cards of the site."""
        return sum(len(supernode.nodes) * self.cards_of(supernode) for supernode in self.supernodes)

    def level(self, one: str, other: str) -> Level:
        """How far apart two nodes are. One that the file does not place is as far from the others as there is."""
        if one == other:
            return "node"
        first, second = self.home.get(one), self.home.get(other)
        if first is not None and first == second:
            return "supernode"
        if first is None or second is None:
            return "between_pods" if self.supernodes[0].pod else "between_supernodes"
        same_pod = self.supernodes[first].pod == self.supernodes[second].pod
        return "between_supernodes" if same_pod else "between_pods"

    def level_of_cards(self, one: tuple[str, int], other: tuple[str, int]) -> Level:
        """How far apart two cards are, each given as its node and its number there."""
        node = one[0]
        if node != other[0]:
            return self.level(node, other[0])
        home = self.supernode_of(node)
        if home is None or self.islands_of(home) == 1:
            return "node"
        size = self.cards_of(home) // self.islands_of(home)
        return "island" if one[1] // size == other[1] // size else "node"

    def expected(self, level: Level) -> tuple[float, float] | None:
        """The all-reduce bandwidth in GB/s, at least and at most, that the file expects; None when it says nothing."""
        link: Link | None = getattr(self.links, level)
        return link.all_reduce if link else None

    def link_name(self, level: Level) -> str:
        """What people call the links of a level."""
        link: Link | None = getattr(self.links, level)
        where = level.replace("_", " ") if level.startswith("between") else f"within {level}"
        return link.name if link else f"an unknown link {where}"


def load(path: Path) -> Topology:
    """Read a topology file. Raises ValueError with file, line and key of each mistake."""
    try:
        text = path.read_text()
        values, node = yaml.safe_load(text), yaml.compose(text, yaml.SafeLoader)
    except OSError as error:
        raise ValueError(f"slurm.topology: {path}: {error.strerror}; `qianka doctor --topology` drafts one") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"slurm.topology: {path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"slurm.topology: {path} is no topology file: it has no `supernodes:`")
    try:
        return Topology.model_validate(values)
    except ValidationError as error:
        mistakes = [_mistake(path, node, detail) for detail in error.errors(include_url=False)]
        raise ValueError("\n".join(mistakes)) from error


def _mistake(path: Path, node: Any, detail: Any) -> str:
    """One mistake that pydantic found, with its line, which is that of the nearest key above."""
    line, key = 0, ".".join(str(part) for part in detail["loc"])
    for part in detail["loc"]:
        if isinstance(node, yaml.MappingNode):
            found = next(((name, value) for name, value in node.value if name.value == part), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    about = f"{path}:{line}: " if line else f"{path}: "
    about += f"`{key}`: " if key else ""
    if detail["type"] == "extra_forbidden":
        return about + "unknown key" + _valid(detail["loc"])
    return about + detail["msg"].removeprefix("Value error, ")


def _valid(location: tuple[int | str, ...]) -> str:
    section = {1: Topology, 2: Links, 3: Link if location[0] == "links" else Supernode}[len(location)]
    valid = list(section.model_fields)
    near = difflib.get_close_matches(str(location[-1]), valid, 1)
    return (f"; did you mean `{near[0]}`?" if near else ".") + f" Valid: {', '.join(valid)}"
