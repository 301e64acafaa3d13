"""`qianka plan --algorithm`: an algorithm checked and drawn without a run."""

import io
import re
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from stages.algorithms.load import load_algorithm
from stages.algorithms.spec import SHIPPED
from workflow.cli import app
from workflow.config import load
from workflow.drawing import draw_algorithm, draw_file

OWN = """
from stages.algorithms.kinds import PerToken
from stages.algorithms.operator import operator

@operator()
def bend(of: PerToken, *, by: float = 1.0) -> PerToken:
    return of * by
"""

ALGORITHM = """
description: A file of one's own.
settings: {steps: 60, learning_rate: 3.0e-4, sampling: {temperature: 0.8}}
operators: [own.py]
skip_where_zero: centred
resample: 2
experience:
  mean: {operator: group_mean, takes: {of: reward}}
  centred: {operator: subtract_group, takes: {of: reward, group: mean}}
  advantage: {operator: over_tokens, takes: {of: centred}}
  bent: {operator: bend, takes: {of: rollout_logprobs}, values: {by: 3}, retries: 2, seconds: 30}
update:
  policy: {operator: policy_forward}
  weighted: {operator: policy_gradient, takes: {logprobs: policy.logprobs, advantage: advantage}}
  loss: {operator: token_mean, takes: {of: weighted}}
metrics: {bent: bent}
"""


@pytest.fixture
def mine(here: Path) -> Path:
    (here / "mine.yaml").write_text(ALGORITHM)
    (here / "own.py").write_text(OWN)
    return here


def drawn(picture: object, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(picture)
    return console.export_text()


def test_the_picture_has_loops_settings_kinds_limits_and_metrics(mine: Path) -> None:
    text = drawn(draw_file("mine.yaml"))
    for line in (
        "algorithm mine",
        "A file of one's own.",
        r"loop +epochs 1 · minibatches 1 · skip where zero centred",
        r"resample at most 2 more rounds",
        r"settings +steps 60 · learning_rate 0\.0003 · sampling\.temperature 0\.8",
        r"given +reward per sample · rollout_logprobs per token",
        r"│ group ← mean +│",
        r"│ → per sample +│",
        r"│ by 3 +│",
        r"│ retries 2 +│",
        r"│ at most 30 s +│",
        r"│ → \.logprobs per token │",
        r"metrics +bent ← bent",
    ):
        assert re.search(line, text), line


def test_branches_are_side_by_side_and_what_waits_is_below(mine: Path) -> None:
    lines = drawn(draw_file("mine.yaml")).splitlines()
    (beside,) = [line for line in lines if "─ mean ─" in line]
    assert "─ bent ─" in beside
    tops = [
        next(n for n, line in enumerate(lines) if f"─ {name} ─" in line) for name in ("mean", "centred", "advantage")
    ]
    assert tops == sorted(tops) and len(set(tops)) == 3


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.glob("*.yaml")))
def test_every_shipped_algorithm_fits_the_width_with_all_its_nodes(here: Path, name: str, width: int) -> None:
    text = drawn(draw_file(name), width)
    algorithm = load_algorithm(name)
    assert all(f"─ {node.name} ─" in text for node in (*algorithm.experience, *algorithm.update))
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    boxes = [line for line in text.splitlines() if line.startswith("╭")]
    assert all(line.count("╭") == line.count("╮") for line in boxes)
    assert not re.search(r"│ [^│]*…", text)


def test_the_plan_of_a_run_shows_the_values_that_it_has(mine: Path) -> None:
    text = drawn(draw_algorithm(load(["rl.algorithm=mine.yaml", "rl.steps=9"])))
    assert re.search(r"settings +steps 9 \(the file has 60\) · learning_rate 0\.0003", text)


def test_a_terminal_that_knows_no_arrows_gets_letters_in_the_same_places(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Console, "encoding", "ascii")
    text = drawn(draw_file("mine.yaml"))
    assert text.isascii() and re.search(r"\| group < mean +\|", text)


def test_the_command_needs_no_run_and_is_quick(mine: Path) -> None:
    began = time.process_time()
    done = CliRunner().invoke(app, ["plan", "--algorithm", "mine.yaml"])
    assert done.exit_code == 0 and "─ centred ─" in done.output
    assert time.process_time() - began < 5, "a fraction of a second on a quiet machine"
    assert not (mine / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    {
        ("gpro",): r"'gpro' is neither a shipped algorithm",
        ("ppo", "rl.steps=3"): r"--algorithm draws ppo by itself; .* planned with rl\.algorithm=ppo",
        ("wrong.yaml",): r"wrong\.yaml:3: unknown key `rl\.step`; did you mean .*`steps`",
        ("broken.yaml",): r"broken\.yaml: update\.weighted: there is no operator 'policy_gradien'; did you mean",
    }.items(),
)
def test_a_mistake_is_an_error_and_no_picture(mine: Path, arguments: tuple[str, ...], message: str) -> None:
    (mine / "wrong.yaml").write_text(ALGORITHM.replace("steps:", "step:"))
    (mine / "broken.yaml").write_text(ALGORITHM.replace("policy_gradient", "policy_gradien"))
    done = CliRunner().invoke(app, ["plan", "--algorithm", *arguments])
    assert done.exit_code == 2 and re.search(message, done.output), done.output
