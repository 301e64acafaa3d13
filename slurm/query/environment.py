"""The environment in which a command of Slurm is asked."""

import os

KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER")
"""They say which cluster this is."""
OF_SLURM = ("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_")


def slurm_environment() -> dict[str, str]:
    """This process's environment without what a person, or the job around us, has set for Slurm's commands.

    Many options have a variable, such as SQUEUE_PARTITION, SLURM_CLUSTERS and SLURM_TIME_FORMAT: an answer under them
    is about other jobs than those that were asked for, or in another form than the one that is read.
    """
    return {name: value for name, value in os.environ.items() if name in KEPT or not name.startswith(OF_SLURM)}
