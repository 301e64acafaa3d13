"""What the manifests know and Snakemake does not, told to Snakemake."""

import os
import sys
from typing import Any

from slurm.wait.callers import WATCHED
from workflow.config import RunConfig
from workflow.plan import stale


class Force:
    """Has Snakemake run a stage whose published result is out of date, as if by `--forcerun`.

    Snakemake compares with what it ran itself, from this working directory; the manifests know of every way in which a
    result came about (`qianka stage`, sbatch, a copied run folder). It is asked as an input function, which Snakemake
    calls for the stages that the targets need, before it decides what to run.
    """

    def __init__(self, workflow: Any, run: RunConfig) -> None:
        self.workflow = workflow
        self.stale = stale(run)
        self.quiet = bool(os.environ.get(WATCHED))  # `qianka run` has shown its plan

    def __call__(self, stage: str) -> list[str]:
        """Force the stage if it has to be. No input files come of it."""
        rule = self.workflow.get_rule(stage)
        if stage in self.stale and rule not in self.workflow.dag.forcerules:
            self.workflow.dag.forcerules.add(rule)
            if not self.quiet:
                print(*(f"{stage} is out of date: {reason}" for reason in self.stale[stage]), sep="\n", file=sys.stderr)
        return []
