"""An attempt folder: what is asked for, and what the job finds there when it starts."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from checkpoints.commit import commit
from checkpoints.manifest import ATTEMPT, NAME, Provenance, Result, digest, write_json
from slurm.config import ResourcesConfig, SlurmConfig, Variable, WatchConfig
from slurm.fingerprint import code_digest, code_files, code_version, fingerprint
from slurm.record import record_lock

JOB = "job.json"
LOGS = "log"
"""submitit's scripts, pickles and logs; readable by the owner alone, since a pickle runs what it says."""


class Request(BaseModel):
    """One stage of one run, as its caller asks for it. All paths are absolute."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    run: str
    stage: str
    run_folder: Path
    """The run's folder, with what its stages share: the nodes that it avoids."""
    folder: Path
    """The stage folder: the record, the attempts and the published manifest."""
    config: dict[str, Any]
    inputs: dict[str, Path]
    """Published manifests of the stages before, by stage."""
    files: dict[str, str]
    """Digests of the user's own files that the config names, by the key that names them."""
    slurm: SlurmConfig
    cpus: int
    """Cores of this machine that a local job may use."""
    publish: dict[str, Path] = Field(default_factory=dict[str, Path])
    """Files of the result to copy beside the manifest: name in the attempt folder, place."""

    @property
    def resources(self) -> ResourcesConfig:
        """The shape of this stage's job."""
        return self.slurm.resources(self.stage)

    def input_digests(self) -> dict[str, str]:
        """Digest of each input's manifest. Raises ValueError when one is missing or incomplete."""
        return {stage: Result(path).digest for stage, path in self.inputs.items()}

    def fingerprint(self) -> str:
        """Name of the result that is asked for."""
        return fingerprint(self.stage, self.config, self.input_digests(), self.files, code_digest(self.stage))


class JobFile(BaseModel):
    """job.json: what the job needs to know beyond its provenance, and what `qianka plan` compares later."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    run: str
    inputs: dict[str, str]
    """Published manifests by stage, relative to the attempt folder."""
    files: dict[str, str]
    code: dict[str, str]
    """Digest of each code file that the stage could reach."""
    minutes: int
    tasks_per_node: int
    cpus: int
    """Cores a rank, when no scheduler says otherwise."""
    run_folder: str = "../.."
    """Relative to the attempt folder."""
    interface: str | None = None
    topology: str = ""
    """The site's file, or nothing."""
    environment: dict[str, Variable] = Field(default_factory=dict[str, Variable])
    watch: WatchConfig = WatchConfig()
    shard_ranks: int | None = None


def open_attempt(request: Request, attempt: Path, cpus: int) -> None:
    """Make the attempt folder, or bring its job.json up to date when the attempt is resumed with other resources."""
    logs = attempt / LOGS
    logs.mkdir(parents=True, exist_ok=True)
    logs.chmod(0o700)
    job_file = JobFile(
        run=request.run,
        inputs={stage: os.path.relpath(path, attempt) for stage, path in request.inputs.items()},
        files=request.files,
        code=code_files(request.stage),
        run_folder=os.path.relpath(request.run_folder, attempt),
        interface=request.slurm.interface,
        topology=str(Path(request.slurm.topology).resolve()) if request.slurm.topology else "",
        environment=request.slurm.environment,
        watch=request.slurm.watch,
        shard_ranks=request.resources.shard_ranks,
        minutes=request.resources.minutes,
        tasks_per_node=request.resources.tasks_per_node,
        cpus=cpus,
    )
    write_json(attempt / JOB, job_file.model_dump())
    if not (attempt / ATTEMPT).exists():
        Provenance(
            stage=request.stage,
            attempt=attempt.name,
            config=request.config,
            config_digest=digest(request.config),
            code_digest=code_digest(request.stage),
            code_version=code_version(),
            inputs=request.input_digests(),
        ).write(attempt)


def read_job_file(attempt: Path) -> JobFile:
    """The job.json of an attempt folder. ValueError, with the path, when it is damaged."""
    try:
        return JobFile.model_validate_json((attempt / JOB).read_bytes())
    except ValueError as error:
        raise ValueError(f"{attempt / JOB} is damaged; remove it, and the stage writes it anew: {error}") from error


def mark_cancelled(attempt: Path, job_id: str | None) -> None:
    """Note that a person has cancelled the job: whoever waits for it must not submit another one in its place."""
    (attempt / LOGS / f"{job_id}.cancelled").touch()


def is_cancelled(attempt: Path, job_id: str | None) -> bool:
    """Whether a person has cancelled the job through Qianka."""
    return (attempt / LOGS / f"{job_id}.cancelled").exists()


def publish(folder: Path, attempt: Path, shown: Mapping[str, Path]) -> None:
    """Copy the finished attempt's manifest to the stage folder, after the files that are `shown` elsewhere.

    A script of sbatch and commands that wait for its job may do it at the same moment, so one at a time.
    Raises ValueError when the manifest names a file that is not there.
    """
    Result(attempt / NAME)
    with record_lock(folder):
        for name, place in shown.items():
            _copy(attempt / name, place)
        _copy(attempt / NAME, folder / NAME)


def _copy(source: Path, place: Path) -> None:
    with commit(place) as aside:
        aside.write_bytes(source.read_bytes())


START_LINE = 'echo "job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)) on $SLURM_JOB_NODELIST"'
"""What the batch script says first, so that the log shows where each start of the job begins."""
LOG_BYTES = 65536
"""The last ones of a log, which are read for what went wrong."""


def last_start(attempt: Path, job_id: str) -> list[str]:
    """Lines that the log of one of the attempt's jobs has got since its last start."""
    log = log_of(attempt, job_id)
    if not log.exists():
        return []
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - LOG_BYTES))
        text = stream.read().decode(errors="replace")
    start = rf"^(?:job {job_id}, start \d+ on |\w+: .* rank\(s\).*, job {job_id}\b)"
    return re.split(start, text, flags=re.MULTILINE)[-1].splitlines()


def log_of(attempt: Path, job_id: str | None) -> Path:
    """The log of rank 0 of one of the attempt's jobs, which has a file of its own and goes on in it after a requeue."""
    return attempt / LOGS / f"{job_id}_0_log.out"
