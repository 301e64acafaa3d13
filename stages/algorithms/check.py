"""What an algorithm file means: every name, value, kind and order is checked before anything runs."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from stages.algorithms.algorithm import LOSS, Algorithm
from stages.algorithms.kinds import GIVEN, Kind
from stages.algorithms.node import FORWARD, REFERENCE, Node
from stages.algorithms.operator import Operator, providers
from stages.algorithms.spec import AlgorithmSpec, NodeSpec, near


class Checker:
    """Checks one file, section by section."""

    def __init__(self, path: Path, spec: AlgorithmSpec, operators: Mapping[str, Operator]) -> None:
        """Nothing is known yet but the given quantities."""
        self.path, self.spec, self.operators = path, spec, operators
        self.kinds = dict(GIVEN)
        self.made_in: dict[str, str] = dict.fromkeys(GIVEN, "given")

    def algorithm(self) -> Algorithm:
        """The algorithm of the file."""
        spec = self.spec
        self._check_names()
        for section, nodes in (("experience", spec.experience), ("update", spec.update)):
            for name, node in nodes.items():
                self._declare(section, name, self._operator(section, name, node))
        experience = self._nodes("experience", spec.experience)
        update = self._nodes("update", spec.update)
        self._check_loss()
        self._check_metrics()
        self._check_resample(experience)
        self._check_used((*experience, *update))
        taken = {source for node in (*experience, *update) for source in node.takes.values()} | self._ends()
        return Algorithm(
            name=self.path.stem,
            description=spec.description,
            epochs=spec.epochs,
            minibatches=spec.minibatches,
            skip_where_zero=spec.skip_where_zero,
            resample=spec.resample,
            experience=tuple(_with_wanted(node, taken) for node in experience),
            update=tuple(_with_wanted(node, taken) for node in update),
            experience_metrics={m: s for m, s in spec.metrics.items() if self.made_in[s] == "experience"},
            update_metrics={m: s for m, s in spec.metrics.items() if self.made_in[s] == "update"},
            kinds=self.kinds,
            carried=frozenset(s for node in update for s in node.takes.values() if self.made_in[s] != "update"),
        )

    def _check_names(self) -> None:
        names = [*self.spec.experience, *self.spec.update]
        for name in names:
            if not name.isidentifier():
                raise self._error(name, "a node's name is made of letters, digits and _")
            if name in GIVEN:
                raise self._error(name, "is the name of a given quantity; choose another")
            if names.count(name) > 1:
                raise self._error(name, "is in experience and in update; choose two names")

    def _operator(self, section: str, name: str, node: NodeSpec) -> Operator:
        """The node's operator, its values and the names of its inputs checked."""
        op = self.operators.get(node.operator)
        if op is None:
            hint = near(node.operator, self.operators) or f"; the operators are {', '.join(sorted(self.operators))}"
            raise self._error(name, f"there is no operator {node.operator!r}{hint}")
        if op.name == REFERENCE and section == "update":
            raise self._error(name, "the reference never changes: compute it in experience, and take it from there")
        if op.whole_batch and section == "update":
            raise self._error(name, f"{op.name} compares samples of the whole batch: it belongs in experience")
        for input_name in node.takes.keys() - op.inputs.keys():
            wanted = f"it takes {', '.join(op.inputs) or 'nothing'}"
            raise self._error(name, f"{op.name} has no input {input_name!r}{near(input_name, op.inputs)}; {wanted}")
        for value in node.values.keys() - op.values.keys():
            wanted = f"it has {', '.join(op.values) or 'none'}"
            raise self._error(name, f"{op.name} has no value {value!r}{near(value, op.values)}; {wanted}")
        for value in op.required_values:
            if value not in node.values:
                raise self._error(name, f"{op.name} needs the value {value!r}, under `values:`")
        return op

    def _declare(self, section: str, name: str, op: Operator) -> None:
        for suffix, kind in op.gives.items():
            self.kinds[name + suffix] = kind
            self.made_in[name + suffix] = section

    def _nodes(self, section: str, specs: Mapping[str, NodeSpec]) -> list[Node]:
        """The section's nodes, in an order in which each finds what it takes."""
        nodes = {name: self._node(section, name, spec) for name, spec in specs.items()}
        for forward in (FORWARD, REFERENCE):
            same = [name for name, node in nodes.items() if node.operator.name == forward]
            if len(same) > 1:
                raise self._error(same[1], f"a second forward pass would give the same: take from {same[0]}")
        return self._in_order(section, nodes)

    def _in_order(self, section: str, nodes: dict[str, Node]) -> list[Node]:
        """The order of the file, except that a node comes after those that it waits for."""
        sources = {name: _sources(node) & nodes.keys() for name, node in nodes.items()}
        ordered = dict[str, Node]()
        while len(ordered) < len(nodes):
            free = (name for name in nodes if name not in ordered and sources[name] <= ordered.keys())
            name = next(free, None)
            if name is None:
                circle = " -> ".join(_circle({name: sources[name] - ordered.keys() for name in nodes.keys() - ordered}))
                raise self._error(section, f"each of these waits for the one before it: {circle}")
            ordered[name] = nodes[name]
        return list(ordered.values())

    def _node(self, section: str, name: str, spec: NodeSpec) -> Node:
        op = self.operators[spec.operator]
        for input_name, kind in op.inputs.items():
            if input_name not in spec.takes:
                raise self._error(
                    name, f"{op.name} needs the input {input_name!r} ({kind}); {self._who_gives(kind, input_name)}"
                )
            self._check_source(section, name, input_name, spec.takes[input_name], kind)
        values = {value: self._value(name, op, value, given) for value, given in spec.values.items()}
        node = Node(name, f"{self.path}: {section}.{name}", op, dict(spec.takes), values, spec.retries, spec.seconds)
        if node.in_order and (spec.retries or spec.seconds):
            raise self._error(
                name,
                f"{op.name} runs on all ranks together: retries or a limit of seconds on one of them would leave the "
                "others waiting; they are for operators that work by themselves",
            )
        return node

    def _value(self, name: str, op: Operator, value: str, given: object) -> object:
        try:
            return op.check_value(value, given)
        except ValueError as error:
            raise self._error(name, f"the value {value!r} of {op.name}: {error}") from error

    def _check_source(self, section: str, name: str, input_name: str, source: str, kind: Kind) -> None:
        """`source` is there, is of `kind`, and is made before `section` needs it."""
        self._check_known(name, f"the input {input_name!r}", source, kind)
        if section == "experience" and self.made_in[source] == "update":
            raise self._error(name, f"{input_name!r} takes {source}, but the experience runs before the update")
        found = self.kinds[source]
        if section == "update" and kind is Kind.GROUP:
            raise self._error(name, f"{input_name!r} is {kind}, and a micro-batch may hold a part of a group")
        if found is not kind:
            hint = "; over_tokens makes one of the other" if (found, kind) == (Kind.SAMPLE, Kind.TOKEN) else ""
            raise self._error(name, f"{input_name!r} takes what is {kind}, but {source} is {found}{hint}")

    def _check_known(self, name: str, what: str, source: str, kind: Kind | None) -> None:
        if source in self.kinds:
            return
        node = source.partition(".")[0]
        outputs = [quantity for quantity in self.kinds if quantity.partition(".")[0] == node]
        if outputs:
            hint = f"; {node} gives {', '.join(outputs)}"
        else:
            hint = near(source, self.kinds)
            hint += f"; {self._who_gives(kind, source.rpartition('.')[2])}" if kind else ""
        raise self._error(name, f"nothing gives {source!r} for {what}{hint}")

    def _who_gives(self, kind: Kind, output: str) -> str:
        given = [name for name, its_kind in self.kinds.items() if its_kind is kind]
        here = f"of this kind the file has {', '.join(given)}" if given else "the file has nothing of this kind"
        return f"{here}, and these operators give it: {', '.join(providers(self.operators, kind, output)) or 'none'}"

    def _check_loss(self) -> None:
        makers = ", ".join(providers(self.operators, Kind.SCALAR, ""))
        if LOSS not in self.spec.update:
            raise self._error(
                "update", f"has no node {LOSS!r}, which is what is minimised; it could be one of {makers}"
            )
        if self.kinds.get(LOSS) is not Kind.SCALAR:
            raise self._error(LOSS, f"must be a scalar: {makers}")

    def _check_metrics(self) -> None:
        for metric, source in self.spec.metrics.items():
            self._check_known("metrics", metric, source, None)
            if self.kinds[source] is Kind.GROUP or self.made_in[source] == "given":
                raise self._error("metrics", f"{metric}: take a node's output per token, per sample, or a scalar")
        skip = self.spec.skip_where_zero
        if skip is not None:
            self._check_known("skip_where_zero", "it", skip, None)
            if self.made_in[skip] == "update" or self.kinds[skip] not in (Kind.SAMPLE, Kind.TOKEN):
                raise self._error("skip_where_zero", f"{skip} must be of the experience, per sample or per token")

    def _check_resample(self, experience: Iterable[Node]) -> None:
        """A round of rollouts can be judged as soon as it was played."""
        if not self.spec.resample:
            return
        skip = self.spec.skip_where_zero
        if skip is None:
            raise self._error("resample", "needs skip_where_zero, which says what teaches nothing and is replaced")
        sources = {node.name: _sources(node) for node in experience}
        for name in _reached(sources, {skip}) & sources.keys():
            if self.spec.experience[name].operator in (FORWARD, REFERENCE):
                raise self._error(
                    "resample",
                    f"{skip} waits for the forward pass {name}, but rounds are judged before any; take a quantity made "
                    "of what is given alone",
                )

    def _check_used(self, nodes: Iterable[Node]) -> None:
        """Every node leads to the loss, a metric, or what decides on skipping: else it was wired wrongly."""
        sources = {node.name: _sources(node) for node in nodes}
        used = _reached(sources, self._ends())
        for name in sources:
            if name not in used:
                raise self._error(name, "nobody takes what it gives: neither the loss, nor a metric, nor their inputs")
        learned = _reached(sources, {LOSS})
        if not any(name in learned and spec.operator == FORWARD for name, spec in self.spec.update.items()):
            raise self._error(LOSS, f"does not follow from {FORWARD} in the update, so it has no gradient")

    def _ends(self) -> set[str]:
        skip = self.spec.skip_where_zero
        return {LOSS, *self.spec.metrics.values(), *([] if skip is None else [skip])}

    def _error(self, name: str, problem: str) -> ValueError:
        section = next((s for s in ("experience", "update") if name in getattr(self.spec, s)), None)
        return ValueError(f"{self.path}: {f'{section}.' if section else ''}{name}: {problem}")


def _sources(node: Node) -> set[str]:
    """The nodes, or given quantities, that it takes from."""
    return {source.partition(".")[0] for source in node.takes.values()}


def _circle(sources: Mapping[str, set[str]]) -> list[str]:
    """Nodes each of which waits for the one before it, and the first again; each of `sources` waits for another."""
    path = [min(sources)]
    while path[-1] not in path[:-1]:
        path.append(min(sources[path[-1]]))
    return path[path.index(path[-1]) :][::-1]


def _reached(sources: Mapping[str, set[str]], ends: Iterable[str]) -> set[str]:
    """The nodes that `ends` are made of, themselves included."""
    reached, waiting = set[str](), [end.partition(".")[0] for end in ends]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += sources.get(name, ())
    return reached


def _with_wanted(node: Node, taken: set[str]) -> Node:
    wanted = {output for output in node.operator.outputs if f"{node.name}.{output}" in taken}
    return replace(node, wanted=frozenset(wanted))
