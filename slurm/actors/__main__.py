"""`python -m slurm.actors runs/NAME`: print the attempt folder of the run's rl stage, for scripts of sbatch."""

import sys
from pathlib import Path

from slurm.record import read_record


def main() -> None:
    """Exit code 2 for what is no run whose rl stage was started."""
    folder = Path(sys.argv[1]).resolve() / "rl" if len(sys.argv) == 2 else Path()
    record = read_record(folder) if folder.name == "rl" and folder.is_dir() else None
    if record is None:
        print("usage: python -m slurm.actors runs/NAME (whose rl stage was started)", file=sys.stderr)
        sys.exit(2)
    print(folder / record.attempt)


if __name__ == "__main__":
    main()
