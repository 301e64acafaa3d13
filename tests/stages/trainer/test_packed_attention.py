import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, PreTrainedModel

from data.packing import pack
from stages.trainer.config import ModelConfig
from stages.trainer.packed import WASTE, PackedContext
from stages.trainer.policy import Policy, load_policy

Sequences = list[tuple[list[int], list[int]]]


def stock_model(policy: Policy) -> PreTrainedModel:
    """The same weights in plain transformers with its own attention."""
    model = AutoModelForCausalLM.from_config(copy.deepcopy(policy.model.config), attn_implementation="sdpa")
    model.load_state_dict(policy.model.state_dict())
    return model.eval()


def padded_loss(model: PreTrainedModel, sequences: Sequences) -> Tensor:
    """Transformers' own loss on the padded batch: the mean over completion tokens."""
    width = max(len(prompt) + len(completion) for prompt, completion in sequences)
    tokens = torch.zeros(len(sequences), width, dtype=torch.long)
    labels = torch.full_like(tokens, -100)
    mask = torch.zeros_like(tokens)
    for row, (prompt, completion) in enumerate(sequences):
        length = len(prompt) + len(completion)
        tokens[row, :length] = torch.tensor(prompt + completion)
        labels[row, len(prompt) : length] = torch.tensor(completion)
        mask[row, :length] = 1
    return model(input_ids=tokens, attention_mask=mask, labels=labels).loss


def test_the_packed_loss_and_its_gradient_equal_the_padded_ones(tiny: ModelConfig, sequences: Sequences) -> None:
    policy = load_policy(tiny, 1)
    stock = stock_model(policy)
    expected = padded_loss(stock, sequences)
    found = -policy(pack(sequences)).logprobs.mean()
    assert found.item() == pytest.approx(expected.item(), abs=1e-5)
    expected.backward()
    found.backward()
    gradients = dict(policy.model.named_parameters())
    for name, parameter in stock.named_parameters():
        assert torch.allclose(gradients[name].grad, parameter.grad, atol=1e-5), name


def test_attention_never_crosses_a_sequence(tiny: ModelConfig, sequences: Sequences) -> None:
    policy = load_policy(tiny, 1)
    owner = np.repeat(np.arange(len(sequences)), [len(completion) for _, completion in sequences])
    with torch.no_grad():
        before = policy(pack(sequences)).logprobs.numpy()
        for changed in range(len(sequences)):
            prompt, completion = sequences[changed]
            other = [(3 + (token + 5) % 50) for token in prompt], [(3 + (token + 7) % 50) for token in completion]
            after = policy(pack([*sequences[:changed], other, *sequences[changed + 1 :]])).logprobs.numpy()
            assert np.array_equal(before[owner != changed], after[owner != changed])
            assert not np.array_equal(before[owner == changed], after[owner == changed])


def test_no_gradient_crosses_a_sequence() -> None:
    lengths = np.array([5, 1, 9])
    query, key, value = (torch.randn(1, 2, 15, 8, requires_grad=True) for _ in range(3))
    attended = PackedContext(lengths, torch.device("cpu")).attend(0, query, key, value, 0.3)
    attended[:, 5:6].sum().backward()
    for tensor in (query, key, value):
        touched = tensor.grad.abs().sum((0, 1, 3)) > 0
        assert not touched[:5].any()
        assert not touched[6:].any()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30))
def test_each_sequence_gets_causal_attention_whatever_the_lengths(lengths: list[int]) -> None:
    total = sum(lengths)
    generator = torch.Generator().manual_seed(total)
    shapes = ((1, 4, total, 8), (1, 2, total, 8), (1, 2, total, 8))
    query, key, value = (torch.randn(shape, generator=generator) for shape in shapes)
    found = PackedContext(np.array(lengths), torch.device("cpu")).attend(0, query, key, value, 0.25)
    parts = [tensor.split(lengths, dim=2) for tensor in (query, key, value)]
    expected = torch.cat(
        [
            scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25, enable_gqa=True)
            for q, k, v in zip(*parts, strict=True)
        ],
        dim=2,
    )
    assert torch.allclose(found.transpose(1, 2), expected, atol=1e-5)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 4000), min_size=1, max_size=60))
def test_padding_wastes_little(lengths: list[int]) -> None:
    context = PackedContext(np.array(lengths), torch.device("cpu"))
    padded = sum(rows * width for _, (rows, width) in context.groups)
    assert padded <= WASTE * sum(lengths)


def test_an_empty_share_takes_part_without_a_trace(tiny: ModelConfig) -> None:
    policy = load_policy(tiny, 1)
    logprobs = policy(pack([])).logprobs
    assert logprobs.shape == (0,)
    logprobs.sum().backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in policy.parameters())


@pytest.mark.parametrize("order", [list(reversed(range(8))), [3, 1, 7, 0, 5, 2, 6, 4]])
def test_the_order_of_the_sequences_does_not_matter(tiny: ModelConfig, sequences: Sequences, order: list[int]) -> None:
    policy = load_policy(tiny, 1)
    sizes = [len(completion) for _, completion in sequences]
    with torch.no_grad():
        one = policy(pack(sequences)).logprobs.split(sizes)
        two = policy(pack([sequences[index] for index in order])).logprobs.split([sizes[index] for index in order])
    assert all(torch.allclose(one[index], part, atol=1e-5) for index, part in zip(order, two, strict=True))
