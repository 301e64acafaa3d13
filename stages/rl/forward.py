"""The forward passes of the experience: policy and reference over the same micro-batches, in one go."""

from threading import Lock

import numpy as np
import torch
from torch import Tensor

from data.packing import micro_batches, pack_masked
from stages.algorithms.algorithm import FORWARD, Algorithm
from stages.algorithms.kinds import PolicyOutputs
from stages.rl.config import RLConfig
from stages.rl.samples import Indices, Samples, token_places
from stages.trainer.device import largest
from stages.trainer.packed import PackedInputs
from stages.trainer.policy import Policy, TokenOutputs
from stages.trainer.shards import reshard


class Forward:
    """What policy and reference say of a rank's samples: computed when it is first asked for, and once.

    Whichever node of the experience asks first, all ranks make the same passes in the same order.
    """

    def __init__(
        self, policy: Policy, reference: Policy | None, algorithm: Algorithm, samples: Samples, rl: RLConfig
    ) -> None:
        """`reference` is the policy itself as long as that is still at the weights that it began with."""
        self.samples, self.rl = samples, rl
        wanted = [node.wanted for node in algorithm.experience if node.operator.name == FORWARD]
        self.readers: dict[str, tuple[Policy, frozenset[str]]] = {}
        """By role, the weights and what is wanted of them."""
        if wanted or reference is policy:
            self.readers["policy"] = policy, frozenset[str]().union(*wanted)
        if algorithm.needs_reference and reference is not policy:
            assert reference is not None, "the stage has loaded what its algorithm needs"
            self.readers["reference"] = reference, frozenset()
        self.lock = Lock()
        self.found: dict[str, PolicyOutputs] | None = None

    def policy(self, wanted: frozenset[str]) -> PolicyOutputs:
        """What the policy says."""
        assert wanted <= self.readers["policy"][1]
        return self._outputs()["policy"]

    def reference(self) -> Tensor:
        """[K], log-probabilities by the reference."""
        outputs = self._outputs()
        return outputs["reference" if "reference" in outputs else "policy"].logprobs

    def _outputs(self) -> dict[str, PolicyOutputs]:
        with self.lock:
            if self.found is None:
                self.found = self._pass()
            return self.found

    @torch.no_grad()
    def _pass(self) -> dict[str, PolicyOutputs]:
        """Micro-batch by micro-batch, equally many on every rank; each is packed once for all readers."""
        samples, temperature = self.samples, self.rl.sampling.temperature
        parts: list[Indices] = [
            np.array(p) for p in micro_batches(samples.lengths.tolist(), self.rl.micro_batch_tokens)
        ]
        parts += [np.arange(0)] * (largest(len(parts)) - len(parts))
        said: dict[str, list[TokenOutputs]] = {role: [] for role in self.readers}
        for part in parts:
            packed = PackedInputs.of(pack_masked([samples.sequences[index] for index in part]), samples.device)
            for role, (policy, wanted) in self.readers.items():
                options = {name: name in wanted for name in ("entropy", "values")}
                said[role].append(policy(packed, temperature=temperature, **options))
        if "reference" in self.readers:
            reshard(self.readers["reference"][0])
        # From the order of the micro-batches back to that of the samples.
        places = np.concatenate([np.arange(0), *(token_places(samples.sizes, part) for part in parts)])
        order = torch.from_numpy(np.argsort(places)).to(samples.device)
        return {role: _joined(outputs, order, self.readers[role][1]) for role, outputs in said.items()}


def _joined(outputs: list[TokenOutputs], order: Tensor, wanted: frozenset[str]) -> PolicyOutputs:
    """Of all micro-batches; of none, when no rank has a graded sample, what is `wanted` is empty."""
    nothing = torch.zeros(0, device=order.device)
    if not outputs:
        return PolicyOutputs(nothing, *(nothing if name in wanted else None for name in ("entropy", "values")))

    def joined(columns: list[Tensor | None]) -> Tensor | None:
        there = [column for column in columns if column is not None]
        return torch.cat(there)[order] if there else None

    logprobs, entropy, values = (joined(list(columns)) for columns in zip(*outputs, strict=True))
    assert logprobs is not None, "the policy always gives log-probabilities"
    return PolicyOutputs(logprobs, entropy, values)
