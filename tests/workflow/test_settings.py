"""The settings that an algorithm file brings into the config."""

import json
from pathlib import Path

import pytest

from stages.algorithms.spec import SHIPPED, read_spec
from stages.rl.config import RLConfig
from workflow.config import load
from workflow.preflight import check_config
from workflow.request import make_request
from workflow.settings import settings_of

UPDATE = """
update:
  policy: {operator: policy_forward}
  loss: {operator: token_mean, takes: {of: policy.logprobs}}
"""


def algorithm(folder: Path, name: str, settings: str, more: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"settings: {settings}\n{more}{UPDATE}")
    return folder / name


@pytest.fixture
def quick(here: Path) -> Path:
    return algorithm(here / "mine", "quick.yaml", "{steps: 7, learning_rate: 3.0e-4, sampling: {temperature: 0.7}}")


def test_settings_lie_under_all_that_a_user_writes(here: Path, quick: Path) -> None:
    (here / "run.yaml").write_text("rl: {algorithm: mine/quick.yaml, sampling: {slots: 5}}\n")
    rl = load(["run.yaml", "rl.steps=9"]).rl
    assert (rl.steps, rl.learning_rate, rl.sampling.temperature, rl.sampling.slots) == (9, 3e-4, 0.7, 5)
    assert rl.prompts_per_step == RLConfig().prompts_per_step


def test_the_algorithm_may_be_named_by_any_layer_and_its_settings_go_with_it(here: Path, quick: Path) -> None:
    slow = algorithm(here / "mine", "slow.yaml", "{steps: 70}")
    (here / "run.yaml").write_text("rl: {algorithm: mine/quick.yaml}\n")
    assert load(["run.yaml"]).rl.steps == 7
    assert load(["run.yaml", f"rl.algorithm={slow}"]).rl.steps == 70
    assert load(["run.yaml"], {"rl": {"algorithm": "mine/slow.yaml"}}).rl.learning_rate == RLConfig().learning_rate


def test_the_resolved_config_gives_the_same_values_wherever_and_whenever_it_is_read(
    here: Path, quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "run.yaml").write_text("rl: {algorithm: mine/quick.yaml, learning_rate: 1.0e-5}\n")
    run = load(["run.yaml"])
    assert run.rl.algorithm == str(quick.resolve())
    (here / "config.json").write_text(json.dumps(run.model_dump(mode="json")))
    algorithm(here / "mine", "quick.yaml", "{steps: 8, samples_per_prompt: 3}")
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    assert load(["../config.json"]) == run


def test_a_resolved_config_under_another_algorithm_keeps_only_what_a_person_had_written(
    here: Path, quick: Path
) -> None:
    slow = algorithm(here / "mine", "slow.yaml", "{steps: 70, learning_rate: 0.5, sampling: {temperature: 0.9}}")
    (here / "run.yaml").write_text("rl: {algorithm: mine/quick.yaml, learning_rate: 1.0e-5, sampling: {slots: 5}}\n")
    (here / "config.json").write_text(json.dumps(load(["run.yaml"]).model_dump(mode="json")))
    rl = load(["config.json", f"rl.algorithm={slow}"]).rl
    assert (rl.steps, rl.learning_rate, rl.sampling.temperature, rl.sampling.slots) == (70, 1e-5, 0.9, 5)


def test_a_resolved_config_whose_algorithm_is_gone_is_not_guessed_at(here: Path, quick: Path) -> None:
    (here / "config.json").write_text(json.dumps(load(["rl.algorithm=mine/quick.yaml"]).model_dump(mode="json")))
    quick.unlink()
    with pytest.raises(ValueError, match=r"config\.json: rl\.algorithm: .*quick\.yaml.*; without it nobody knows"):
        load(["config.json", "rl.algorithm=ppo"])


def test_a_reward_term_in_the_settings_is_found_beside_the_algorithm(here: Path) -> None:
    algorithm(here / "mine", "own.yaml", "{rewards: [{term: verifier}, {term: 'own_term.py:short', weight: 0.5}]}")
    (here / "mine" / "own_term.py").write_text("def short(episode) -> float:\n    return 1.0\n")
    terms = [reward.term for reward in load(["rl.algorithm=mine/own.yaml"]).rl.rewards]
    assert terms == ["verifier", f"{here / 'mine' / 'own_term.py'}:short"]


WRONG = {
    "{learning_rat: 1}": r"mine/wrong\.yaml:1: unknown key `rl\.learning_rat`; did you mean .*`learning_rate`.* Valid",
    "{sampling: {heat: 1}}": r"mine/wrong\.yaml:1: unknown key `rl\.sampling\.heat`.*Valid keys of `rl\.sampling`: ",
    "{steps: many}": r"mine/wrong\.yaml:1: `rl\.steps` is 'many', but it should be a valid integer",
    "{algorithm: ppo}": r"mine/wrong\.yaml: settings\.algorithm: a file is one algorithm, and does not name another",
    "3": r"mine/wrong\.yaml: settings: input should be a valid dictionary",
}


@pytest.mark.parametrize("settings", WRONG)
def test_a_wrong_setting_names_the_algorithm_file_the_line_the_key_and_the_valid_ones(
    here: Path, settings: str
) -> None:
    algorithm(here / "mine", "wrong.yaml", settings)
    with pytest.raises(ValueError, match=WRONG[settings]):
        load(["rl.algorithm=mine/wrong.yaml"])


def test_an_unknown_algorithm_names_the_line_that_names_it(here: Path) -> None:
    (here / "run.yaml").write_text("seed: 1\nrl:\n  algorithm: gpro\n")
    with pytest.raises(ValueError, match=r"run\.yaml:3: rl\.algorithm: 'gpro' is neither a shipped algorithm"):
        load(["run.yaml"])


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_settings_of_a_shipped_algorithm_are_valid_and_are_those_of_the_demo(here: Path, path: Path) -> None:
    RLConfig.model_validate(settings_of(path).values["rl"])
    rl = load([f"rl.algorithm={path.stem}"]).rl.model_dump()
    assert {key: rl[key] for key, value in read_spec(path).settings.items() if not isinstance(value, dict)} == {
        key: value for key, value in read_spec(path).settings.items() if not isinstance(value, dict)
    }
    assert rl["algorithm"] == path.stem


OPERATOR = """
from stages.algorithms.kinds import PerToken, Scalar
from stages.algorithms.operator import operator

@operator()
def half(of: PerToken, *, by: float = 2.0) -> Scalar:
    return of.mean() / by
"""


def test_the_files_of_a_users_operators_are_checked_first_and_count_in_the_fingerprint(here: Path, finish) -> None:
    text = "update:\n  policy: {operator: policy_forward}\n  loss: {operator: half, takes: {of: policy.logprobs}}\n"
    (here / "mine").mkdir()
    (here / "mine" / "own.yaml").write_text(f"operators: [own.py]\n{text}")
    (here / "mine" / "own.py").write_text(OPERATOR)
    arguments = ["rl.algorithm=mine/own.yaml", "slurm.executor=local"]
    check_config(load(arguments))
    finish(arguments, "synth", "sft")
    names = list[str]()
    for text in (OPERATOR, OPERATOR.replace("2.0", "3.0")):
        (here / "mine" / "own.py").write_text(text)
        request = make_request(load(arguments), "rl", 1)
        assert f"rl.algorithm {here / 'mine' / 'own.py'}" in request.files
        names.append(request.fingerprint())
    assert names[0] != names[1] and Path(request.config["rl"]["algorithm"]).is_absolute()
    (here / "mine" / "own.py").write_text("import torch_that_is_not_here\n")
    with pytest.raises(
        ValueError, match=r"own\.yaml: operators: .*own\.py:1: ModuleNotFoundError: .*inside the functi"
    ):
        check_config(load(arguments))


@pytest.mark.parametrize("content", [b"epochs: [\nupdate: {}\n", b"description: \xff\n"], ids=["not YAML", "not UTF-8"])
def test_an_algorithm_file_that_cannot_be_read_is_named(here: Path, content: bytes) -> None:
    (here / "mine.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=r"mine\.yaml: not YAML"):
        load(["rl.algorithm=mine.yaml"])
