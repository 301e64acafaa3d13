"""The policy: a transformers causal language model that gives log-probabilities of packed completions.

Also its optional value head. Knows nothing about text, devices' number, or what the log-probabilities are for.
"""

from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedModel

from data.packing import Packed
from stages.trainer.architecture import random_model
from stages.trainer.attention import hidden_states
from stages.trainer.config import ModelConfig
from stages.trainer.folder import folder_model
from stages.trainer.linear import use_onednn
from stages.trainer.logprobs import token_distribution
from stages.trainer.packed import PackedInputs


class TokenOutputs(NamedTuple):
    """What the policy says of the K learned tokens, flat in the order of the packed sequences.

    A tuple, so that FSDP finds the tensors in it.
    """

    logprobs: Tensor
    """[K] log-probability of each learned token, of the tempered distribution."""
    entropy: Tensor | None
    """[K] entropy of the distribution from which the token is drawn, in nats."""
    values: Tensor | None
    """[K] value of the state before each learned token."""


class Policy(nn.Module):
    """A causal language model and, for algorithms with a critic, a value head on its last hidden states."""

    def __init__(self, model: PreTrainedModel, *, value_head: bool = False) -> None:
        """Take over `model`, which must have been made for `attention.NAME`. The value head starts at zero."""
        super().__init__()
        self.model = model
        self.value_head = nn.Linear(model.config.hidden_size, 1) if value_head else None
        if self.value_head is not None:
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        for module in self.modules():
            # The policy that is trained is the one that is sampled from, so no part of it may be random.
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        use_onednn(self)

    def forward(
        self, packed: Packed | PackedInputs, *, entropy: bool = False, values: bool = False, temperature: float = 1.0
    ) -> TokenOutputs:
        """Log-probabilities, and on request entropies and values, of the tokens that `packed` marks to learn.

        Logits exist only at the positions before learned tokens, and not at all of those at once (`logprobs`).
        """
        assert temperature > 0, "a greedy policy has no log-probabilities"
        if isinstance(packed, Packed):
            packed = PackedInputs.of(packed, next(self.parameters()).device)
        tokens, learned = packed.tokens, packed.learned
        hidden = hidden_states(self.model, tokens[None], packed.positions[None], packed.context)[0]
        hidden = hidden.index_select(0, learned - 1)
        head = self.model.get_output_embeddings()
        assert isinstance(head, nn.Linear), "`folder` refuses other heads"
        said = token_distribution(head, hidden, tokens[learned], temperature=temperature, entropy=entropy)
        return TokenOutputs(said.logprobs, said.entropy, self._values(hidden) if values else None)

    def _values(self, hidden: Tensor) -> Tensor:
        assert self.value_head is not None, "values need a policy with a value head"
        return self.value_head(hidden).float().sum(-1)  # over the one output


def load_policy(model: ModelConfig | Path, seed: int, *, value_head: bool = False) -> Policy:
    """The policy of a Hugging Face folder, or with random weights of `model.architecture` that `seed` decides.

    Weights are float32 on the CPU. Raises ValueError when the folder is no model that Qianka can train.
    """
    folder = model if isinstance(model, Path) else Path(model.folder) if model.folder else None
    if folder is None:
        assert isinstance(model, ModelConfig)
        return Policy(random_model(model.architecture, seed), value_head=value_head)
    return Policy(folder_model(folder), value_head=value_head)
