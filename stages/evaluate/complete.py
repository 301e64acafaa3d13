"""One policy answers cases of a suite, and the environment grades the answers."""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast

from stages.environments.base import BaseEnvironment
from stages.evaluate.graded import graded_row
from stages.evaluate.suites import Case, Suite
from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Engine
from stages.rollout.episodes import encode_first, play_episodes
from stages.rollout.flight import Start


def complete(
    engine: Engine,
    tokenizer: PreTrainedTokenizerFast,
    environment: BaseEnvironment,
    sampling: SamplingConfig,
    suite: Suite,
    cases: Sequence[Case],
    on_progress: Callable[[int], None],
) -> list[dict[str, Any]]:
    """Graded rows of `cases`, which are all or some of those of `suite`. `on_progress` is told how many have ended."""
    rows: list[dict[str, Any]] = []
    for noise in sorted({case.noise for case in cases}):  # one call of the engine has one chance of noise
        some = [case for case in cases if case.noise == noise]
        before = len(rows)
        played = play_episodes(
            engine,
            tokenizer,
            environment,
            [Start(c.task, encode_first(engine, tokenizer, c.task["id"], c.prompt), c.seed) for c in some],
            sampling.model_copy(update={"slots": suite.slots}),
            greedy=suite.greedy,
            noise=noise,
            on_progress=lambda ended, before=before: on_progress(before + ended),
        )
        rows += [graded_row(case, episode) for case, episode in zip(some, played, strict=True)]
    return rows
