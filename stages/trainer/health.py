"""The checks of `qianka doctor` that need torch or transformers, each run in a process that can be killed.

`python -m stages.trainer.health compute CARD`, `pairs ROUNDS` and `tokenizer CONFIG`; the last two take JSON. What is
found is printed line by line as JSON, so that what came before a hang is known.
"""

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data.job import Job
from data.section import Section
from stages.environments.config import EnvironmentConfig
from stages.trainer.config import ModelConfig

CHECKED_SIZE = 1024
"""Products of matrices of -1, 0 and 1 of this size stay below 256: exact in bfloat16 too."""
TIMED_SIZE = {"cpu": 1024, "cuda": 8192}
REDUCED_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}
REPEATS = 5
ROWS = 8


class Texts(Section):
    """The parts of a run's config that decide what is tokenised, and by what."""

    environment: EnvironmentConfig
    model: ModelConfig


def compute(card: int) -> None:
    """Multiply matrices on a card, or on the CPU where there is none, and then on a stream of its own."""
    import torch

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(card % torch.cuda.device_count())
    dtype = torch.bfloat16 if kind == "cuda" else torch.float32
    say("device", kind=kind, name=torch.cuda.get_device_name() if kind == "cuda" else "CPU", torch=torch.__version__)
    generator = torch.Generator().manual_seed(0)
    exact = torch.randint(-1, 2, (2, CHECKED_SIZE, CHECKED_SIZE), generator=generator)
    # The reference goes through other kernels: float64 on the CPU.
    wanted = exact[0].double() @ exact[1].double()
    left, right = (matrix.to(kind, dtype) for matrix in exact)
    is_right = bool(torch.equal((left @ right).cpu().double(), wanted))
    size = TIMED_SIZE[kind]
    square = torch.ones(size, size, dtype=dtype, device=kind)
    wait = torch.cuda.synchronize if kind == "cuda" else _nothing
    seconds = _median(lambda: square @ square, wait)
    say(
        "matmul", right=is_right, gflops=2 * size**3 / seconds / 1e9, size=size, dtype=str(dtype).removeprefix("torch.")
    )
    if kind == "cuda":
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            product = left @ right
        stream.synchronize()
        say("stream", right=bool(torch.equal(product.cpu().double(), wanted)))


def pairs(rounds: list[dict[str, Any]]) -> None:
    """Reduce a tensor with one peer a round, as the trainer's ranks do, and say the bus bandwidth of each."""
    import torch
    import torch.distributed as dist

    from stages.trainer.device import distributed

    for each in rounds:
        job = Job(
            rank=each["rank"],
            world_size=2,
            local_rank=each["card"],
            node=each["node"],
            rendezvous=Path(each["rendezvous"]),
            interface=each["interface"],
            start_seconds=each["seconds"],
        )
        say("meet", level=each["level"], peer=each["peer"])
        with distributed(job) as device:
            length = REDUCED_BYTES[device.type] // 4
            tensor = torch.full((length,), float(job.rank + 1), device=device)
            dist.all_reduce(tensor)
            is_right = bool((tensor == 3).all())
            wait = torch.cuda.synchronize if device.type == "cuda" else _nothing
            seconds = _median(lambda tensor=tensor: dist.all_reduce(tensor), wait)
        # The bus bandwidth of an all-reduce is 2 (n - 1) / n times bytes a second, with n = 2 ranks.
        say(
            "pair",
            level=each["level"],
            peer=each["peer"],
            right=is_right,
            gb_s=4 * length / seconds / 1e9,
            kind=device.type,
        )


def tokenizer(config: dict[str, Any]) -> None:
    """Encode and decode what the environment poses with the tokenizer of the config's model."""
    from data.tokenizer import decode, encode_completion, encode_prompt
    from stages.environments.registry import make
    from stages.trainer.folder import model_tokenizer

    texts = Texts.model_validate(config)
    environment, tokenizer = make(texts.environment), model_tokenizer(texts.model)
    for seed in range(ROWS):
        task = environment.reset(seed=seed)[1]
        text = environment.reference(task)
        try:
            encode_prompt(tokenizer, task["prompt"])
            back = decode(tokenizer, encode_completion(tokenizer, text))
        except ValueError as error:
            say("tokenizer", wrong=str(error))
            return
        if back != text:
            say("tokenizer", wrong=f"{text!r} comes back as {back!r}")
            return
    say("tokenizer", wrong="", vocabulary=len(tokenizer), rows=ROWS)


def say(what: str, **found: Any) -> None:
    """One line for the one who asked."""
    print(json.dumps({"what": what, **found}), flush=True)


def _median(operation: Callable[[], object], wait: Callable[[], object]) -> float:
    """Seconds of one call, the median of some after the first."""
    times: list[float] = []
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        operation()
        wait()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def _nothing() -> None:
    """The CPU has computed when the call returns."""


def main() -> None:
    """Run one check. The time that it has begins when torch is there."""
    importlib.import_module("torch")
    say("started")
    name, argument = sys.argv[1:]
    checks: dict[str, Callable[[Any], None]] = {"compute": compute, "pairs": pairs, "tokenizer": tokenizer}
    checks[name](json.loads(argument))


if __name__ == "__main__":
    main()
