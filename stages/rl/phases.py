"""What has no use in a phase of a step, and leaves the card for it in colocated mode."""

from contextlib import AbstractContextManager, nullcontext

from stages.rl.engine import is_shared
from stages.rollout.engine import Engine
from stages.trainer.learner import Learner
from stages.trainer.offload import away, optimizer_state, parameters
from stages.trainer.policy import Policy


class Phases:
    """Of a rank. What the engine has no use for while the policy learns goes with `Engine.sleep`."""

    def __init__(self, colocated: bool, learner: Learner, reference: Policy | None, engine: Engine) -> None:
        """Where it is not `colocated`, all stays where it is."""
        self.colocated, self.learner, self.reference, self.engine = colocated, learner, reference, engine

    def rollout(self) -> AbstractContextManager[None]:
        """All of a rollout: optimizer and reference are away. The policy stays, for it is compared with the engine."""
        if not self.colocated:
            return nullcontext()
        frozen = parameters(self.reference) if self.reference is not None else []
        return away([*optimizer_state(self.learner), *frozen])

    def playing(self) -> AbstractContextManager[None]:
        """The part of it in which the engine generates: the policy is away as well, where the engine has a copy."""
        if not self.colocated or is_shared(self.engine, self.learner):
            return nullcontext()
        return away(parameters(self.learner.policy))
