"""What is found before vLLM starts."""

import pytest
from transformers import Qwen3Config

from stages.rollout.vllm import platform


def test_a_head_that_vllm_cannot_attend_with_is_refused_with_the_way_out() -> None:
    config = Qwen3Config(hidden_size=32, num_attention_heads=2, head_dim=16)
    with pytest.raises(ValueError, match="no attention for heads of size 16.*take engine.name=torch"):
        platform.arguments(config, 4, 0.4)


def test_a_vllm_that_is_not_there_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"no vllm in this environment.*engine.name=torch"):
        platform.prepare()
