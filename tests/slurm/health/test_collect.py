"""Nodes that give no answer are named, with the reason where there is one, and nobody is waited for in vain."""

import subprocess
import time

import pytest

from checkpoints.manifest import write_json
from slurm.health.collect import Limits, collect, compare
from slurm.health.finding import Finding
from slurm.health.node import Report


@pytest.fixture
def step(tmp_path):
    """`step(node, shell)`: a node's step; they end with the test."""
    started = []

    def start(node, shell="exec sleep 60"):
        with (tmp_path / f"step-{node}.log").open("wb") as log:
            started.append(subprocess.Popen(["sh", "-c", shell], stdout=log, stderr=log))
        return {node: started[-1]}

    yield start
    for process in started:
        process.kill()
        process.wait()


def reports(folder, node, doing="", findings=()):
    write_json(folder / f"node-{node}.json", Report(node=node, doing=doing, findings=findings).model_dump())
    write_json(folder / f"hello-{node}.json", {"node": node, "address": None, "port": 1, "token": "x"})


def answers(found):
    return {finding.node: finding.measured for finding in found if finding.check == "answer"}


def test_a_node_that_is_silent_is_named_within_the_limit_and_the_others_are_heard(tmp_path, step):
    well = Finding("matmul", "mx0", "ok", "exact")
    reports(tmp_path, "mx0", findings=(well,))
    said = []
    found = collect(tmp_path, step("mx0") | step("mx1"), Limits(answer=0.5), said.append)
    assert well in found
    assert answers(found) == {"mx1": "no answer within 0.5 s of the job's start"}
    assert said == ["1 of 2 nodes have answered: 1 done"]


def test_when_nobody_answers_all_are_named(tmp_path, step):
    found = collect(tmp_path, step("mx0") | step("mx1"), Limits(answer=0.5), print)
    assert set(answers(found)) == {"mx0", "mx1"}


def test_a_step_that_cannot_start_is_not_waited_for_and_says_why(tmp_path, step):
    begin = time.monotonic()
    found = collect(tmp_path, step("mx0", "echo bash: module: command not found >&2; exit 127"), Limits(), print)
    assert answers(found) == {"mx0": "no answer: its step ended with 127: bash: module: command not found"}
    assert time.monotonic() - begin < 10


def test_a_node_that_dies_on_the_way_keeps_what_it_found_and_says_what_it_was_at(tmp_path, step):
    well = Finding("fsync", "mx0", "ok", "1 ms")
    reports(tmp_path, "mx0", "torch", (well,))
    found = collect(tmp_path, step("mx0", "echo srun: error: node failure; exit 137"), Limits(), print)
    assert well in found
    assert answers(found) == {"mx0": "its step ended with 137: srun: error: node failure; it was at: torch"}


def test_a_node_that_is_not_done_in_time_is_bad(tmp_path, step):
    reports(tmp_path, "mx0", "all-reduce")
    found = collect(tmp_path, step("mx0"), Limits(answer=0.2, node=0.3), print)
    assert answers(found) == {"mx0": "not done after 0.3 s; it was at: all-reduce"}


def test_a_node_with_other_versions_than_most_is_bad():
    same = [Finding("versions", f"mx{number}", "ok", "torch 2.8") for number in range(3)]
    assert compare(same, ["mx0", "mx1", "mx2"]) == []
    (odd,) = compare([*same, Finding("versions", "mx3", "ok", "torch 2.7")], ["mx0", "mx1", "mx2", "mx3"])
    assert (odd.node, odd.verdict, odd.measured) == ("mx3", "bad", "other ones than most nodes have: torch 2.7")
