"""Rollouts on disk as soon as they are played: after a kill they are read back, and none is played or trained twice."""

from collections.abc import Callable, Sequence
from pathlib import Path

from checkpoints.commit import commit
from data.job import Job
from data.trajectories import Trajectories, read_trajectories, write_trajectories

FOLDER = "trajectories"
REFUSED = ".refused"


class Journal:
    """One HDF5 file for each step, round and rank. Each rank writes its own."""

    def __init__(self, folder: Path, job: Job, environment_hash: str, terms: Sequence[str]) -> None:
        """`folder` is the attempt's; `terms` are the names of the reward's."""
        self.folder, self.job, self.environment_hash = folder / FOLDER, job, environment_hash
        self.terms = ",".join(terms)

    def resume(self, step: int) -> None:
        """Before going on after `step`: drop what another number of ranks has played beyond it. Rank 0 calls it.

        Their shares were others. What was trained up to `step` stays as it is.
        """
        for path in self.folder.glob("step-*.h5"):
            if int(path.stem.split("-")[1]) > step and read_trajectories(path)[1]["world_size"] != self.job.world_size:
                path.unlink()

    def read_or_play(
        self, step: int, number: int, version: int, play: Callable[[], Trajectories]
    ) -> tuple[Trajectories, bool]:
        """The rollouts of this rank's share of a round, and whether they were read back.

        It is round `number`, from 0, of `step`, played by the policy of `version`.
        """
        later = f"-round-{number}" if number else ""
        path = self.folder / f"step-{step:06d}{later}-rank-{self.job.rank:04d}.h5"
        attributes = {
            "step": step,
            "round": number,
            "rank": self.job.rank,
            "world_size": self.job.world_size,
            "policy_version": version,
            "environment_hash": self.environment_hash,
            "terms": self.terms,
        }
        if path.exists():
            trajectories, found = read_trajectories(path)
            if found == attributes:
                return trajectories, True
        trajectories = play()
        with commit(path) as aside:
            write_trajectories(aside, trajectories, attributes)
        return trajectories, False

    def refuse(self, step: int) -> None:
        """Put this rank's rollouts of `step` out of the way: they are for a person to see, and never read back."""
        for path in self.folder.glob(f"step-{step:06d}*-rank-{self.job.rank:04d}.h5"):
            path.replace(path.with_name(path.name + REFUSED))

    def files(self) -> list[Path]:
        """All files, in order."""
        return sorted(self.folder.glob("step-*.h5"))
