"""Models that come as a Hugging Face folder, and what is checked of them before anything is trained."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from data.tokenizer import character_tokenizer, load_tokenizer
from stages.trainer.attention import NAME, hidden_states, logits
from stages.trainer.config import ModelConfig
from stages.trainer.packed import PackedContext

disable_progress_bar()  # transformers' own, which every rank would write into the job's log


def folder_model(folder: Path) -> PreTrainedModel:
    """The causal language model of `folder`, in float32. ValueError when there is none that Qianka can train."""
    if not folder.is_dir():
        raise ValueError(f"model.folder: {folder} does not exist; give a Hugging Face folder, or leave it empty")
    if not (folder / "config.json").exists():
        raise ValueError(f"model.folder: {folder} has no config.json; give a folder as save_pretrained writes it")
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True, output_loading_info=True
    )
    model, loading = loaded
    wrong = sorted(map(str, [*loading["missing_keys"], *loading["mismatched_keys"]]))
    if wrong:
        raise ValueError(f"model.folder: {folder} lacks weights that its config.json needs: {', '.join(wrong[:5])}")
    _check_head(model, folder)
    _check_windows(model, folder)
    _use_contexts(model, folder)
    return model


def model_tokenizer(model: ModelConfig) -> PreTrainedTokenizerFast:
    """The tokenizer of the folder, or the character tokenizer of the architecture."""
    if model.folder:
        return load_tokenizer(Path(model.folder))
    return character_tokenizer(model.architecture.alphabet)


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """ValueError when the tokenizer has ids for which the model has no embedding."""
    embeddings: Any = model.get_input_embeddings()
    rows = embeddings.weight.shape[0]
    if len(tokenizer) > rows:
        raise ValueError(
            f"model.folder: the tokenizer has {len(tokenizer)} tokens, the model embeddings for {rows}; take the "
            "tokenizer that belongs to the model, or enlarge it with model.resize_token_embeddings and save it again"
        )


def _check_head(model: PreTrainedModel, folder: Path) -> None:
    """`logprobs` applies the head's matrix itself, a part of the tokens at a time."""
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise ValueError(
            f"model.folder: {folder}: the head of a {model.config.model_type} model is a {type(head).__name__} and not "
            "one matrix; Qianka cannot train this architecture"
        )


def _check_windows(model: PreTrainedModel, folder: Path) -> None:
    """Contexts attend to the whole sequence, so a model that must not is refused."""
    config = model.config.get_text_config()
    for name in ("sliding_window", "attention_chunk_size"):
        window = getattr(config, name, None)
        if window is not None and window < config.max_position_embeddings:
            raise ValueError(
                f"model.folder: {folder}: attention to only {window} tokens ({name} in config.json), but Qianka "
                f"attends to whole sequences; to train on at most {window} tokens, set max_position_embeddings to it"
            )


@torch.no_grad()
def _use_contexts(model: PreTrainedModel, folder: Path) -> None:
    """Hand the attention over to contexts, after a check that the logits of this architecture do not change by it.

    Some architectures cap or scale logits, or have attention sinks, which packed training would silently leave out.
    """
    model.eval()
    tokens = torch.arange(8)
    expected = model(tokens[None]).logits[0]
    model.set_attn_implementation(NAME)
    context = PackedContext(tokens[-1:].numpy() + 1, tokens.device)
    found = logits(model, hidden_states(model, tokens[None], tokens[None], context)[0])
    if not torch.allclose(found, expected, rtol=1e-3, atol=1e-3):
        raise ValueError(
            f"model.folder: {folder}: packed attention changes the logits of a {model.config.model_type} model by "
            f"{(found - expected).abs().max().item():.3g}; Qianka cannot train this architecture"
        )
