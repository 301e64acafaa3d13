"""The engine that answers, with the weights of one policy at a time."""

from pathlib import Path

from transformers import PreTrainedTokenizerFast

from checkpoints.manifest import Result
from data.job import Job
from stages.evaluate.config import StageConfig
from stages.rollout.engine import Engine
from stages.rollout.torch.engine import TorchEngine
from stages.trainer.device import device_of, use_cores
from stages.trainer.policy import load_policy

POLICIES = ("base", "sft", "rl")


class Policies:
    """Loads policies: `base` is what the sft stage began from. All ranks call each method together."""

    def __init__(
        self,
        config: StageConfig,
        inputs: dict[str, Result],
        tokenizer: PreTrainedTokenizerFast,
        slots: int,
        job: Job,
        folder: Path,
    ) -> None:
        """Nothing is loaded yet. No suite has more `slots`; what a server writes lies in `folder`."""
        self._config, self._inputs, self._tokenizer = config, inputs, tokenizer
        self._slots, self._job, self._folder = slots, job, folder
        self._engine: Engine | None = None
        self._loaded = ""

    def load(self, policy: str) -> Engine:
        """The engine with the weights of `policy`."""
        if self._engine is None or self._loaded != policy:
            with self._job.slow(f"loading {policy}"):
                self._engine, self._loaded = self._engine_of(policy), policy
        return self._engine

    def close(self) -> None:
        """End the engine."""
        if self._engine is not None:
            self._engine.close()

    def _engine_of(self, policy: str) -> Engine:
        source = self._config.model if policy == "base" else self._inputs[policy].folder / "model"
        settings, tokenizer, job = self._config.engine, self._tokenizer, self._job
        loaded = load_policy(source, self._config.seed)
        if settings.name == "torch":
            assert isinstance(tokenizer.eos_token_id, int), "load_tokenizer has checked it"
            model = loaded.to(device_of(job)).model
            use_cores(job, model)
            return TorchEngine(
                model,
                tokenizer.eos_token_id,
                tokenizer.all_special_ids,
                tokenizer=tokenizer,
                memory_share=settings.memory_share,
                compiling=job.slow if settings.compile else None,
            )
        from stages.rollout.vllm.make import make_vllm

        model = loaded.model
        engine = self._engine or make_vllm(settings, model.config, tokenizer, self._slots, job, self._folder)
        engine.update(model.named_parameters(), POLICIES.index(policy))
        return engine
