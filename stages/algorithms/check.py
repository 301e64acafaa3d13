"""What an algorithm file means: every name, value, kind and order is checked before anything runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stages.algorithms.algorithm import LOSS, Algorithm
from stages.algorithms.kinds import GIVEN, Kind
from stages.algorithms.node import FORWARD, REFERENCE, Node
from stages.algorithms.operator import Operator, providers
from stages.algorithms.order import in_order, reached
from stages.algorithms.scope import Scope
from stages.algorithms.spec import AlgorithmSpec, NodeSpec, near


class Checker:
    """Checks one file, section by section."""

    def __init__(self, path: Path, spec: AlgorithmSpec, operators: Mapping[str, Operator]) -> None:
        self.path, self.spec, self.operators = path, spec, operators
        self.scope = Scope(operators, self._error)

    def algorithm(self) -> Algorithm:
        """The algorithm of the file."""
        spec, kinds, made_in = self.spec, self.scope.kinds, self.scope.made_in
        self._check_names()
        for section, nodes in (("experience", spec.experience), ("update", spec.update)):
            for name, node in nodes.items():
                self.scope.declare(section, name, self._operator(section, name, node))
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
            experience_metrics={m: s for m, s in spec.metrics.items() if made_in[s] == "experience"},
            update_metrics={m: s for m, s in spec.metrics.items() if made_in[s] == "update"},
            kinds=kinds,
            carried=frozenset(s for node in update for s in node.takes.values() if made_in[s] != "update"),
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

    def _nodes(self, section: str, specs: Mapping[str, NodeSpec]) -> list[Node]:
        """The section's nodes, in an order in which each finds what it takes."""
        nodes = {name: self._node(section, name, spec) for name, spec in specs.items()}
        for forward in (FORWARD, REFERENCE):
            same = [name for name, node in nodes.items() if node.operator.name == forward]
            if len(same) > 1:
                raise self._error(same[1], f"a second forward pass would give the same: take from {same[0]}")
        ordered, circle = in_order(nodes.values())
        if circle:
            raise self._error(section, f"each of these waits for the one before it: {' -> '.join(circle)}")
        return ordered

    def _node(self, section: str, name: str, spec: NodeSpec) -> Node:
        op = self.operators[spec.operator]
        for input_name in op.inputs:
            self.scope.check_input(section, name, input_name, spec.takes.get(input_name), op)
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

    def _check_loss(self) -> None:
        makers = ", ".join(providers(self.operators, Kind.SCALAR, ""))
        if LOSS not in self.spec.update:
            raise self._error(
                "update", f"has no node {LOSS!r}, which is what is minimised; it could be one of {makers}"
            )
        if self.scope.kinds.get(LOSS) is not Kind.SCALAR:
            raise self._error(LOSS, f"must be a scalar: {makers}")

    def _check_metrics(self) -> None:
        kinds, made_in = self.scope.kinds, self.scope.made_in
        for metric, source in self.spec.metrics.items():
            self.scope.check_known("metrics", metric, source, None)
            if kinds[source] is Kind.GROUP or made_in[source] == "given":
                raise self._error("metrics", f"{metric}: take a node's output per token, per sample, or a scalar")
        skip = self.spec.skip_where_zero
        if skip is not None:
            self.scope.check_known("skip_where_zero", "it", skip, None)
            if made_in[skip] == "update" or kinds[skip] not in (Kind.SAMPLE, Kind.TOKEN):
                raise self._error("skip_where_zero", f"{skip} must be of the experience, per sample or per token")

    def _check_resample(self, experience: Iterable[Node]) -> None:
        """A round of rollouts can be judged as soon as it was played."""
        if not self.spec.resample:
            return
        skip = self.spec.skip_where_zero
        if skip is None:
            raise self._error("resample", "needs skip_where_zero, which says what teaches nothing and is replaced")
        for name in reached(experience, {skip}) & self.spec.experience.keys():
            if self.spec.experience[name].operator in (FORWARD, REFERENCE):
                raise self._error(
                    "resample",
                    f"{skip} waits for the forward pass {name}, but rounds are judged before any; take a quantity made "
                    "of what is given alone",
                )

    def _check_used(self, nodes: Sequence[Node]) -> None:
        """Every node leads to the loss, a metric, or what decides on skipping: else it was wired wrongly."""
        used, learned = reached(nodes, self._ends()), reached(nodes, {LOSS})
        for node in nodes:
            if node.name not in used:
                raise self._error(
                    node.name, "nobody takes what it gives: neither the loss, nor a metric, nor their inputs"
                )
        if not any(name in learned and spec.operator == FORWARD for name, spec in self.spec.update.items()):
            raise self._error(LOSS, f"does not follow from {FORWARD} in the update, so it has no gradient")

    def _ends(self) -> set[str]:
        skip = self.spec.skip_where_zero
        return {LOSS, *self.spec.metrics.values(), *([] if skip is None else [skip])}

    def _error(self, name: str, problem: str) -> ValueError:
        section = next((s for s in ("experience", "update") if name in getattr(self.spec, s)), None)
        return ValueError(f"{self.path}: {f'{section}.' if section else ''}{name}: {problem}")


def _with_wanted(node: Node, taken: set[str]) -> Node:
    wanted = {output for output in node.operator.outputs if f"{node.name}.{output}" in taken}
    return replace(node, wanted=frozenset(wanted))
