"""The torch rollout engine: transformers' weights, a key-value cache in slots, continuous refill.

It knows token ids only: no rewards, no environment. Text it knows only where stop strings end a completion.
"""

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Completion, Request, room
from stages.rollout.stops import StopWatch
from stages.rollout.torch.compiler import Compiler, Slow
from stages.rollout.torch.forward import forward_of
from stages.rollout.torch.rows import Rows
from stages.rollout.torch.sample import Sample
from stages.rollout.torch.sampling import Sampler
from stages.rollout.torch.slots import Slots
from stages.rollout.weights import checked
from stages.trainer import attention

REFILL_SHARE = 1 / 8
"""Waiting requests are admitted when there are, with room, this many for each one in flight ..."""
REFILL_STEPS = 8
"""... or when so many tokens were decoded since the last time: an admission costs a forward pass of its own."""
TOKENS_PER_STEP = 32
"""Tokens of each request in one `step`, at most."""
STEPS_BETWEEN_LOOKS = {"cpu": 1, "cuda": 8}
"""Decode steps before the host looks at which requests have ended: a look at a card stalls it."""


class TorchEngine:
    """Generates with a model that was loaded with `attn_implementation=stages.trainer.attention.NAME`.

    `model` is the policy's own module (then `update(None, version)` follows each optimizer step), or a copy that
    `update` fills. The same calls give the same bits on a CPU. Which slot, batch or rank plays a request does not
    change its random numbers, only the rounding of its matrix products.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        eos: int,
        special: Collection[int] = (),
        *,
        tokenizer: PreTrainedTokenizerFast | None = None,
        memory_share: float = 0.4,
        compiling: Slow | None = None,
        sleeps_without_weights: bool = False,
    ) -> None:
        """`eos` ends a completion; noise never puts `eos` or `special` tokens in place.

        Only stop strings need the `tokenizer`. Of the memory that is free when a rollout begins, keys and values take
        `memory_share` at most, with fewer slots where that is too little for all. Where `compiling` is given, the
        decode step goes through torch.compile, and what takes long happens inside `compiling(what)`. The weights of a
        copy may be gone while it `sleeps_without_weights`.
        """
        implementation = getattr(model.config, "_attn_implementation", None)
        assert implementation == attention.NAME, f"the model attends by {implementation}"
        self.model, self.eos, self.tokenizer, self.version = model, eos, tokenizer, 0
        self.progress = 0
        self.context: int = model.config.max_position_embeddings
        self._forward = forward_of(model)
        self._compiler = Compiler(compiling) if compiling else None
        if self._compiler:
            self._forward = self._compiler.forward(self._forward)
        device = next(model.parameters()).device
        self._ordinary = torch.tensor(sorted(set(range(model.config.vocab_size)) - {eos, *special}), device=device)
        self._between = STEPS_BETWEEN_LOOKS[device.type]
        self._turns: dict[int, Sample] = {}
        """Requests that wait, by key: those whose session has kept something, who go first ..."""
        self._waiting: dict[int, Sample] = {}
        """... and all others."""
        self._ended: list[tuple[int, Completion]] = []
        self._since_refill = 0
        self._memory_share = memory_share
        self._loses_weights = sleeps_without_weights
        self._begin(SamplingConfig(), 1.0, 0.0)

    @property
    def prefilled(self) -> int:
        """Prompt tokens that went through the model since `start`."""
        return self._rows.prefilled

    def start(self, sampling: SamplingConfig, *, greedy: bool = False, noise: float = 0.0) -> None:
        """See `Engine`. What sessions have kept is given up."""
        assert self._idle, "requests are in flight"
        assert not sampling.stop or self.tokenizer is not None, "stop strings need the tokenizer"
        self._begin(sampling, 0.0 if greedy else sampling.temperature, noise)

    def add(self, key: int, request: Request) -> None:
        """See `Engine`."""
        limit = room(key, request, self._sampling, self.context)
        watch = StopWatch(self._sampling.stop, self.tokenizer) if self._sampling.stop and self.tokenizer else None
        sample = Sample(key, request, tuple(request.prompt), limit, request.session, watch)
        self._rows.check(sample)
        (self._turns if sample.session in self._rows.kept else self._waiting)[key] = sample

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Completion]]:
        """See `Engine`: up to the first look at which something has ended."""
        was_training = self.model.training and not self._forward.lean  # the lean layers have no dropout
        if was_training:
            self.model.eval()
        decoded = 0
        while not self._ended and decoded < TOKENS_PER_STEP:
            if self._is_time_to_admit():
                self._admit()
            elif self._rows.playing:
                self._rows.compact()
                self._rows.decode(self._between)
                decoded += self._between
                self._since_refill += self._between
            else:
                break
            self._look()
        if was_training:
            self.model.train()
        ended, self._ended = self._ended, []
        return ended

    @torch.inference_mode()
    def cancel(self, keys: Iterable[int]) -> None:
        """See `Engine`."""
        cancelled = set(keys)
        for queue in (self._turns, self._waiting):
            for key in cancelled & queue.keys():
                self._ended.append((key, queue.pop(key).completion([], torch.zeros(0).numpy(), "cancelled")))
        self._collect([sample for sample in self._rows.playing.values() if sample.key in cancelled], cancelled=True)

    def release(self, sessions: Iterable[int]) -> None:
        """See `Engine`."""
        released = set(sessions)
        self._rows.forget(released)
        for sample in (*self._turns.values(), *self._waiting.values(), *self._rows.playing.values()):
            if sample.session in released:
                sample.session = None

    def update(self, weights: Iterable[tuple[str, Tensor]] | None, version: int) -> None:
        """See `Engine`. Requests in flight keep their keys and values; ended turns lose theirs."""
        if weights is not None:
            own = dict(self.model.named_parameters())
            with torch.no_grad():
                for name, tensor in checked(weights, {name: own[name].shape for name in own}):
                    own[name].copy_(tensor)
        self.version = version
        self._forward.refresh()
        self._rows.forget(list(self._rows.kept))
        for sample in self._rows.playing.values():
            sample.stale = True
            sample.versions.append((sample.made, version))

    def sleep(self) -> None:
        """See `Engine`: the keys and values go, and the weights of a copy where that was asked for."""
        assert self._idle, "requests are in flight"
        self._rows = self._no_rows()
        self._forward.refresh()
        if self._loses_weights:
            for weight in self.model.parameters():
                weight.untyped_storage().resize_(0)

    def wake(self) -> None:
        """See `Engine`."""
        if self._loses_weights:
            for weight in self.model.parameters():
                weight.untyped_storage().resize_(weight.numel() * weight.element_size())

    def close(self) -> None:
        """See `Engine`."""

    @property
    def _idle(self) -> bool:
        return not (self._rows.playing or self._turns or self._waiting)

    def _begin(self, sampling: SamplingConfig, temperature: float, noise: float) -> None:
        self._forward.refresh()
        self._sampling, self._sampler = sampling, Sampler(temperature, noise, self._ordinary)
        self._ends = (self.eos, *sampling.stop_tokens)
        self._rows = self._no_rows()

    def _no_rows(self) -> Rows:
        slots = Slots(self.model, self._forward, self._sampler, self._ends)
        return Rows(slots, self._sampling.slots, self._memory_share, self._compiler)

    def _is_time_to_admit(self) -> bool:
        playing = len(self._rows.playing)
        ready = min(len(self._turns) + len(self._waiting), self._rows.allowed - playing)
        return ready > 0 and (ready >= REFILL_SHARE * playing or self._since_refill >= REFILL_STEPS)

    def _admit(self) -> None:
        while admitted := self._rows.admit([*self._turns.values(), *self._waiting.values()]):
            for sample in admitted:
                self._turns.pop(sample.key, None)
                self._waiting.pop(sample.key, None)
                sample.made = 1
                self.progress += 1
                sample.versions.append((0, self.version))
        self._since_refill = 0

    def _look(self) -> None:
        """See which requests have ended, by themselves or by a stop string."""
        rows = self._rows
        alive, made = (array.tolist() for array in rows.slots.look())
        ended: list[Sample] = []
        tokens = rows.slots.read(list(rows.playing))[0] if self._sampling.stop else None
        for index, (row, sample) in enumerate(rows.playing.items()):
            before, sample.made = sample.made, made[row]
            if tokens is not None and sample.watch is not None:
                sample.watch.read(tokens[index, sample.watch.count : sample.made].tolist())
                sample.made = sample.watch.count
            self.progress += sample.made - before
            if not alive[row] or (sample.watch is not None and sample.watch.found):
                ended.append(sample)
        self._collect(ended)

    def _collect(self, ended: Sequence[Sample], *, cancelled: bool = False) -> None:
        """Make completions of what these have, and free their rows."""
        if not ended:
            return
        rows = [sample.row for sample in ended]
        self._rows.slots.end(rows)
        for sample, row, logprobs in zip(ended, *self._rows.slots.read(rows), strict=True):
            tokens: list[int] = row[: sample.made].tolist()
            stopped = tokens[-1] in self._ends or (sample.watch is not None and sample.watch.found)
            reason = "cancelled" if cancelled else "stop" if stopped else "length"
            completion = sample.completion(tokens, logprobs[: sample.made].copy(), reason)
            self._ended.append((sample.key, completion))
            self._rows.leave(sample, tokens)


def unsharded_copy(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """A model of the same config with weights of its own, for an engine beside a sharded policy.

    On a card it has 16-bit weights, since that is what the policy computes with there.
    """
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    copy = AutoModelForCausalLM.from_config(model.config, dtype=dtype, attn_implementation=attention.NAME)
    return copy.to(device).eval().requires_grad_(False)
