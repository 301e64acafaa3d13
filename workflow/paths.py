"""The only file that spells a path under runs/. What lies inside an attempt folder belongs to its stage."""

from dataclasses import dataclass
from pathlib import Path

from checkpoints.manifest import NAME

RUNS = Path("runs")
"""In the working directory."""


@dataclass(frozen=True)
class RunPaths:
    """Where one run keeps what."""

    name: str

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return RUNS / self.name

    @property
    def config(self) -> Path:
        """The resolved config, which is itself a config file."""
        return self.folder / "config.json"

    @property
    def lock(self) -> Path:
        """Held by the process that works on the run; let go by the kernel when that process ends."""
        return self.folder / ".lock"

    @property
    def report(self) -> Path:
        """The evaluation's numbers."""
        return self.folder / "report.json"

    @property
    def dashboard(self) -> Path:
        """The evaluation to look at."""
        return self.folder / "dashboard.html"

    def stage(self, stage: str) -> Path:
        """The stage's folder, which holds its attempts and their record."""
        return self.folder / stage

    def manifest(self, stage: str) -> Path:
        """The published manifest of a stage."""
        return self.stage(stage) / NAME

    def log(self, stage: str) -> Path:
        """What the terminal showed of the stage."""
        return self.stage(stage) / "terminal.log"


def known_runs() -> list[str]:
    """Names of the runs in the working directory, the last used one first."""
    configs = [path for path in RUNS.glob("*/config.json") if path.is_file()]
    return [path.parent.name for path in sorted(configs, key=lambda path: path.stat().st_mtime, reverse=True)]
