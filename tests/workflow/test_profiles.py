"""Profiles: the site's layer below all others, through the command and through Snakemake."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from workflow.config import INPUTS, SCHEMA, load
from workflow.profile import PROFILES, over_profile

SHIPPED = sorted(path.parent.name for path in PROFILES.glob("*/site.yaml"))
MINE = "slurm: {partition: mine, rl: {minutes: 7}, setup: [module load a]}\n"


@pytest.fixture
def site(here) -> Path:
    """A profile of the user's own in the folder `site` of the working directory."""
    (here / "site").mkdir()
    (here / "site" / "site.yaml").write_text(MINE)
    (here / "site" / "config.yaml").write_text("cores: 1\nconfig:\n  profile: site\n")
    return here / "site"


def test_the_shipped_profiles_are_these():
    assert SHIPPED == ["local", "metax", "slurm"]
    assert sorted(path.parent.name for path in PROFILES.glob("*/config.yaml")) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_is_a_config_that_plans_and_that_the_schema_knows(name, here, qianka, snakemake):
    values = yaml.safe_load((PROFILES / name / "site.yaml").read_text())
    jsonschema.validate(values, json.loads(SCHEMA.read_text()))
    assert load([f"profile={name}"]).slurm.executor == ("local" if name == "local" else "slurm")

    planned = qianka(here, "plan", f"profile={name}", "slurm.executor=local")
    assert planned.returncode == 0, planned.stdout
    dry = snakemake("-n", "--workflow-profile", PROFILES / name, cwd=here)
    assert dry.returncode == 0, dry.stdout
    assert all(f"rule {stage}:" in dry.stdout for stage in INPUTS)
    assert not (here / "runs").exists()


def test_everything_else_wins_over_a_profile_and_the_resolved_config_needs_it_no_more(site):
    (site.parent / "mine.yaml").write_text("profile: site\nslurm: {rl: {nodes: 2}}\n")
    run = load(["mine.yaml", "slurm.partition=other"])
    assert (run.slurm.partition, run.slurm.rl.minutes, run.slurm.rl.nodes) == ("other", 7, 2)
    (site.parent / "config.json").write_text(run.model_dump_json())
    (site / "site.yaml").unlink()
    assert load(["config.json"]) == run
    assert run.profile == ""


def test_a_profile_changes_no_result_of_a_stage(site):
    with_it, without = load(["profile=site"]), load([])
    assert [with_it.stage(stage) for stage in INPUTS] == [without.stage(stage) for stage in INPUTS]


def test_the_last_one_to_name_a_profile_is_heard(site):
    (site.parent / "mine.yaml").write_text("profile: slurm\n")
    assert load(["mine.yaml", "profile=site"]).slurm.partition == "mine"
    assert load(["mine.yaml", "profile="]).slurm.executor == "auto"
    assert load([str(site.parent / "mine.yaml"), f"profile={site}"]).slurm.partition == "mine"


def test_a_profile_may_lie_beside_the_config_file_that_names_it(site, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (site.parent / "mine.yaml").write_text("profile: site\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load([str(site.parent / "mine.yaml")]).slurm.partition == "mine"


@pytest.mark.parametrize(
    ("text", "arguments", "told"),
    [
        (MINE, ["profile=metx"], "there is no profile 'metx'; did you mean metax? There are local, metax, slurm, or"),
        (MINE, ["profile=[1]"], "`profile` is [1], but it should be a name or a folder"),
        ("slurm: {partitoin: x}", ["profile=site"], "site/site.yaml:1: unknown key `slurm.partitoin`; did you mean"),
        (
            "seed: 1\nrl: {steps: 3}",
            ["profile=site"],
            "site/site.yaml:1: a profile has the section `slurm` and nothing",
        ),
        ("- a", ["profile=site"], "site/site.yaml: expected `key: value` lines"),
    ],
)
def test_a_mistake_in_a_profile_is_told_where_it_is(site, text, arguments, told):
    (site / "site.yaml").write_text(text)
    with pytest.raises(ValueError) as caught:
        load(arguments)
    assert told in str(caught.value)


def test_a_folder_without_a_site_is_no_profile(here):
    (here / "empty").mkdir()
    with pytest.raises(ValueError, match="the profile 'empty' has no site.yaml in"):
        load(["profile=empty"])


def test_snakemakes_config_does_not_make_it_forget_the_profile(site, snakemake):
    """Snakemake takes `--config` instead of its profile's `config`, and not over it."""
    mine = site.parent / "mine.yaml"
    mine.write_text("rl: {steps: 3}\n")
    (site / "site.yaml").write_text("slurm: {rl: {nodes: [1]}}\n")  # which is told, if it is read
    arguments = ("-n", "--workflow-profile", "site", "--configfile", "mine.yaml", "--config", "seed=5")
    assert "site/site.yaml:1: `slurm.rl.nodes`" in snakemake(*arguments, cwd=site.parent).stdout


def test_what_snakemakes_command_line_says_is_laid_over_its_profile(site):
    arguments = ["snakemake", "--workflow-profile=site", "--config", "rl={steps: 3}"]
    assert over_profile({"rl": {"steps": 3}}, arguments) == {"profile": "site", "rl": {"steps": 3}}
    assert over_profile({"profile": "slurm"}, arguments) == {"profile": "slurm"}
    assert over_profile({"seed": 1}, ["snakemake", "-n"]) == {"seed": 1}
