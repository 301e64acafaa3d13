"""What is asked of sbatch, to the letter."""

import sys
from pathlib import Path

import pytest
import submitit

from slurm.config import ResourcesConfig, SlurmConfig
from slurm.submit import slurm_parameters

ROOT = Path(__file__).parents[2]
EXPECTED = """\
#!/bin/bash

# Parameters
#SBATCH --account=lab
#SBATCH --cpus-per-task=4
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


@pytest.mark.parametrize("stage", ["synth", "sft", "rl", "evaluate"])
def test_the_scripts_for_submitting_by_hand_differ_in_the_stage_alone(stage):
    folder = ROOT / "slurm" / "sbatch"
    assert (folder / f"{stage}.sbatch").read_text().replace("$stage", "x").replace(f" {stage} ", " STAGE ").replace(
        f"{stage}.sbatch", "STAGE.sbatch"
    ).replace(f"qianka-{stage}", "qianka-STAGE") == (folder / "rl.sbatch").read_text().replace(
        " rl ", " STAGE "
    ).replace("rl.sbatch", "STAGE.sbatch").replace("qianka-rl", "qianka-STAGE")
