"""One policy answers cases of a suite, and the environment grades the answers."""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast

from data.tokenizer import decode, encode_prompt
from stages.environments.base import BaseEnvironment
from stages.evaluate.graded import grade
from stages.evaluate.suites import Case, Suite
from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Engine, Request, generate


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
        completions = generate(
            engine,
            [_request(engine, tokenizer, case) for case in some],
            sampling.model_copy(update={"slots": suite.slots}),
            greedy=suite.greedy,
            noise=noise,
            on_progress=lambda ended, before=before: on_progress(before + ended),
        )
        for case, completion in zip(some, completions, strict=True):
            text = decode(tokenizer, completion.tokens)
            rows.append(grade(environment, case, text, completion.finished, len(completion.tokens)))
    return rows


def _request(engine: Engine, tokenizer: PreTrainedTokenizerFast, case: Case) -> Request:
    tokens, context = encode_prompt(tokenizer, case.prompt), engine.context
    if len(tokens) >= context:
        raise ValueError(
            f"row {case.task['id']}: its prompt {case.prompt[:60]!r} has {len(tokens)} tokens, and the model's context "
            f"of {context} leaves no room for an answer; leave the row out, or take a model with a longer context"
        )
    return Request(tokens, case.seed)
