import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from checkpoints.manifest import NAME, Result
from data.job import Flag, Job, Stopped
from data.progress import read_progress
from stages.evaluate.config import StageConfig
from stages.evaluate.graded import RowFiles
from stages.evaluate.run import run
from stages.evaluate.suites import POLICIES, SUITES


def read_report(folder: Path) -> dict[str, Any]:
    """Without what may differ between two runs of the same work: the time it took."""
    report = json.loads((folder / "report.json").read_text())
    report["stages"]["evaluate"].pop("seconds")
    return report


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


class StopAfter(Flag):
    """A signal that arrives when the stage has looked for it `looks` times."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def is_set(self) -> bool:
        self.looks -= 1
        return self.looks < 0


def test_the_report_has_every_policy_on_every_suite_with_its_interval(evaluated: Path) -> None:
    report = read_report(evaluated)
    for policy in POLICIES:
        for suite in SUITES:
            found = report["policies"][policy][suite]
            assert found["low"] <= found["success"] <= found["high"] and found["count"] > 0, (policy, suite)
    counts = {suite: report["policies"]["rl"][suite]["completions"]["all"] for suite in SUITES}
    assert counts == {"greedy": 40, "sampled": 24, "generalisation": 10, "robustness": 24}
    assert set(report["policies"]["rl"]["robustness"]["by_kind"]) == {"spaces", "zeros", "action_noise"}
    assert set(report["policies"]["rl"]["generalisation"]["by_level"]) == {"5", "6"}
    assert list(report["policies"]["rl"]["sampled"]["pass_at"]) == ["1", "2", "4"]


def test_the_numbers_are_those_of_the_policies(config: StageConfig, evaluated: Path, inputs: dict[str, Result]) -> None:
    """The sft model always answers 3 and the rl model always 0; the random base model never ends."""
    report, rows = read_report(evaluated), pq.read_table(evaluated / "rows" / "rl-greedy-rank-0000.parquet")
    answers = [
        answer
        for path in inputs["synth"].paths("evaluation/")
        for _, answer in sorted(zip(*pq.read_table(path).select(["id", "answer"]).to_pydict().values(), strict=True))
    ][: config.evaluate.num_prompts]
    policies = report["policies"]
    assert set(rows["completion"].to_pylist()) == {">0"}
    assert policies["rl"]["greedy"]["success"] == pytest.approx(answers.count("0") / 40)
    assert policies["sft"]["greedy"]["success"] == pytest.approx(answers.count("3") / 40)
    assert policies["base"]["greedy"]["success"] == 0
    assert policies["base"]["greedy"]["truncated"]["value"] > 0.5
    assert policies["rl"]["greedy"]["tokens"]["value"] == 3
    paired = next(c for c in report["comparisons"] if (c["suite"], c["before"], c["after"]) == ("greedy", "sft", "rl"))
    assert (paired["won"], paired["lost"]) == (
        policies["rl"]["greedy"]["success"],
        policies["sft"]["greedy"]["success"],
    )


def test_policies_see_the_same_prompts_with_the_same_seeds(evaluated: Path) -> None:
    for suite in SUITES:
        asked = [
            pq.read_table(evaluated / "rows" / f"{policy}-{suite}-rank-0000.parquet", columns=["prompt", "seed"])
            for policy in POLICIES
        ]
        assert asked[0].equals(asked[1]) and asked[0].equals(asked[2])


def test_the_manifest_names_the_files_and_the_headline_numbers(evaluated: Path) -> None:
    result = Result(evaluated / NAME)
    names = {file.path for file in result.manifest.files}
    assert {"report.json", "dashboard.html", "rows/base-greedy-rank-0000.parquet"} <= names
    assert len(result.paths("rows/")) == 13  # 3 policies x 4 suites, and the noise floor
    report = read_report(evaluated)
    assert result.manifest.metrics["rl_greedy"] == report["policies"]["rl"]["greedy"]["success"]
    assert result.manifest.metrics["tokens"] == report["stages"]["evaluate"]["tokens"]


def test_lineage_and_cost_come_from_the_inputs(evaluated: Path, inputs: dict[str, Result]) -> None:
    report = read_report(evaluated)
    assert report["lineage"]["rl"]["manifest"] == inputs["rl"].digest
    assert report["lineage"]["rl"]["inputs"]["sft"] == inputs["sft"].digest
    assert report["lineage"]["evaluate"]["inputs"]["rl"] == inputs["rl"].digest
    assert report["lineage"]["rl"]["weights_digest"] == "weights of rl"
    assert report["stages"]["sft"] == {"seconds": 2.5, "tokens": 1000}
    assert report["stages"]["synth"] == {"seconds": 1.5, "tokens": None}


def test_the_noise_floor_compares_two_batch_shapes(evaluated: Path) -> None:
    floor = read_report(evaluated)["noise_floor"]
    assert floor["slots"] == [16, 8] and floor["count"] == 40
    assert floor["changed"] == 0  # on a CPU, at this size


def test_an_evaluation_that_was_stopped_goes_on_from_the_committed_rows(
    config: StageConfig, inputs: dict[str, Result], evaluate_attempt: Callable[[], Path], evaluated: Path
) -> None:
    folder = evaluate_attempt()
    with pytest.raises(Stopped, match="before base-robustness"):
        run(config, inputs, folder, Job(stop=StopAfter(3)))
    committed = digests(folder / "rows")
    times = {name: (folder / "rows" / name).stat().st_mtime_ns for name in committed}
    assert len(committed) == 3 and not (folder / NAME).exists()
    run(config, inputs, folder, Job())
    assert {name: (folder / "rows" / name).stat().st_mtime_ns for name in committed} == times
    assert digests(folder / "rows") == digests(evaluated / "rows")
    assert read_report(folder) == read_report(evaluated)
    progress = read_progress(folder)
    assert progress is not None and progress["done"] == progress["total"] and progress["first"] == 74


def test_without_time_for_a_unit_it_is_not_begun(
    config: StageConfig, inputs: dict[str, Result], evaluate_attempt: Callable[[], Path]
) -> None:
    with pytest.raises(Stopped, match=r"s are left, .* stopped before base-greedy"):
        run(config, inputs, evaluate_attempt(), Job(ends_at=time.time() + 14))


def test_torn_files_are_removed_and_their_unit_is_done_again(
    config: StageConfig, inputs: dict[str, Result], evaluate_attempt: Callable[[], Path], evaluated: Path
) -> None:
    folder = evaluate_attempt()
    shutil.copytree(evaluated / "rows", folder / "rows")
    shutil.copytree(evaluated / "metrics", folder / "metrics")
    last = folder / "rows" / "rl-noise_floor-rank-0000.parquet"
    last.rename(last.with_name(last.name + ".writing"))
    run(config, inputs, folder, Job())
    assert digests(folder / "rows") == digests(evaluated / "rows")
    assert read_report(folder) == read_report(evaluated)


RANK = """
import sys
from pathlib import Path
from checkpoints.manifest import Result
from data.job import Job
from stages.evaluate.config import StageConfig
from stages.evaluate.graded import RowFiles
from stages.evaluate.run import run
config, folder, rank, *manifests = sys.argv[1:]
inputs = dict(zip(("synth", "sft", "rl"), (Result(Path(path)) for path in manifests)))
job = Job(rank=int(rank), world_size=2, local_rank=int(rank), rendezvous=Path(folder) / "rendezvous.json")
run(StageConfig.model_validate_json(config), inputs, Path(folder), job)
"""


@pytest.mark.slow
def test_two_ranks_give_the_report_of_one(
    config: StageConfig, inputs: dict[str, Result], evaluate_attempt: Callable[[], Path], evaluated: Path
) -> None:
    folder = evaluate_attempt()
    (folder / "rows").mkdir()
    # one rank had begun, alone
    shutil.copy(evaluated / "rows" / "base-greedy-rank-0000.parquet", folder / "rows")
    manifests = [str(inputs[stage].folder / NAME) for stage in ("synth", "sft", "rl")]
    command = [sys.executable, "-c", RANK, config.model_dump_json(), str(folder)]
    ranks = [subprocess.Popen([*command, str(rank), *manifests]) for rank in range(2)]
    assert [process.wait(120) for process in ranks] == [0, 0]
    assert len(list((folder / "rows").iterdir())) == 2 * 13 - 1
    assert read_report(folder) == read_report(evaluated)


def test_rows_of_another_number_of_ranks_are_kept_when_whole_and_removed_when_not(
    config: StageConfig, inputs: dict[str, Result], evaluate_attempt: Callable[[], Path], evaluated: Path
) -> None:
    rows = pq.read_table(evaluated / "rows" / "base-greedy-rank-0000.parquet").to_pylist()
    folder = evaluate_attempt()
    for rank in range(2):
        RowFiles(folder, rank, 2).write("base-greedy", rows[rank::2])
    RowFiles(folder, 0, 2).write("sft-greedy", rows[::2])
    run(config, inputs, folder, Job())
    names = set(digests(folder / "rows"))
    assert {"base-greedy-rank-0000.parquet", "base-greedy-rank-0001.parquet"} <= names
    assert "sft-greedy-rank-0001.parquet" not in names
    assert read_report(folder) == read_report(evaluated)


def test_a_user_without_harder_tasks_gets_a_null_and_the_reason(
    config: StageConfig, inputs: dict[str, Result], evaluate_attempt: Callable[[], Path], tmp_path: Path
) -> None:
    synth = tmp_path / "synth"
    shutil.copytree(inputs["synth"].folder, synth)
    shutil.rmtree(synth / "harder")
    manifest = json.loads((synth / NAME).read_text())
    manifest["files"] = [file for file in manifest["files"] if not file["path"].startswith("harder/")]
    (synth / NAME).write_text(json.dumps(manifest))
    folder = evaluate_attempt()
    run(config, {**inputs, "synth": Result(synth / NAME)}, folder, Job())
    report = read_report(folder)
    assert report["policies"]["rl"]["generalisation"] is None
    assert any(note.startswith("generalisation: not measured") for note in report["notes"])
    assert "Generalisation" not in (folder / "dashboard.html").read_text().split("<script")[0]
