"""Completions that the rl stage trained on, for a person to read: what earned how much, from three of its steps.

Of the trajectory files, one a step is opened, so it costs the same after ten million samples as after ten.
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from checkpoints.manifest import Result
from data.trajectories import Trajectories, read_trajectories

NUM_PROMPTS = 2
"""Prompts shown of each step."""


def rollouts(rl: Result, tokenizer: PreTrainedTokenizerFast) -> list[dict[str, Any]]:
    """Prompts of the first, the middle and the last step, each with its best, its median and its worst sample.

    Prompts whose samples earned different rewards come first, then the order in which they were drawn. A sample that
    was not graded is not shown. Token ids are decoded with the special tokens, as the policy saw and wrote them.
    """
    by_step = groupby(rl.paths("trajectories/"), key=lambda path: int(path.stem.split("-")[1]))
    files = [list(paths) for _, paths in by_step]
    places = dict.fromkeys((0, len(files) // 2, len(files) - 1)) if files else ()
    return [record for place in places for record in _of_step(files[place], tokenizer)]


def _of_step(paths: Sequence[Path], tokenizer: PreTrainedTokenizerFast) -> list[dict[str, Any]]:
    """The prompts shown of a step, from the first of its files in which anything was graded."""
    for path in paths:
        played, attributes = read_trajectories(path)
        if played.graded.any():
            names = str(attributes["terms"]).split(",")
            groups = _groups(played)[:NUM_PROMPTS]
            return [{"step": attributes["step"], **_prompt(played, group, names, tokenizer)} for group in groups]
    return []


def _prompt(
    played: Trajectories, group: Sequence[int], names: Sequence[str], tokenizer: PreTrainedTokenizerFast
) -> dict[str, Any]:
    first = group[0]
    tokens = played.sequence(first)[0][: played.prompt_lengths[first]]
    return {
        "id": played.prompt_ids[first],
        "prompt": _text(tokenizer, tokens),
        "num_samples": len(group),
        "samples": [
            {"which": which, **_shown(played, index, names, tokenizer)} for which, index in _picked(played, group)
        ],
    }


def _groups(played: Trajectories) -> list[list[int]]:
    """The graded samples of each prompt; prompts whose samples differ in reward come first."""
    found: dict[int, list[int]] = {}
    for index in np.flatnonzero(played.graded):
        found.setdefault(int(played.groups[index]), []).append(int(index))
    return sorted(found.values(), key=lambda samples: len(set(played.rewards[samples].tolist())) == 1)


def _picked(played: Trajectories, samples: Sequence[int]) -> list[tuple[str, int]]:
    """Best, median and worst sample by reward; a place that would show a sample again is left out."""
    ordered = sorted(samples, key=lambda index: -played.rewards[index])
    places = {"best": 0, "worst": len(ordered) - 1, "median": len(ordered) // 2}
    named = {place: name for name, place in reversed(places.items())}
    return [(named[place], ordered[place]) for place in sorted(named)]


def _shown(
    played: Trajectories, index: int, names: Sequence[str], tokenizer: PreTrainedTokenizerFast
) -> dict[str, Any]:
    tokens, mask = (part[played.prompt_lengths[index] :] for part in played.sequence(index))
    cuts = np.flatnonzero(np.diff(mask)) + 1  # between what the policy said and what the environment answered
    turns = [
        (bool(by[0]), said) for by, said in zip(np.split(mask, cuts), np.split(tokens, cuts), strict=True) if len(by)
    ]
    return {
        "reward": float(played.rewards[index]) + 0.0,  # -0.0 is shown as 0
        "terms": {name: float(value) + 0.0 for name, value in zip(names, played.terms[index], strict=True)},
        "finished": bool(played.finished[index]),
        "tokens": int(mask.sum()),
        "parts": [{"policy": policy, "text": _text(tokenizer, said)} for policy, said in turns],
    }


def _text(tokenizer: PreTrainedTokenizerFast, tokens: Any) -> str:
    return str(tokenizer.decode(tokens.tolist(), skip_special_tokens=False))
