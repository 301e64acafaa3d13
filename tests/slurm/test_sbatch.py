"""What is asked of sbatch, to the letter."""

import sys
from pathlib import Path

import pytest
import submitit

from slurm.ask.submit import slurm_parameters
from slurm.config import ResourcesConfig, SlurmConfig
from slurm.exclusions import exclude
from slurm.inside.environment import Setting

ROOT = Path(__file__).parents[2]
EXPECTED = """\
#!/bin/bash

# Parameters
#SBATCH --account=lab
#SBATCH --cpus-per-task=4
#SBATCH --dependency=singleton
#SBATCH --gpus-per-node=8
#SBATCH --job-name=demo-synth-1
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --open-mode=append
#SBATCH --output=/x/log/%j_0_log.out
#SBATCH --partition=mx
#SBATCH --qos=high
#SBATCH --requeue
#SBATCH --signal=USR2@300
#SBATCH --time=90

# setup
echo "job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)) on $SLURM_JOB_NODELIST"
export OMP_WAIT_POLICY=PASSIVE
export PYTHONSAFEPATH=1
export SUBMITIT_LOG_LEVEL=WARNING

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output /x/log/%j_%t_log.out --kill-on-bad-exit=1 --cpus-per-task=4 PYTHON -u -m \
submitit.core._submit /x/log
"""


def text(request, fake_slurm, folder: str) -> str:
    executor = submitit.SlurmExecutor(folder)
    executor.update_parameters(**slurm_parameters(request, "demo-synth-1"))
    return executor._make_submission_file_text(executor._submitit_command_str, "uid").replace(sys.executable, "PYTHON")


def test_the_batch_script_of_a_stage(request_for, fake_slurm):
    shape = ResourcesConfig(nodes=2, tasks_per_node=8, cpus_per_task=4, gpus_per_node=8, minutes=90)
    site = SlurmConfig(account="lab", partition="mx", signal_seconds=300, additional={"qos": "high"}, synth=shape)
    assert text(request_for(slurm=site), fake_slurm, "/x/log") == EXPECTED


def test_there_is_no_wckey_unless_it_is_configured(request_for, fake_slurm):
    assert "wckey" not in text(request_for(), fake_slurm, "/x/log")
    keyed = SlurmConfig(additional={"wckey": "mine"})
    assert "#SBATCH --wckey=mine\n" in text(request_for(slurm=keyed), fake_slurm, "/x/log")


def test_a_folder_of_any_name_is_quoted(request_for, fake_slurm):
    script = text(request_for(), fake_slurm, "/x/a b'c$d/log")
    assert """#SBATCH --output='/x/a b'"'"'c$d/log/%j_0_log.out'\n""" in script
    assert """submitit.core._submit '/x/a b'"'"'c$d/log'\n""" in script


def test_a_stage_takes_an_option_of_the_site_away_with_false(request_for, fake_slurm):
    site = SlurmConfig(
        additional={"exclusive": True, "mail_user": "a"},
        mail_user="b",
        synth=ResourcesConfig(additional={"exclusive": False}),
    )
    script = text(request_for(slurm=site), fake_slurm, "/x/log")
    assert "exclusive" not in script
    assert "#SBATCH --mail-user=a\n" in script


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("array", "one job for one attempt"),
        ("job_name", "finds its job by the name"),
        ("output", "the logs lie in the attempt folder"),
        ("export", "set slurm.environment"),
        ("time", "set slurm.<stage>.minutes"),
        ("ntasks-per-node", "set slurm.<stage>.tasks_per_node"),
        ("no-requeue", "is always requeued"),
        ("signal", "set slurm.signal_seconds"),
        ("L", "no long name of an option of sbatch"),
    ],
)
def test_an_option_that_is_not_the_users_is_refused_with_what_to_do(option, told):
    with pytest.raises(ValueError, match="cannot be given|no long name") as caught:
        ResourcesConfig(additional={option: "x"})
    assert told in str(caught.value)


@pytest.mark.parametrize("value", ["a\nb", "a\0b", "", "\x1b[31m"])
def test_a_value_is_one_line_of_the_batch_script(value):
    with pytest.raises(ValueError, match="one line of printable text"):
        SlurmConfig(comment=value)


def test_nodes_that_the_run_avoids_join_those_of_the_user(request_for, fake_slurm):
    request = request_for(slurm=SlurmConfig(additional={"exclude": "mx[07-09],a1"}))
    exclude(request.run_folder, ["mx2", "mx1"], "a card is broken", hours=1)
    assert "#SBATCH --exclude='mx[07-09],a1,mx1,mx2'\n" in text(request, fake_slurm, "/x/log")
    exclude(request_for().run_folder, ["mx3"], "long ago", hours=-1)
    assert "--exclude=mx1,mx2\n" in text(request_for(slurm=SlurmConfig()), fake_slurm, "/x/log")


SECRETS = [
    "HF_TOKEN",
    "WANDB_KEY",
    "SSH_KEY",
    "OPENAI_KEY",
    "APIKEY",
    "DB_PWD",
    "GITHUB_PAT",
    "MYSQL_PASS",
    "MY_secret",
]
OPEN = ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "PATH", "PWD", "OLDPWD", "GIT_AUTHOR", "NCCL_BYPASS_X", "KEYBOARD"]


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_stands_in_no_batch_script_and_no_run_folder_and_is_not_shown(name):
    for setting in (
        {"setup": [f"export {name}=abc"]},
        {"environment": {name: {"value": "abc", "source": "me"}}},
        {"comment": f"with {name}=abc"},
        {"rl": {"additional": {"comment": f"{name}='abc'"}}},
    ):
        with pytest.raises(ValueError, match=f"{name} would .* a file that only you can read"):
            SlurmConfig.model_validate(setting)
    setup, variable = [f"export {name}=$(cat ~/.token)"], {"value": None, "source": "not for jobs"}
    SlurmConfig.model_validate({"setup": setup, "environment": {name: variable}})
    assert "abc" not in str(Setting(name, "abc", "me"))


@pytest.mark.parametrize("name", OPEN)
def test_what_only_looks_like_a_secret_is_none(name):
    SlurmConfig.model_validate(
        {"setup": [f"export {name}=9"], "environment": {name: {"value": "9", "source": "me"}}, "comment": f"{name}=9"}
    )
    assert "9" in str(Setting(name, "9", "me"))


@pytest.mark.parametrize("stage", ["synth", "sft", "rl", "evaluate"])
def test_the_scripts_for_submitting_by_hand_differ_in_the_stage_alone(stage):
    folder = ROOT / "slurm" / "sbatch"
    assert (folder / f"{stage}.sbatch").read_text().replace("$stage", "x").replace(f" {stage} ", " STAGE ").replace(
        f"{stage}.sbatch", "STAGE.sbatch"
    ).replace(f"qianka-{stage}", "qianka-STAGE") == (folder / "rl.sbatch").read_text().replace(
        " rl ", " STAGE "
    ).replace("rl.sbatch", "STAGE.sbatch").replace("qianka-rl", "qianka-STAGE")
