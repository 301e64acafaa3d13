"""What is found before vLLM starts."""

import pytest
from transformers import Qwen3Config

from stages.rollout.vllm import platform
from stages.rollout.vllm.make import check_cards


def test_a_head_that_vllm_cannot_attend_with_is_refused_with_the_way_out() -> None:
    config = Qwen3Config(hidden_size=32, num_attention_heads=2, head_dim=16)
    with pytest.raises(ValueError, match="no attention for heads of size 16.*take engine.name=torch"):
        platform.arguments(config, 4, 0.4)


def test_a_vllm_that_is_not_there_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"no vllm in this environment.*engine.name=torch"):
        platform.prepare()


@pytest.mark.parametrize("found", ["0.10.2", "0.11.0+metax3.3", "0.19.1.dev3"])
def test_a_vllm_that_is_too_old_is_refused_with_both_versions(found: str) -> None:
    with pytest.raises(ValueError) as error:
        platform.check_version(found)
    assert f"vLLM here is {found}, and Qianka needs 0.20 or newer" in str(error.value)
    assert "engine.name=torch" in str(error.value)


@pytest.mark.parametrize("found", ["0.20.0", "0.21.0+metax3.7.1", "0.32.0", "1.0", "dev"])
def test_a_vllm_that_is_new_enough_or_tells_no_version_is_taken(found: str) -> None:
    platform.check_version(found)


def test_a_server_that_would_leave_cards_idle_is_refused_with_the_way_out() -> None:
    check_cards([("n1", ""), ("n1", ""), ("n2", "")])
    check_cards([("n1", "card a"), ("n1", "card a"), ("n2", "card b")])
    with pytest.raises(ValueError, match=r"the ranks of n2 have 2; take engine.name=vllm"):
        check_cards([("n1", "card a"), ("n2", "card b"), ("n2", "card c")])
