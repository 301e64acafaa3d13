"""Terms of the reward: each a plain function of a played episode. The reward is their weighted sum.

The user's own are such functions too: `term: my_rewards.py:brevity`. They are called in processes of their own, for an
endless loop or a crash must not end the job. Nothing here imports torch: the terms of a config are checked on the login
node.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial
from numbers import Real
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from data.own_code import load_source, read_source
from data.values import typed
from stages.environments.base import GraderError, Task
from stages.environments.config import RewardConfig
from stages.environments.processes import call, reason


@dataclass(frozen=True)
class Episode:
    """What a term sees: a whole episode, nothing cut off."""

    task: Task
    """The row: id, prompt, answer, trace, level."""
    turns: tuple[str, ...]
    """What the policy said, turn by turn, without special tokens."""
    tokens: tuple[int, ...]
    """What it said as token ids, the turns end to end."""
    limit: int
    """Tokens that it might have said."""
    finished: bool
    """The last turn ended by itself, and the environment had no more to ask."""
    reward: float
    """The environment's, the sum over the turns."""
    parsed: bool
    """An answer was found in the last turn, which was not cut."""

    @property
    def completion(self) -> str:
        """All that the policy said, a line for each turn."""
        return "\n".join(self.turns)

    @property
    def num_tokens(self) -> int:
        """Tokens that the policy said, end tokens included."""
        return len(self.tokens)


VERIFIER = "verifier"
"""The term that is the environment's reward, and the only one by default."""

Function = Callable[..., float]

Share = Annotated[float, Field(gt=0, le=1)]

TERMS: dict[str, Function] = {}
"""The shipped terms by name."""


def term(function: Function) -> Function:
    """Ship a function as a term of its name: of an Episode, and after `*` of its values, typed, with defaults."""
    TERMS[function.__name__] = function
    return function


@term
def verifier(episode: Episode) -> float:
    """The environment's reward, 0 for an episode that is not finished. Shipped environments give 0 or 1."""
    return episode.reward * episode.finished


@term
def parsed(episode: Episode) -> float:
    """1 when an answer was found, right or wrong, else 0."""
    return float(episode.parsed)


@term
def finished(episode: Episode) -> float:
    """1 when the episode came to its end within its limits, else 0."""
    return float(episode.finished)


@term
def overlong_penalty(episode: Episode, *, buffer_share: Share = 0.2) -> float:
    """Soft overlong punishment, -1 to 0: falls from 0 to -1 over the last buffer_share x limit tokens before the limit.

    DAPO (arXiv 2503.14476), eq. 13, with L_max = limit and L_cache = buffer_share x limit; the operator of this name
    is the same.
    """
    buffer = buffer_share * episode.limit
    return min(0.0, (episode.limit - buffer - episode.num_tokens) / buffer)


@term
def length_penalty(episode: Episode) -> float:
    """Minus the share of the limit, -1 to 0: each token costs the same. The operator of this name is the same."""
    return -episode.num_tokens / episode.limit


@term
def repetition(episode: Episode, *, ngram: PositiveInt = 4) -> float:
    """Minus the share of n-grams of tokens that came before, -1 to 0; 0 for an episode shorter than one.

    After the n-gram repetition penalty of Yeo et al. 2025 (arXiv 2502.03373), for the episode instead of its tokens.
    """
    grams = [episode.tokens[start : start + ngram] for start in range(episode.num_tokens - ngram + 1)]
    return len(set(grams)) / len(grams) - 1 if grams else 0.0


@dataclass(frozen=True)
class Term:
    """A term as it is configured."""

    name: str
    """Of the function: in metrics and in the trajectory files."""
    weight: float
    function: Callable[[Episode], float | str]
    """A text says what it gave instead of a number."""
    is_own: bool = False
    """The user's own, which may take long: it is called in another process."""

    def __call__(self, episode: Episode) -> float:
        """Its value before the weight. GraderError when the function fails, ValueError when it gives no number."""
        try:
            value = self.function(episode)
        except Exception as error:
            raise GraderError(f"the reward term {self.name} failed: {reason(error)}") from error
        if isinstance(value, str):
            raise ValueError(f"the reward term {self.name} gave {value}, but it must return a number")
        return value


def load_terms(rewards: Sequence[RewardConfig]) -> list[Term]:
    """The configured terms. Raises ValueError that names the key `rl.rewards`, the term, and what would be right."""
    terms: list[Term] = []
    for place, reward in enumerate(rewards):
        try:
            terms.append(_load(reward))
        except ValueError as error:
            raise ValueError(f"rl.rewards[{place}]: {error}") from error
    if not terms:
        raise ValueError("rl.rewards is empty; leave it out for the environment's own reward")
    names = [loaded.name for loaded in terms]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"rl.rewards: {', '.join(twice)} is there twice, and could not be told apart in the metrics")
    return terms


def own_file(name: str) -> tuple[str, str] | None:
    """(File, function) of a term that is the user's own; None for a shipped term."""
    path, colon, function = name.rpartition(":")
    return (path, function) if colon else None


def _load(reward: RewardConfig) -> Term:
    own = own_file(reward.term)
    if own is None:
        function = _shipped(reward.term)
        return Term(reward.term, reward.weight, partial(function, **_values(reward.term, function, reward.values)))
    path, name = own
    # What the file says now goes to the other processes, whatever it says when they start.
    known = (path, read_source(Path(path)), name, json.dumps(reward.values))
    _own(*known)
    return Term(name, reward.weight, partial(call, _value_of, known), is_own=True)


def _shipped(name: str) -> Function:
    if name in TERMS:
        return TERMS[name]
    near = get_close_matches(name, TERMS, n=3)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    shipped = ", ".join(TERMS)
    raise ValueError(f"there is no term {name!r}{meant}; the terms are {shipped}, or your own: FILE.py:FUNCTION")


@cache
def _own(path: str, source: bytes, name: str, values: str) -> Function:
    """A function of the user's own file, which says `source`, with its values, which are JSON."""
    module = vars(load_source(Path(path), source))
    functions = {key: value for key, value in module.items() if inspect.isfunction(value) and key.isidentifier()}
    if name not in functions:
        near = get_close_matches(name, functions, n=3)
        meant = f"; did you mean {' or '.join(near)}?" if near else f"; it has {', '.join(functions) or 'none'}"
        raise ValueError(f"{path} has no function {name!r}{meant}")
    _check_signature(f"{path}:{name}", functions[name])
    return partial(functions[name], **_values(name, functions[name], json.loads(values)))


def _value_of(known: tuple[str, bytes, str, str], episode: Episode) -> float | str:
    """In another process: what a function of the user's own gives."""
    value = _own(*known)(episode)
    return float(value) if isinstance(value, Real) else repr(value)


def _check_signature(where: str, function: Function) -> None:
    """ValueError unless it takes an Episode, and everything else by name."""
    rule = "write it `def NAME(episode: Episode, *, value: type = default) -> float`"
    if inspect.iscoroutinefunction(function):
        raise ValueError(f"{where} is asynchronous; {rule}")
    parameters = list(_parameters(where, function).values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise ValueError(f"{where} takes no episode; {rule}")
    for parameter in parameters[1:]:
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY or parameter.annotation is inspect.Parameter.empty:
            raise ValueError(f"{where}: {parameter.name!r} should be a typed value after `*`; {rule}")
        if parameter.default is not inspect.Parameter.empty:
            _value(f"{where}, by default,", parameter.name, parameter.annotation, parameter.default)


def _parameters(where: str, function: Function) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function, eval_str=True).parameters
    except NameError as error:
        raise ValueError(f"{where}: an annotation names what the file does not have: {error}") from error


def _values(name: str, function: Function, given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` in the types that the function's parameters have."""
    known = {key: p for key, p in _parameters(name, function).items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    has = f"it has {', '.join(known) or 'none'}"
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, n=3)
            raise ValueError(f"{name} has no value {key!r}; {has}{f'; did you mean {near[0]}?' if near else ''}")
    for key, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and key not in given:
            raise ValueError(f"{name} needs the value {key!r}: give it under `values:`")
    return {key: _value(name, key, known[key].annotation, value) for key, value in given.items()}


def _value(name: str, key: str, annotation: Any, given: Any) -> Any:
    try:
        return typed(annotation, given)
    except ValueError as error:
        raise ValueError(f"the value {key!r} of {name} is {error}") from error
