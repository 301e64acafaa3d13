"""The vLLM rollout engine, in the process of the rank that uses it."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Completion, Reason, Request, room
from stages.rollout.stops import StopWatch
from stages.rollout.vllm import platform
from stages.rollout.vllm.library import delta_params, start, stop
from stages.rollout.vllm.noise import Strike, strikes
from stages.rollout.vllm.weights import reload, skeleton
from stages.rollout.weights import checked

NO_WEIGHTS = -1
"""The version before the first update, and after a sleep."""


@dataclass
class Sampling:
    """How requests are sampled that were told so together. The clients of a server have each their own."""

    config: SamplingConfig
    temperature: float
    noise: float
    ends: frozenset[int]
    playing: int = 0
    """Requests of it that vLLM has."""


@dataclass
class _Flight:
    """A request, and what it has so far."""

    request: Request
    limit: int
    sampling: Sampling
    strikes: deque[Strike]
    """Where noise will put a token, in order. vLLM plays up to the next, and goes on behind it as with a new prompt."""
    watch: StopWatch | None
    """Where there are stop strings."""
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    part: int = 0
    """Number of the vLLM request that plays it now."""

    @property
    def end(self) -> int:
        """Tokens that the completion has when vLLM's present request has come to its limit."""
        return self.strikes[0].position + 1 if self.strikes else self.limit

    def completion(self, reason: Reason) -> Completion:
        logprobs, versions = np.array(self.logprobs, np.float32), np.array(self.versions, np.int32)
        return Completion(self.tokens, logprobs, versions, reason)


class VllmEngine:
    """Generates with vLLM's `LLMEngine`, a step at a time, so that between two steps everything stands still.

    It begins without weights: `update` comes before the first request. Keys and values carry the version of the
    weights as vLLM's `cache_salt`, so a prefix that older weights have seen is never found again.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        tokenizer: PreTrainedTokenizerFast,
        *,
        slots: int,
        memory_share: float = 0.4,
    ) -> None:
        """For a model of `config`, `slots` sequences side by side. All ranks of torch's process group call it together.

        Raises ValueError when vLLM is not installed.
        """
        platform.prepare()
        assert isinstance(tokenizer.eos_token_id, int), "load_tokenizer has checked it"
        self.version, self.slots, self.progress = NO_WEIGHTS, slots, 0
        self.context: int = config.max_position_embeddings
        self.reused = 0
        """Prompt tokens so far whose keys and values were there already."""
        self._tokenizer, self._eos = tokenizer, tokenizer.eos_token_id
        self._ordinary = np.array(sorted(set(range(config.vocab_size)) - {self._eos, *tokenizer.all_special_ids}))
        empty = skeleton(config)
        self._shapes = {name: parameter.shape for name, parameter in empty.named_parameters()}
        self._waiting: dict[int, _Flight] = {}
        self._playing: dict[int, _Flight] = {}
        self._ended: list[tuple[int, Completion]] = []
        self._llm: Any = start(config, type(empty).__name__, slots, memory_share)

    @property
    def idle(self) -> bool:
        """Whether no request is in flight."""
        return not self._waiting and not self._playing

    def start(self, sampling: SamplingConfig, *, greedy: bool = False, noise: float = 0.0) -> None:
        """See `Engine`."""
        self._sampling = self.sampling(sampling, greedy=greedy, noise=noise)

    def sampling(self, config: SamplingConfig, *, greedy: bool = False, noise: float = 0.0) -> Sampling:
        """What `add` takes beside a request; requests with the same one share `config.slots`."""
        temperature = 0.0 if greedy else config.temperature
        return Sampling(config, temperature, noise, frozenset({self._eos, *config.stop_tokens}))

    def add(self, key: int, request: Request, sampling: Sampling | None = None) -> None:
        """See `Engine`; without `sampling` the one of `start`."""
        assert key not in self._waiting and key not in self._playing, f"request {key} is in flight"
        sampling = sampling or self._sampling
        limit = room(key, request, sampling.config, self.context)
        noise = strikes(request.seed, limit, sampling.noise, self._ordinary)
        stop = sampling.config.stop
        watch = StopWatch(stop, self._tokenizer) if stop else None
        self._waiting[key] = _Flight(request, limit, sampling, noise, watch)

    def step(self) -> list[tuple[int, Completion]]:
        """See `Engine`: one token for each request that has a slot."""
        assert self.version != NO_WEIGHTS or self.idle, "no weights, or an update that failed in the middle"
        for key, flight in list(self._waiting.items()):
            if len(self._playing) == self.slots:
                break
            if flight.sampling.playing < flight.sampling.config.slots:
                self._playing[key] = self._waiting.pop(key)
                flight.sampling.playing += 1
                self._play(key)
        if self._playing:
            for output in self._llm.step():
                key, part = map(int, output.request_id.split("/"))
                self._take(key, part, output)
        ended, self._ended = self._ended, []
        return ended

    def cancel(self, keys: Iterable[int]) -> None:
        """See `Engine`."""
        for key in keys:
            if key in self._playing:
                self._abort(key)
                self._end(key, "cancelled")
            elif key in self._waiting:
                self._ended.append((key, self._waiting.pop(key).completion("cancelled")))

    def release(self, sessions: Iterable[int]) -> None:
        """See `Engine`. vLLM itself drops what was not used for longest when it needs the room."""

    def update(self, weights: Iterable[tuple[str, Tensor]] | None, version: int) -> None:
        """See `Engine`. One that fails leaves the engine without weights, for they are mixed then."""
        assert weights is not None, "vLLM has weights of its own"
        self.version = NO_WEIGHTS
        self._llm.collective_rpc(reload, args=(checked(weights, self._shapes),))
        if not self._playing:
            self._llm.reset_prefix_cache()
        self.version = version

    def sleep(self) -> None:
        """See `Engine`. On a CPU vLLM keeps its memory."""
        assert self.idle, "requests are in flight"
        self.version = NO_WEIGHTS
        self._llm.reset_prefix_cache()
        if platform.can_sleep():
            self._llm.sleep(level=2)  # forget the weights too: `update` follows

    def wake(self) -> None:
        """See `Engine`."""
        if platform.can_sleep() and self._llm.is_sleeping():
            self._llm.wake_up()

    def close(self) -> None:
        """See `Engine`."""
        if self._llm is not None:
            stop(self._llm)
            self._llm = None

    def _play(self, key: int) -> None:
        """Give vLLM what is left of a request, up to the next place where noise strikes."""
        flight = self._playing[key]
        params = delta_params(
            temperature=flight.sampling.temperature,
            seed=(flight.request.seed + flight.part) % 2**63,  # each part has random numbers of its own
            max_tokens=flight.end - len(flight.tokens),
            ends=flight.sampling.ends,
            also=flight.strikes[0].token if flight.strikes else None,
        )
        prompt = {"prompt_token_ids": [*flight.request.prompt, *flight.tokens], "cache_salt": str(self.version)}
        self._llm.add_request(f"{key}/{flight.part}", prompt, params)

    def _take(self, key: int, part: int, answer: Any) -> None:
        """Take the new token of a request."""
        flight, output = self._playing[key], answer.outputs[0]
        if not flight.tokens:
            self.reused += answer.num_cached_tokens or 0
        assert part == flight.part, "a request that was aborted has gone on"
        self.progress += 1
        (sampled,), (logprobs,) = output.token_ids, output.logprobs
        struck = bool(flight.strikes) and flight.strikes[0].position == len(flight.tokens)
        token = flight.strikes.popleft().token if struck else sampled
        flight.tokens.append(token)
        flight.logprobs.append(logprobs[token].logprob)
        flight.versions.append(self.version)
        if flight.watch:
            flight.watch.read([token])
        if token in flight.sampling.ends or (flight.watch and flight.watch.found):
            reason = "stop"
        elif len(flight.tokens) == flight.limit:
            reason = "length"
        elif struck:
            reason = None
        else:
            return
        if output.finish_reason is None:
            self._abort(key)
        if reason:
            self._end(key, reason)
        else:
            flight.part += 1
            self._play(key)

    def _abort(self, key: int) -> None:
        self._llm.abort_request([f"{key}/{self._playing[key].part}"])

    def _end(self, key: int, reason: Reason) -> None:
        flight = self._playing.pop(key)
        flight.sampling.playing -= 1
        self._ended.append((key, flight.completion(reason)))
