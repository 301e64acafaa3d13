"""Runs a graph as it stands: branches side by side, with the results that one after the other would have.

Nodes that run the policy or talk to other ranks run in the caller's thread, in the order of the list, which is the same
on all ranks: in another order they would wait for each other for ever. All others run in threads, as soon as what they
take is there; the only one that can run needs no thread.
"""

import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from threading import Condition
from typing import TYPE_CHECKING, Any, Never

from stages.algorithms.gradient import number_in_order
from stages.algorithms.kinds import Batch, Kind
from stages.algorithms.node import Node
from stages.algorithms.threads import start

if TYPE_CHECKING:
    from torch import Tensor


class Graph:
    """The nodes of one section, in an order in which each finds what it takes, and who waits for whom."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)

    @cached_property
    def sources(self) -> dict[str, frozenset[str]]:
        """By node, the nodes of this graph from which it takes something."""
        names = {node.name for node in self.nodes}
        return {
            node.name: frozenset(source.partition(".")[0] for source in node.takes.values()) & names
            for node in self.nodes
        }

    @cached_property
    def followers(self) -> dict[str, list[Node]]:
        """By node, those that wait for it."""
        return {name: [node for node in self.nodes if name in self.sources[node.name]] for name in self.sources}

    def run(
        self, batch: Batch, known: Mapping[str, "Tensor"], kinds: Mapping[str, Kind], finite: Iterable[str] = ()
    ) -> dict[str, "Tensor"]:
        """The known quantities and all that the nodes make of them. Raises the first error that any node met.

        A node over its time limit is a TimeoutError, as soon as the caller's thread has nothing else to do. Its thread
        goes on, since a thread cannot be killed; it does not hold up the end of the process, which the error is.
        ArithmeticError when a quantity of `finite` is not: it names the first node that gave such a value.
        """
        made = _Run(self, batch, known, _sizes(batch, known, kinds)).result()
        wrong = [name for name in sorted(finite) if not bool(made[name].isfinite().all())]
        if wrong:
            raise ArithmeticError(self._not_finite(wrong, made))
        return made

    def _not_finite(self, names: Sequence[str], made: Mapping[str, "Tensor"]) -> str:
        wrong = {name for name, quantity in made.items() if not bool(quantity.isfinite().all())}
        for node in self.nodes:
            if any(node.name + suffix in wrong for suffix in node.operator.gives):
                taken = ", ".join(sorted(wrong & set(node.takes.values()))) or "nothing"
                said = f"{node.where}: {node.operator.name} gave a value that is not finite"
                return f"{said}; of what it takes, {taken} is not finite either"
        return f"{', '.join(names)}: the stage gave a value that is not finite"


class _Run:
    """One run of a graph. All state is changed under `changed`."""

    def __init__(self, graph: Graph, batch: Batch, known: Mapping[str, "Tensor"], sizes: Mapping[Kind, int]) -> None:
        self.graph, self.batch, self.sizes = graph, batch, sizes
        self.apart = replace(batch, forward=_refuse, reduce=_refuse, reference=None)
        """What a node in a thread may have of the batch."""
        self.quantities = dict(known)
        self.missing = {name: len(sources) for name, sources in graph.sources.items()}
        self.in_order = deque(node for node in graph.nodes if node.in_order)
        self.ready = [node for node in graph.nodes if not self.missing[node.name] and not node.in_order]
        self.left = len(graph.nodes)
        self.running: dict[str, tuple[Node, float]] = {}
        """Nodes in threads, and when they began."""
        self.error: BaseException | None = None
        self.modes = _modes()
        self.threads_used = False
        self.changed = Condition()

    def result(self) -> dict[str, "Tensor"]:
        """Run all nodes."""
        with self.changed:
            while self.left:
                node = self._for_caller()
                self._hand_out()
                if node is None:
                    self._wait()
                else:
                    self._done(node, self._run_here(node))
                if self.error is not None:
                    raise self.error
        if self.threads_used and self.modes[0]:
            number_in_order(self.graph.nodes, self.quantities)
        return self.quantities

    def _run_here(self, node: Node) -> dict[str, "Tensor"]:
        self.changed.release()
        try:
            return node.run(self.batch if node.in_order else self.apart, self.quantities, self.sizes)
        except BaseException as error:
            self.error = error  # nothing more is begun in the threads
            raise
        finally:
            self.changed.acquire()

    def _for_caller(self) -> Node | None:
        """What the caller's thread does next: its own nodes first, and others when it has nothing to wait for."""
        if self._own_is_ready():
            return self.in_order.popleft()
        alone = len(self.ready) == 1 and not self.running
        for node in self.ready if alone or not self.in_order else ():
            if node.seconds is None:
                self.ready.remove(node)
                return node
        return None

    def _own_is_ready(self) -> bool:
        return bool(self.in_order) and not self.missing[self.in_order[0].name]

    def _hand_out(self) -> None:
        """Give every node that can run a thread."""
        for node in self.ready:
            self._begin(node)
            start(lambda node=node: self._in_thread(node))
        self.ready.clear()

    def _begin(self, node: Node) -> None:
        self.running[node.name] = (node, time.monotonic())
        self.threads_used = True
        if node.seconds is not None:
            self.changed.notify()  # the caller's thread looks at the clock

    def _in_thread(self, node: Node | None) -> None:
        """Run a node, then one of those that waited for it; others get threads of their own."""
        with _in_modes(*self.modes):
            while node is not None:
                try:
                    made = node.run(self.apart, self.quantities, self.sizes)
                except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
                    with self.changed:
                        self.error = self.error or error
                        self.changed.notify()
                    return
                with self.changed:
                    _, began = self.running.pop(node.name)
                    self._check_limit(node, began)
                    self._done(node, made)
                    node = None
                    if self.error is None and self.ready:
                        node = self.ready.pop(0)
                        self._begin(node)
                        self._hand_out()
                    if self.error is not None or not self.left or self._own_is_ready():
                        self.changed.notify()

    def _done(self, node: Node, made: Mapping[str, "Tensor"]) -> None:
        self.quantities |= made
        self.left -= 1
        for follower in self.graph.followers[node.name]:
            self.missing[follower.name] -= 1
            if not self.missing[follower.name] and not follower.in_order:
                self.ready.append(follower)

    def _wait(self) -> None:
        """Until there is something for the caller's thread, or a node is over its limit."""
        limits = [began + node.seconds for node, began in self.running.values() if node.seconds is not None]
        self.changed.wait(max(0.0, min(limits) - time.monotonic()) if limits else None)
        for node, began in self.running.values():
            self._check_limit(node, began)

    def _check_limit(self, node: Node, began: float) -> None:
        if node.seconds is not None and time.monotonic() - began > node.seconds:
            text = f"{node.where}: {node.operator.name} took longer than its {node.seconds:g} seconds"
            self.error = self.error or TimeoutError(text)


def _sizes(batch: Batch, known: Mapping[str, "Tensor"], kinds: Mapping[str, Kind]) -> dict[Kind, int]:
    """The length of a quantity of each kind; that of the tokens without asking the device, where it can be."""
    tokens = next((len(known[name]) for name in known if kinds[name] is Kind.TOKEN), None)
    return {
        Kind.TOKEN: len(batch.sample_of_token) if tokens is None else tokens,
        Kind.SAMPLE: len(batch.lengths),
        Kind.GROUP: batch.num_groups,
    }


def _refuse(_: Any) -> Never:
    raise ValueError(
        "only an @operator(whole_batch=True) may talk to other ranks, and only policy_forward runs the policy"
    )


def _modes() -> tuple[bool, int]:
    """Whether this thread records gradients, and how many cores an operation takes, on which its last bits depend.

    Both belong to a thread. Who has tensors has torch; this package does not import it.
    """
    torch = sys.modules["torch"]
    return torch.is_grad_enabled(), torch.get_num_threads()


def _in_modes(grad: bool, cores: int) -> AbstractContextManager[None]:
    torch = sys.modules["torch"]
    if torch.get_num_threads() != cores:
        torch.set_num_threads(cores)
    return torch.set_grad_enabled(grad)
