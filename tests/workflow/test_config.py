import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow.config import INPUTS, SCHEMA, RunConfig, identity, load, schema_text
from workflow.layers import Layer, merge


@pytest.fixture
def write(here):
    def write_file(text: str, name: str = "mine.yaml") -> str:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
        return name

    return write_file


def refused(*arguments: str) -> str:
    with pytest.raises(ValueError) as caught:
        load(list(arguments))
    return str(caught.value)


def test_without_a_file_the_run_is_the_demo(here):
    assert load([]).name == "demo"


def test_a_run_is_named_after_its_first_file_unless_it_has_a_name(write):
    first, second = write("seed: 2", "a b'c.yaml"), write("{}", "other.yaml")
    assert load([first, second]).name == "a-b-c"
    assert load([first, "name=mine"]).name == "mine"


def test_later_files_and_overrides_win_section_by_section(write):
    base, more = write("rl: {steps: 7, learning_rate: 1.0e-3}", "base.yaml"), write("rl: {steps: 8}", "more.yaml")
    run = load([base, more, "rl.learning_rate=3e-4", "evaluate.pass_at=[1, 2]"])
    assert (run.rl.steps, run.rl.learning_rate, run.evaluate.pass_at) == (8, 3e-4, (1, 2))


def test_an_environment_of_another_kind_starts_afresh(write):
    base = write("environment: {name: arithmetic, modulus: 7}")
    run = load([base, "environment={name: rows, path: x.jsonl}"])
    assert run.environment.model_dump()["path"] == "x.jsonl"
    assert load([base, "environment.modulus=5"]).environment.modulus == 5


def test_an_unknown_key_names_the_file_the_line_and_the_key_that_was_meant(write):
    file = write("seed: 1\nrl:\n  learning_rat: 1\n")
    message = refused(file)
    assert message.startswith("mine.yaml:3: unknown key `rl.learning_rat`; did you mean `learning_rate`?")
    assert "Valid keys of `rl`: activation_checkpointing, algorithm" in message


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("learning_rate=1", "`sft.learning_rate` or `rl.learning_rate`"),
        ("rl.optimizer.learning_rate=1", "`rl.learning_rate`"),
        ("environment.modulu=3", "`modulus`"),
        ("slurm.rl.node=3", "`nodes`"),
    ],
)
def test_a_key_in_the_wrong_place_says_where_it_belongs(here, override, meant):
    message = refused("environment.name=arithmetic", override)
    assert message.startswith(f"command line ({override}): unknown key")
    assert meant in message


def test_a_value_of_the_wrong_type_names_key_source_value_and_what_it_should_be(write):
    file = write("rl:\n  steps: many\n")
    assert refused(file) == "mine.yaml:2: `rl.steps` is 'many', but it should be a valid integer, unable to parse " + (
        "string as an integer"
    )
    assert "command line (rl.steps=0): `rl.steps` is 0, but it should be greater than 0" in refused(file, "rl.steps=0")
    assert "`sft` is 3, but it is a section: give it `key: value` lines" in refused("sft=3")
    assert "`rl.learning_rate` is inf, but it should be a finite number" in refused("rl.learning_rate=.inf")
    assert "(evaluate.pass_at=[1, x]): `evaluate.pass_at.1` is 'x'" in refused("evaluate.pass_at=[1, x]")


def test_values_that_do_not_go_together_are_told_without_the_whole_section(here):
    message = refused("rl.sampling.temperature=0")
    assert "`rl`: rl.sampling.temperature: 0 is greedy" in message
    assert "{" not in message


def test_a_key_that_is_there_twice_names_both_lines(write):
    file = write("seed: 1\nrl:\n  steps: 3\n  algorithm: ppo\n  steps: 4\n")
    assert refused(file) == "mine.yaml:5: `rl.steps` is here again; it stands in line 3 already"


def test_all_mistakes_are_told_at_once(write):
    assert len(refused(write("rl: {steps: x, stepz: 1}\nseed: y\n")).splitlines()) == 3


def test_an_unknown_kind_of_environment_lists_the_kinds(write):
    kinds = "`environment.name` should be one of 'arithmetic', 'guess', 'rows'"
    assert kinds in refused("environment.name=chess")
    assert kinds in refused(write("environment: {modulus: 3}"))


@pytest.mark.parametrize(
    ("text", "told"), [("a: [", "is not YAML"), ("- 1\n", "found list"), ("3", "found int"), ("a: b: c", "line 1")]
)
def test_a_file_that_is_no_config_is_named(write, text, told):
    message = refused(write(text))
    assert "config file mine.yaml" in message
    assert told in message


def test_a_file_that_is_no_text_is_named(write, here):
    (here / write("")).write_bytes(b"\xff\xfe")
    assert refused("mine.yaml").startswith("config file mine.yaml is not UTF-8 text")


def test_a_missing_file_is_named(here):
    assert refused("nowhere.yaml") == "config file nowhere.yaml: No such file or directory"


def test_a_path_in_a_config_may_be_meant_from_beside_it(write, here):
    file = write("environment: {name: rows, path: rows.jsonl}\nmodel: {folder: none}", "configs/mine.yaml")
    (here / "configs" / "rows.jsonl").touch()
    run = load([file])
    assert Path(run.environment.model_dump()["path"]) == here / "configs" / "rows.jsonl"
    assert run.model.folder == "none"
    (here / "rows.jsonl").touch()
    assert load([file]).environment.model_dump()["path"] == "rows.jsonl"


def test_the_resolved_config_is_a_config_that_means_the_same(write, here):
    run = load([write("seed: 4\nrl: {steps: 2}")])
    (here / "config.json").write_text(json.dumps(run.model_dump(mode="json")))
    assert load(["config.json"]) == run


def test_a_source_is_remembered_from_here_or_from_qianka(write, here):
    assert identity(Path(write("{}", "a/b.yaml"))) == "a/b.yaml"
    assert load([]).source == "workflow/configs/demo.yaml"
    assert identity(Path("/elsewhere/x.yaml")) == "/elsewhere/x.yaml"


def test_a_stage_reads_its_part_and_no_setting_of_the_cluster(here):
    run = load([])
    for stage in INPUTS:
        assert "slurm" not in run.stage_json(stage)
        assert run.stage_json(stage)["seed"] == run.seed
    assert run.stage_json("rl") == load(["slurm.rl.nodes=4", "sft.steps=3", "name=x"]).stage_json("rl")


def test_the_schema_on_disk_is_that_of_the_code():
    assert SCHEMA.read_text() == schema_text(), "run `qianka schema --write`"


def test_the_schema_explains_every_section():
    for name, section in json.loads(schema_text())["$defs"].items():
        assert section.get("description"), name


KEYS = st.sampled_from(["a", "b", "c"])
TREES = st.recursive(st.integers(), lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=6).map(
    lambda tree: tree if isinstance(tree, dict) else {"a": tree}
)


@given(st.lists(TREES, min_size=1, max_size=3))
def test_merging_keeps_the_last_word_on_every_key(trees):
    merged = merge([Layer(str(i), tree) for i, tree in enumerate(trees)])

    def check(last, result):
        for key, value in last.items():
            if isinstance(value, dict) and isinstance(result[key], dict):
                check(value, result[key])
            else:
                assert result[key] == value

    check(trees[-1], merged)
    assert set(merged) == set().union(*trees)


def test_the_tree_has_no_key_that_two_stages_share_by_accident():
    assert set(RunConfig.model_fields) == {
        "engine",
        "name",
        "source",
        "profile",
        "seed",
        "environment",
        "model",
        "slurm",
        *INPUTS,
    }


@pytest.mark.parametrize("key", ["rl.steps", "seed", "rl.learning_rate", "slurm.rl.nodes", "slurm.watch.start_minutes"])
def test_yes_and_no_are_no_numbers(here, key):
    assert refused(f"{key}=true") == f"command line ({key}=true): `{key}` is True, but it should not be true or false"


def test_a_switch_is_still_one(here):
    assert load(["rl.activation_checkpointing=true"]).rl.activation_checkpointing is True


def test_a_number_beyond_all_sense_is_refused(here):
    assert "`rl.steps` is 1000000000000000000000, but it should be at most 1,000,000,000,000,000" in refused(
        "rl.steps=1000000000000000000000"
    )


def test_nobody_but_qianka_names_the_source_of_a_run(write):
    assert "`source` is filled in by Qianka; remove it" in refused("source=other.yaml")
    assert refused(write("source: other.yaml")).startswith("mine.yaml:1: `source` is filled in by Qianka")
