"""Runs nodes side by side, each as soon as what it takes is there.

Nodes that run the policy or talk to other ranks run in the caller's thread, in the order of the list, which is the same
on all ranks: in another order they would wait for each other for ever. All others run in threads; the only one that can
run needs none.
"""

import sys
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any, Never

from stages.algorithms.gradient import number_in_order
from stages.algorithms.kinds import Batch, Kind
from stages.algorithms.node import Node
from stages.algorithms.order import sources
from stages.algorithms.threads import start

if TYPE_CHECKING:
    from torch import Tensor


class SideBySide:
    """One run. State is changed under `lock`, by whoever has run a node; the caller hears of what concerns it."""

    def __init__(
        self,
        nodes: Sequence[Node],
        followers: Mapping[str, list[Node]],
        batch: Batch,
        known: Mapping[str, "Tensor"],
        sizes: Mapping[Kind, int],
    ) -> None:
        self.nodes, self.followers, self.batch, self.sizes = nodes, followers, batch, sizes
        self.apart = replace(batch, forward=_refuse, reduce=_refuse, reference=None)
        """What a node in a thread may have of the batch."""
        self.quantities = dict(known)
        self.missing = {node.name: len(sources(node) & followers.keys()) for node in nodes}
        self.in_order = deque(node for node in nodes if node.in_order)
        self.left = len(nodes)
        self.running: dict[str, tuple[Node, float]] = {}
        """Nodes in threads, and when they began."""
        self.error: BaseException | None = None
        self.to_caller = SimpleQueue[Node | None]()
        """Nodes that are the caller's and can run; None makes it look at errors, at the clock, and at the end."""
        self.lock = Lock()
        self.modes = _modes()
        self.threads_used = False

    def result(self) -> dict[str, "Tensor"]:
        """Run all nodes."""
        self._call_caller()
        node = self._share([node for node in self.nodes if not self.missing[node.name] and not node.in_order])
        while node := node or self._wait():
            try:
                made = node.run(self.batch if node.in_order else self.apart, self.quantities, self.sizes)
            except BaseException as error:
                self.error = error  # nothing more is begun in the threads
                raise
            with self.lock:
                node = self._share(self._done(node, made))
        if self.threads_used and self.modes[0]:
            number_in_order(self.nodes, self.quantities)
        return self.quantities

    def _share(self, ready: list[Node]) -> Node | None:
        """Give each a thread, but for one that the caller runs when it has nothing of its own to wait for."""
        alone = len(ready) == 1 and not self.running and self.to_caller.empty()
        mine = None
        if ready and ready[0].seconds is None and (alone or not self.in_order):
            mine = ready.pop(0)
        self._begin(ready)
        return mine

    def _begin(self, ready: list[Node]) -> None:
        for node in ready if self.error is None else ():
            self._note(node)
            start(lambda node=node: self._work(node))

    def _note(self, node: Node) -> None:
        self.running[node.name] = (node, time.monotonic())
        self.threads_used = True
        if node.seconds is not None:
            self.to_caller.put(None)

    def _work(self, node: Node | None) -> None:
        """In a thread: run a node, then one of those that waited for it; others get threads of their own."""
        with _in_modes(*self.modes):
            while node is not None:
                try:
                    made = node.run(self.apart, self.quantities, self.sizes)
                except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
                    self.error = self.error or error
                    self.to_caller.put(None)
                    return
                with self.lock:
                    self._check_limits()
                    del self.running[node.name]
                    ready = self._done(node, made)
                    node = ready.pop(0) if ready and self.error is None else None
                    if node is not None:
                        self._note(node)
                    self._begin(ready)

    def _done(self, node: Node, made: Mapping[str, "Tensor"]) -> list[Node]:
        """Note what a node has made; those that can run now, without the caller's own."""
        self.quantities |= made
        self.left -= 1
        for follower in self.followers[node.name]:
            self.missing[follower.name] -= 1
        self._call_caller()
        return [f for f in self.followers[node.name] if not self.missing[f.name] and not f.in_order]

    def _call_caller(self) -> None:
        if self.in_order and not self.missing[self.in_order[0].name]:
            self.to_caller.put(self.in_order.popleft())
        elif not self.left or self.error is not None:
            self.to_caller.put(None)

    def _wait(self) -> Node | None:
        """The caller's next node, or None when all have run. Raises the first error of the threads."""
        while True:
            with self.lock:
                self._check_limits()
                if self.error is not None:
                    raise self.error
                if not self.left:
                    return None
                ends = [began + node.seconds for node, began in self.running.values() if node.seconds is not None]
            try:
                node = self.to_caller.get(timeout=max(0.0, min(ends) - time.monotonic()) if ends else None)
            except Empty:
                continue
            if node is not None and self.error is None:
                return node

    def _check_limits(self) -> None:
        for node, began in self.running.values():
            if node.seconds is not None and time.monotonic() - began > node.seconds:
                text = f"{node.where}: {node.operator.name} took longer than its {node.seconds:g} seconds"
                self.error = self.error or TimeoutError(text)


def _refuse(_: Any) -> Never:
    raise ValueError(
        "only an @operator(whole_batch=True) may talk to other ranks, and only policy_forward runs the policy"
    )


def _modes() -> tuple[bool, int, int | None]:
    """Of this thread: whether it records gradients, how many cores an operation takes, and the card that is meant.

    All belong to a thread: the last bits of a result depend on the cores, and a new thread's card is the first one. Who
    has tensors has torch; this package does not import it.
    """
    torch = sys.modules["torch"]
    card = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    return torch.is_grad_enabled(), torch.get_num_threads(), card


@contextmanager
def _in_modes(grad: bool, cores: int, card: int | None) -> Generator[None]:
    torch = sys.modules["torch"]
    if torch.get_num_threads() != cores:
        torch.set_num_threads(cores)
    if card is not None:
        torch.cuda.set_device(card)
    with torch.set_grad_enabled(grad):
        yield
