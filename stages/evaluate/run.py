"""The evaluate stage: base, SFT and RL on the same prompts with the same random numbers, as a report and a dashboard.

Every (policy, suite) is a unit of work and of restart: its graded rows are a committed Parquet file a rank. Rank 0 then
turns all rows into report.json and dashboard.html, which depend on nothing else but the manifests of the inputs.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers import PreTrainedTokenizerFast

from checkpoints.commit import commit, remove_torn
from checkpoints.manifest import ATTEMPT, NAME, Provenance, Result, commit_manifest, digest, write_json
from data.budget import Budget
from data.job import Job, Stopped
from data.metrics import Metrics, read_metrics
from data.progress import Progress
from data.shards import read_split
from data.tokenizer import encode_prompt, load_tokenizer, tokenizer_digest
from data.warnings import read_warnings
from stages.environments.base import BaseEnvironment, Task
from stages.environments.hash import environment_hash
from stages.environments.registry import make
from stages.environments.self_test import NUM_TASKS, self_test
from stages.evaluate.complete import complete
from stages.evaluate.config import StageConfig
from stages.evaluate.dashboard import render_dashboard
from stages.evaluate.engine import Policies
from stages.evaluate.graded import RowFiles
from stages.evaluate.lineage import costs, lineage
from stages.evaluate.report import Rows, comparisons, measure_all, noise_floor, samples
from stages.evaluate.rollouts import rollouts
from stages.evaluate.statistics import Bootstrap
from stages.evaluate.suites import GREEDY, NOISE_FLOOR, Suite, Unit, build_suites, describe, share, units
from stages.trainer.device import any_rank, distributed
from stages.trainer.export import weights_digest


def run(config: StageConfig, inputs: dict[str, Result], folder: Path, job: Job) -> None:
    """Write rows, report, dashboard and the manifest to `folder`. Every rank calls it."""
    if (folder / NAME).exists():
        return
    with distributed(job):
        exam = prepare(config, inputs)
        files = RowFiles(folder, job.rank, job.world_size)
        if job.is_first:
            remove_torn(folder)
            for unit in units(exam.suites):
                files.remove_partial(unit.name)
        dist.barrier()
        slots = max(suite.slots for suite in exam.suites.values())
        policies = Policies(config, inputs, exam.tokenizer, slots, job, folder)
        with closing(Metrics(folder, job.is_first)) as metrics, closing(policies):
            answer_all(config, exam, policies, files, metrics, job)
        with job.slow("the report"):
            dist.barrier()
            if job.is_first:
                publish(config, inputs, exam, files, folder)
            dist.barrier()


@dataclass(frozen=True)
class Exam:
    """What is asked, by whom it is graded, and what the report has to say about it."""

    environment: BaseEnvironment
    tokenizer: PreTrainedTokenizerFast
    suites: dict[str, Suite]
    answers: dict[str, str]
    """The right answer by prompt id."""
    notes: list[str]


def prepare(config: StageConfig, inputs: dict[str, Result]) -> Exam:
    """Read the prompts, test the grader, and lay out the suites. The same on every rank."""
    environment = make(config.environment)
    tokenizer = load_tokenizer(inputs["rl"].folder / "model")
    tasks: list[Task] = read_split(inputs["synth"].folder, "evaluation").to_pylist()
    has_harder = bool(inputs["synth"].paths("harder/"))
    harder: list[Task] = read_split(inputs["synth"].folder, "harder").to_pylist() if has_harder else []
    self_test(environment, tasks[:NUM_TASKS])
    encode = partial(encode_prompt, tokenizer)
    suites, notes = build_suites(config.evaluate, config.seed, environment, tasks, harder, encode)
    found = tokenizer_digest(tokenizer)
    if found != tokenizer_digest(load_tokenizer(inputs["sft"].folder / "model")):
        raise ValueError(f"{inputs['rl'].folder / 'model'}: not the tokenizer of the sft stage's model; run rl again")
    now = environment_hash(config.environment)
    for stage in ("synth", "rl"):
        if inputs[stage].manifest.environment_hash != now:
            notes.append(f"environment: not the one of the {stage} stage, its hash differs (code, data or libraries).")
    return Exam(environment, tokenizer, suites, {task["id"]: task["answer"] for task in [*tasks, *harder]}, notes)


def answer_all(
    config: StageConfig, exam: Exam, policies: Policies, files: RowFiles, metrics: Metrics, job: Job
) -> None:
    """Work off the units whose rows are not committed yet. Raises Stopped between two units when asked to stop."""
    work = units(exam.suites)
    metrics.resume(sum(files.done(unit.name) for unit in work))
    there = sum(len(unit.suite.cases) for unit in work if files.done(unit.name))
    total = sum(len(unit.suite.cases) for unit in work)
    progress = Progress(metrics.folder, total, "completions", done=there, first=there)
    budget = Budget(job, metrics.folder, "evaluate")
    for step, unit in budget.measured(enumerate(work, start=1), lambda item: item[1].name):
        if any_rank(budget.must_stop()):
            raise Stopped(f"evaluate: {budget.why()}, stopped before {unit.name}, all before it is committed")
        done = files.done(unit.name)
        if not any_rank(not done):
            continue
        engine = policies.load(unit.policy)
        if done:
            continue
        started, before = time.monotonic(), progress.done
        cases = share(unit.suite.cases, job.rank, job.world_size)
        show = follow(progress, unit, job)
        rows = complete(
            engine, exam.tokenizer, exam.environment, config.evaluate.sampling, unit.suite, cases, on_progress=show
        )
        metrics.log(step, seconds=time.monotonic() - started, completions=len(rows))
        with budget.save(unit.name):
            metrics.commit(step)
            files.write(unit.name, rows)
        progress.done = before + len(unit.suite.cases)


def follow(progress: Progress, unit: Unit, job: Job) -> Callable[[int], None]:
    """Shows how far all ranks are in `unit`, going by what has `ended` on this one. Only rank 0 shows it."""
    before, everything = progress.done, len(unit.suite.cases)

    def show(ended: int) -> None:
        job.beat(f"{unit.name}: {ended} answered")
        if job.is_first:
            progress.update(before + min(ended * job.world_size, everything), f"{unit.policy}, {unit.suite.name}")

    return show


def publish(config: StageConfig, inputs: dict[str, Result], exam: Exam, files: RowFiles, folder: Path) -> None:
    """Turn the committed rows into the report, the dashboard and the manifest. On rank 0."""
    rows: dict[str, dict[str, Any]] = {}
    for unit in units(exam.suites):
        rows.setdefault(unit.policy, {})[unit.suite.name] = files.read(unit.name)
    report = make_report(config, inputs, exam, rows, folder)
    write_json(folder / "report.json", report)
    with commit(folder / "dashboard.html") as aside:
        curves = {stage: read_metrics(inputs[stage].folder) for stage in ("sft", "rl")}
        aside.write_text(render_dashboard(report, curves), encoding="utf-8")
    paths = [path for unit in units(exam.suites) for path in files.all(unit.name)]
    commit_manifest(
        folder,
        [folder / "report.json", folder / "dashboard.html", *paths],
        headline_metrics(report),
        environment_hash=environment_hash(config.environment),
        tokenizer_digest=tokenizer_digest(exam.tokenizer),
    )


def make_report(config: StageConfig, inputs: dict[str, Result], exam: Exam, rows: Rows, folder: Path) -> dict[str, Any]:
    """The whole report. But for the seconds, it follows from the config, the inputs and the code."""
    settings = config.evaluate
    shown = {"confidence", "bootstrap_resamples", "action_noise", "sampling"}
    bootstrap = Bootstrap(settings.bootstrap_resamples, settings.confidence, config.seed)
    tokens = sum(int(table["tokens"].to_numpy().sum()) for suites in rows.values() for table in suites.values())
    seconds = sum(read_metrics(folder)["seconds"].to_pylist())
    own = Provenance.model_validate_json((folder / ATTEMPT).read_bytes())
    base = {
        "config_digest": digest(config.model.model_dump(mode="json")),
        "weights_digest": weights_digest(Path(config.model.folder)) if config.model.folder else "",
    }
    return {
        "seed": config.seed,
        "environment": config.environment.name,
        "method": {
            **settings.model_dump(mode="json", include=shown),
            "suites": describe(settings, exam.environment),
        },
        "policies": measure_all(rows, bootstrap, settings.pass_at),
        "comparisons": comparisons(rows, bootstrap),
        "noise_floor": noise_floor(rows, (exam.suites[GREEDY].slots, exam.suites[NOISE_FLOOR].slots)),
        "samples": samples(rows, exam.answers),
        "warnings": [warned._asdict() for warned in read_warnings(inputs["rl"].folder)],
        "rollouts": rollouts(inputs["rl"], exam.tokenizer),
        "stages": costs(inputs, seconds, tokens),
        "lineage": lineage(inputs, own, base),
        "notes": exam.notes,
    }


def headline_metrics(report: dict[str, Any]) -> dict[str, float | int | None]:
    """Success of each policy on each suite that there is, as `rl_greedy`, and what evaluation itself cost."""
    policies = report["policies"]
    success = {
        f"{policy}_{suite}": measured["success"]
        for policy, suites in policies.items()
        for suite, measured in suites.items()
        if measured is not None
    }
    return {**success, **report["stages"]["evaluate"]}
