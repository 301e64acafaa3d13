"""Where a number comes from and what it cost, from the manifests of the stages before."""

from collections.abc import Mapping
from typing import Any

from checkpoints.manifest import Provenance, Result

STAGES = ("synth", "sft", "rl")
KEYS = (
    "manifest",
    "config_digest",
    "code_digest",
    "code_version",
    "environment_hash",
    "tokenizer_digest",
    "weights_digest",
)


def lineage(inputs: Mapping[str, Result], own: Provenance, base: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Digests of each stage and its inputs in the order of the pipeline.

    `base` has what is known of the weights that training began from, which no stage has made. A key that a part cannot
    have is empty; evaluate's own manifest is made after its report, and names it.
    """
    return {
        "synth": _of_result(inputs["synth"]),
        "base": _record(base, {}),
        "sft": _of_result(inputs["sft"]),
        "rl": _of_result(inputs["rl"]),
        "evaluate": _record(own.model_dump(), own.inputs),
    }


def costs(inputs: Mapping[str, Result], seconds: float, tokens: int) -> dict[str, dict[str, Any]]:
    """Seconds and tokens of every stage, as its manifest's metrics have them; `seconds` and `tokens` are evaluate's."""
    found: dict[str, dict[str, Any]] = {}
    for stage in STAGES:
        metrics = inputs[stage].manifest.metrics
        found[stage] = {"seconds": metrics.get("seconds"), "tokens": metrics.get("tokens")}
    found["evaluate"] = {"seconds": seconds, "tokens": tokens}
    return found


def _of_result(result: Result) -> dict[str, Any]:
    return _record({**result.manifest.model_dump(), "manifest": result.digest}, result.manifest.inputs)


def _record(known: Mapping[str, Any], inputs: Mapping[str, str]) -> dict[str, Any]:
    return {**{key: known.get(key, "") for key in KEYS}, "inputs": dict(inputs)}
