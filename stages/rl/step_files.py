"""Rollouts on disk as soon as the parity gate has passed them.

After a kill they are read back: none of them is played or trained twice. What the gate had not passed is played anew.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from checkpoints.commit import commit
from data.job import Job
from data.trajectories import Attributes, Trajectories, read_trajectories, write_trajectories

FOLDER = "trajectories"
REFUSED = ".refused"


class StepFiles:
    """One HDF5 file for each step, round and rank. Each rank writes its own."""

    def __init__(self, folder: Path, job: Job, environment_hash: str, terms: Sequence[str]) -> None:
        """`folder` is the attempt's; `terms` are the names of the reward's."""
        self.folder, self.job, self.environment_hash = folder / FOLDER, job, environment_hash
        assert all(map(str.isidentifier, terms)), "a comma would cut a name in two"
        self.terms = tuple(terms)

    def resume(self, step: int) -> None:
        """Before going on after `step`: drop what another number of ranks has played beyond it. Rank 0 calls it.

        Their shares were others. What was trained up to `step` stays as it is.
        """
        for path in self.folder.glob("step-*.h5"):
            if int(path.stem.split("-")[1]) > step and read_trajectories(path)[1]["world_size"] != self.job.world_size:
                path.unlink()

    def read(self, step: int, number: int, version: int, prompts: Mapping[int, str]) -> Trajectories | None:
        """This rank's rollouts of round `number`, from 0, of `step`; None where there are none of just these.

        `version` is the policy's, and `prompts` are ids by slot.
        """
        path = self._path(step, number)
        if not path.exists():
            return None
        trajectories, found = read_trajectories(path)
        same = found == self._attributes(step, number, version)
        played = dict(zip(trajectories.groups.tolist(), trajectories.prompt_ids, strict=True))
        return trajectories if same and played == prompts else None

    def write(self, step: int, number: int, version: int, trajectories: Trajectories, *, refused: bool = False) -> None:
        """Commit this rank's rollouts of a round; those that were `refused` for a person to see, and not to be read."""
        path = self._path(step, number)
        with commit(path.with_name(path.name + REFUSED) if refused else path) as aside:
            write_trajectories(aside, trajectories, self._attributes(step, number, version))

    def files(self) -> list[Path]:
        """All files, in order."""
        return sorted(self.folder.glob("step-*.h5"))

    def _path(self, step: int, number: int) -> Path:
        later = f"-round-{number}" if number else ""
        return self.folder / f"step-{step:06d}{later}-rank-{self.job.rank:04d}.h5"

    def _attributes(self, step: int, number: int, version: int) -> Attributes:
        return {
            "step": step,
            "round": number,
            "rank": self.job.rank,
            "world_size": self.job.world_size,
            "policy_version": version,
            "environment_hash": self.environment_hash,
            "terms": ",".join(self.terms),
        }
