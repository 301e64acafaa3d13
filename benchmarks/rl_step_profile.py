"""Where the time of a step of reinforcement learning goes, and how near the arithmetic is to what the machine can do.

The rl stage itself runs for a few steps, with its files, parity gate and metrics, on one thread, with a fine-tuned
model of 0.3M and one of 3.7M parameters: Dr. GRPO, and PPO, whose experience has a forward pass. The figure is the
sampled tokens/s of the first, against those of a step that would do nothing but its matrix products, at the rate of
large ones.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

import stages.rl.run as stage
import stages.rl.synchronous as loop
from benchmarks.rl_step import Warm, demo, gemm_rate, larger, open_attempt, stage_config
from data.job import Job
from stages.environments.base import BaseEnvironment
from stages.rl.forward import Forward
from stages.rl.log import StepLog
from stages.rl.parity import Gate
from stages.rl.rollouts import Player
from stages.rl.samples import Samples
from stages.rl.step_files import StepFiles
from stages.rollout.torch.slots import Slots
from stages.trainer.learner import Learner

STEPS = 5
"""The first one warms up and is not counted."""


class Clock:
    """Seconds by phase: those inside a function, less those inside a phase that it calls."""

    def __init__(self) -> None:
        """Nothing has been counted."""
        self.running: list[str] = []
        self.since = time.perf_counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.tokens: dict[str, int] = defaultdict(int)
        self.steps = 0
        self.watches = ExitStack()

    def watch(
        self, phase: str, owner: Any, name: str, tokens: Callable[..., int] | None = None, tokens_of: str = ""
    ) -> None:
        """Count the method or function `name` of `owner` as `phase`; its arguments hold tokens of that or another."""
        original = getattr(owner, name)

        def watched(*given: Any, **named: Any) -> Any:
            self._charge()
            self.running.append(phase)
            self.tokens[tokens_of or phase] += tokens(*given) if tokens else 0
            try:
                return original(*given, **named)
            finally:
                self._charge()
                self.running.pop()
                if owner is StepLog:
                    self._step_ended()

        self.watches.enter_context(patch.object(owner, name, watched))

    def _charge(self) -> None:
        now = time.perf_counter()
        self.seconds[self.running[-1] if self.running else "other"] += now - self.since
        self.since = now

    def _step_ended(self) -> None:
        """What was counted in the first step is forgotten."""
        self._charge()
        self.steps += 1
        if self.steps == 1:
            self.seconds.clear()
            self.tokens.clear()


def measure() -> dict[str, str | float]:
    """Prints a table for each model and algorithm."""
    torch.set_num_threads(1)
    reached, possible = _profile(demo(), "0.3M parameters", "dr_grpo")
    _profile(demo(), "0.3M parameters", "ppo")
    _profile(larger(), "3.7M parameters", "dr_grpo")
    _profile(larger(), "3.7M parameters", "ppo")
    return {
        "name": "rl_step_profile",
        "value": reached,
        "unit": "tokens/s",
        "baseline": possible,
        "ratio": reached / possible,
    }


def _profile(warm: Warm, size: str, algorithm: str) -> tuple[float, float]:
    """Prints a table; tokens a second, and those of the matrix products alone."""
    clock = _watch(Clock())
    with clock.watches, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        open_attempt(folder)
        stage.run(
            stage_config(STEPS, algorithm=algorithm), {"synth": warm.data, "sft": warm.tuned}, folder, Job(cpus=1)
        )
    rate, steps = gemm_rate(), clock.steps - 1
    total = sum(clock.seconds.values())
    table = Table(
        "phase", "ms a step", "share", "tokens/s", "of the matrix rate", title=f"a step of {algorithm}, {size}"
    )
    products = 0.0
    for phase, seconds in sorted(clock.seconds.items(), key=lambda item: -item[1]):
        tokens = clock.tokens[phase]
        # Each weight is multiplied once for a token forward, and twice backward.
        work = 2 * warm.parameters * tokens * (2 if phase == "update: backward" else 1)
        products += work
        speed = [f"{tokens / seconds:,.0f}", f"{work / seconds / rate:.0%}"] if tokens else ["", ""]
        table.add_row(phase, f"{1000 * seconds / steps:.1f}", f"{seconds / total:.1%}", *speed)
    played = clock.tokens["rollout: decode"]
    threads = f"matrix rate {rate / 1e9:.0f} GFLOPS on {torch.get_num_threads()} threads"
    table.add_row("step", f"{1000 * total / steps:.1f}", "", f"{played / total:,.0f}", f"{products / total / rate:.0%}")
    Console(width=100).print(
        table, f"{threads}; tokens are those that were sampled, and in the update those of the sequences"
    )
    return played / total, played / (products / rate)


def _watch(clock: Clock) -> Clock:
    def learned(samples: Samples, _: Any, picked: Any, *__: Any) -> int:
        clock.tokens["update: backward"] += (count := int(samples.lengths[picked].sum()))
        return count

    clock.watch("rollout: the rest", Player, "play")
    clock.watch("rollout: prefill", Slots, "begin", lambda _, prompts, *__: sum(map(len, prompts)))
    clock.watch("rollout: prefill", Slots, "extend", lambda _, __, ___, more: sum(map(len, more)))
    clock.watch("rollout: decode", Slots, "decode")
    clock.watch("grading", Player, "_rewarded")
    for environment in BaseEnvironment.__subclasses__():
        clock.watch("grading", environment, "step")
    clock.watch("parity", Gate, "check_generation")
    clock.watch("parity", Gate, "compare")
    clock.watch("files of rollouts", StepFiles, "read")
    clock.watch("files of rollouts", StepFiles, "write")
    clock.watch("experience: the rest", loop, "make_experience")
    clock.watch("experience: forward", Forward, "_pass")
    clock.watch("update: the rest", loop, "update")
    clock.watch("update: forward", Samples, "forward", learned)
    clock.watch("update: backward", Learner, "accumulate")
    clock.watch("update: optimizer", Learner, "step")
    clock.watch("metrics", loop, "summarise", lambda played, *_: int(played.mask.sum()), "rollout: decode")
    clock.watch("metrics", StepLog, "step")
    return clock


if __name__ == "__main__":
    print(measure())
