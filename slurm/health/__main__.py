"""`python -m slurm.health FOLDER`: one node's part in the job of `qianka doctor --nodes`."""

import os
import sys
from pathlib import Path

from slurm.health.node import Member

if __name__ == "__main__":
    Member(Path(sys.argv[1]), os.environ.get("SLURMD_NODENAME", os.uname().nodename)).run()
