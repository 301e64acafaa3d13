"""`python -m slurm.actors runs/NAME`: print the attempt folder of the run's rl stage, for scripts of sbatch.

It waits for a stage that was not started yet, as when the actors are submitted together with the rl job.
"""

import sys
import time
from pathlib import Path

from slurm.record import read_record

WAIT_SECONDS = 1800.0
"""For the start of the rl stage; as long as actors wait for learners by default."""
LOOK_SECONDS = 2.0


def main() -> None:
    """Exit code 2 for what is no folder of a run, and where the rl stage is not started in time."""
    if len(sys.argv) != 2:
        _fail("usage: python -m slurm.actors runs/NAME")
    folder = Path(sys.argv[1]).resolve() / "rl"
    if not folder.parent.is_dir() and folder.parent.parent.name != "runs":
        _fail(f"{folder.parent} is no folder of a run; give runs/NAME")
    end, said = time.monotonic() + WAIT_SECONDS, False
    while (record := read_record(folder) if folder.is_dir() else None) is None:
        if time.monotonic() > end:
            _fail(f"the rl stage of {folder.parent} was not started within {WAIT_SECONDS / 60:.0f} minutes")
        if not said:
            print(f"waiting for the rl stage of {folder.parent} to start", file=sys.stderr, flush=True)
            said = True
        time.sleep(LOOK_SECONDS)
    print(folder / record.attempt)


def _fail(why: str) -> None:
    print(why, file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
