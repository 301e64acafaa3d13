from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from data.packing import pack
from data.tokenizer import character_tokenizer
from stages.trainer.config import ArchitectureConfig, ModelConfig
from stages.trainer.folder import check_vocabulary, model_tokenizer
from stages.trainer.policy import load_policy

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 40,
    "max_position_embeddings": 64,
}


def written(folder: Path, architecture: str, **changed: object) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **(SIZES | changed)))
    model.save_pretrained(folder)
    return model


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.folder: .*nowhere does not exist"):
        load_policy(ModelConfig(folder=str(tmp_path / "nowhere")), 1)


def test_a_folder_without_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"model\.folder: .*{tmp_path.name} has no config\.json"):
        load_policy(tmp_path, 1)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    written(tmp_path, "qwen3")
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks weights .*model\.norm\.weight"):
        load_policy(tmp_path, 1)


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
def test_architectures_of_transformers_train_as_they_are(tmp_path: Path, architecture: str) -> None:
    model = written(tmp_path, architecture)
    policy = load_policy(tmp_path, 1)
    tokens = torch.arange(5, 25)
    expected = model(tokens[None]).logits[0, :-1].log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]
    assert torch.allclose(policy(pack([(tokens[:1].tolist(), tokens[1:].tolist())])).logprobs, expected, atol=1e-5)


def test_an_architecture_whose_logits_would_change_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "gemma2", sliding_window=64, final_logit_softcapping=0.01, attn_logit_softcapping=0.01)
    with pytest.raises(ValueError, match="gemma2 model .* cannot train"):
        load_policy(tmp_path, 1)


def test_a_model_that_must_not_see_the_whole_sequence_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "mistral", sliding_window=16)
    with pytest.raises(ValueError, match=r"only 16 tokens \(sliding_window in config\.json\)"):
        load_policy(tmp_path, 1)
    written(tmp_path, "mistral", sliding_window=16, max_position_embeddings=16)
    load_policy(tmp_path, 1)


def test_a_tokenizer_larger_than_the_embeddings_is_an_error_before_training(tmp_path: Path) -> None:
    model = written(tmp_path, "qwen3", vocab_size=8)
    with pytest.raises(ValueError, match="tokenizer has 9 tokens, the model embeddings for 8"):
        check_vocabulary(model, character_tokenizer("abcdef"))
    check_vocabulary(model, character_tokenizer("abcde"))


def test_without_a_folder_the_alphabet_makes_the_tokenizer() -> None:
    tokenizer = model_tokenizer(ModelConfig(architecture=ArchitectureConfig(alphabet="xyz")))
    assert len(tokenizer) == 6
