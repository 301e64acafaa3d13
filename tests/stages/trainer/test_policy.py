import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from data.packing import pack
from stages.trainer.attention import NAME
from stages.trainer.config import ArchitectureConfig, ModelConfig
from stages.trainer.policy import Policy, load_policy

Sequences = list[tuple[list[int], list[int]]]


def test_logprobs_and_entropy_are_those_of_the_tempered_distribution(tiny: ModelConfig, sequences: Sequences) -> None:
    policy = load_policy(tiny, 1)
    for weight in policy.model.get_output_embeddings().parameters():
        nn.init.normal_(weight)  # away from the uniform distribution
    prompt, completion = sequences[2]
    with torch.no_grad():
        found = policy(pack([(prompt, completion)]), entropy=True, temperature=0.7)
        policy.model.set_attn_implementation("sdpa")
        logits = policy.model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    expected = torch.distributions.Categorical(logits=logits / 0.7)
    assert torch.allclose(found.logprobs, expected.log_prob(torch.tensor(completion)), atol=1e-5)
    assert torch.allclose(found.entropy, expected.entropy(), atol=1e-5)
    assert found.values is None


def test_values_start_at_zero_and_belong_to_the_state_before_the_token(tiny: ModelConfig, sequences: Sequences) -> None:
    policy = load_policy(tiny, 1, value_head=True)
    packed = pack(sequences)
    assert not policy(packed, values=True).values.any()
    nn.init.normal_(policy.value_head.weight)
    prompt, completion = sequences[0]
    other = (prompt, [*completion[:-1], completion[-1] - 1])
    first, second = (policy(pack([sequence]), values=True).values for sequence in ((prompt, completion), other))
    assert first.shape == (len(completion),)
    assert torch.equal(first, second), "the last token is not part of any state"


def test_the_seed_decides_the_weights() -> None:
    one, same, other = (load_policy(ModelConfig(), seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["model.model.embed_tokens.weight"], other["model.model.embed_tokens.weight"])


def test_random_weights_have_the_deviations_that_learning_needs() -> None:
    architecture = ArchitectureConfig(hidden_size=128, num_layers=2, intermediate_size=512)
    weights = dict(load_policy(ModelConfig(architecture=architecture), 1).model.named_parameters())
    layer = "model.layers.1."
    expected = {
        "model.embed_tokens.weight": 0.02,
        f"{layer}self_attn.q_proj.weight": 128**-0.5,
        f"{layer}self_attn.o_proj.weight": 128**-0.5 / 2,
        f"{layer}mlp.down_proj.weight": 512**-0.5 / 2,
    }
    for name, deviation in expected.items():
        assert weights[name].std().item() == pytest.approx(deviation, rel=0.05), name
    assert "lm_head.weight" not in weights, "tied"


def test_a_policy_is_never_random() -> None:
    config = GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=50, resid_pdrop=0.5, attn_implementation=NAME)
    policy = Policy(GPT2LMHeadModel(config)).train()
    packed = pack([(np.arange(3), np.arange(3, 20))])
    assert torch.equal(policy(packed).logprobs, policy(packed).logprobs)
