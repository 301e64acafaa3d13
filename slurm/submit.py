"""Submit a stage through submitit, or attach to the job that runs it already. The only file that imports submitit."""

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import submitit
from submitit.helpers import clean_env

from checkpoints.manifest import digest
from slurm import local, queue
from slurm.attempt import LOGS, Request, open_attempt
from slurm.config import SlurmConfig
from slurm.job import run_stage
from slurm.queue import SubmitError
from slurm.record import FILE as RECORD
from slurm.record import Executor, Record, attempts, is_finished, read_record, record_lock, write_record
from slurm.state import Kind, cancel, query
from slurm.verdict import clear_verdicts

KEPT = ("SLURM_CONF", "SBATCH_ACCOUNT", "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_RESERVATION")
"""What a user or a site sets for every submit; all else of Slurm's in the environment belongs to the job we are in."""
MAX_TIMEOUTS = 1000
LOCAL_MINUTES = 60 * 24 * 365
"""Nothing ends a local job but its own end."""
JOB_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONSAFEPATH": "1", "SUBMITIT_LOG_LEVEL": "WARNING"}
"""Waiting threads sleep; a folder `data` in the working directory hides no package; the log holds the stage's words."""

How = Literal["submitted", "resumed", "re-attached", "found finished"]


@dataclass(frozen=True)
class Attached:
    """The attempt that makes the stage's result, and how its job was come by."""

    record: Record
    folder: Path
    """The attempt folder."""
    how: How


class StageCall:
    """What submitit pickles: nothing but a folder. The same pickle may be loaded again at any restart."""

    def __init__(self, attempt: str) -> None:
        self.attempt = attempt

    def __call__(self) -> None:
        """Run the stage on this rank; leave by exit code, so that a job that failed is one for Slurm too."""
        for torn in (Path(self.attempt) / LOGS).glob("*.save_tmp"):
            torn.unlink(missing_ok=True)  # submitit refuses to write a result beside it
        code = run_stage(Path(self.attempt))
        if code:
            raise SystemExit(code)

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """For a signal that comes before the stage has its own handlers."""
        return submitit.helpers.DelayedSubmission(StageCall(self.attempt))


def choose_executor(config: SlurmConfig) -> Executor:
    """The executor that the config names, or that this machine offers."""
    if config.executor != "auto":
        return config.executor
    return "slurm" if queue.is_here() else "local"


def submit_or_attach(request: Request) -> Attached:
    """Make sure that one job, and only one, works on what is asked for, whatever was killed before.

    Raises ValueError when an input is missing, and NoAnswer when Slurm must be asked first and does not answer.
    """
    folder, fingerprint = request.folder, request.fingerprint()
    with record_lock(folder):
        record, number = _under_way(folder, fingerprint)
        attempt = folder / f"{fingerprint}-{number}"
        if record and query(folder, record).kind not in (Kind.ENDED, Kind.FINISHED):
            write_record(folder, record)
            return Attached(record, attempt, "re-attached")
        record = _intend(request, fingerprint, number)
        if is_finished(attempt):
            write_record(folder, record)
            return Attached(record, attempt, "found finished")
        resumed = attempt.exists()
        open_attempt(request, attempt, local_cpus(request))
        clear_verdicts(attempt)
        write_record(folder, record)
        in_own_session(lambda: _submit(request, attempt, record), attempt / LOGS / "submit.log")
    submitted = read_record(folder)
    assert submitted and submitted.job_id, "the submit has noted its job"
    return Attached(submitted, attempt, "resumed" if resumed else "submitted")


def take_over(request: Request, job_id: str | None) -> Attached:
    """Note that the caller itself is the job: Slurm's `job_id`, or processes that a person starts here.

    Raises ValueError when another job works on the attempt.
    """
    folder, fingerprint = request.folder, request.fingerprint()
    with record_lock(folder):
        record, number = _under_way(folder, fingerprint)
        attempt = folder / f"{fingerprint}-{number}"
        if record and (record.job_id != job_id or job_id is None):
            state = query(folder, record)
            if state.kind not in (Kind.ENDED, Kind.FINISHED):
                raise ValueError(f"{attempt}: job {record.job_id} works on this already ({state.text})")
        resumed = attempt.exists()
        open_attempt(request, attempt, local_cpus(request))
        clear_verdicts(attempt)
        ours = {"executor": "slurm" if job_id else "local", "job_id": job_id}
        record = _intend(request, fingerprint, number).model_copy(update=ours)
        write_record(folder, record)
    return Attached(record, attempt, "resumed" if resumed else "submitted")


def _under_way(folder: Path, fingerprint: str) -> tuple[Record | None, int]:
    """The record of the attempt that is to be made, if there was one, and the attempt's number.

    It is the one under way; or a new one when the result of the last one was taken; or, for a fingerprint of earlier
    times, the last attempt at that. The job of any other fingerprint is ended.
    """
    record = read_record(folder)
    if record and record.fingerprint != fingerprint:
        _retire(folder, record)
        record = None
    if record is None:
        return None, max(attempts(folder, fingerprint), default=1)
    if record.accepted:
        return None, record.number + 1
    return _find_job(folder / record.attempt, record), record.number


def _retire(folder: Path, record: Record) -> None:
    """End the job of another config, input or code, which nobody waits for any more; its checkpoints stay."""
    if record.accepted:
        return
    record = _find_job(folder / record.attempt, record)
    if query(folder, record).kind not in (Kind.ENDED, Kind.FINISHED):
        print(
            f"{record.stage}: ending job {record.job_id} of {record.attempt}, which is no longer asked for", flush=True
        )
        cancel(folder, record)


def _find_job(attempt: Path, record: Record) -> Record:
    """The record with its job's id, when the submitter was killed between the submit and the note."""
    if record.job_id is not None:
        return record
    if record.executor == "slurm":
        try:
            return record.model_copy(update={"job_id": queue.find_by_name(record.job_name, record.submitted)})
        except queue.NoAnswer as error:
            raise queue.NoAnswer(
                f"{error}\nso nobody can tell whether the job {record.job_name} was submitted; run again when Slurm "
                f"answers, or delete {attempt.parent / RECORD} if you know that it was not"
            ) from error
    process = local.find(attempt, None)
    return record.model_copy(update={"job_id": str(process.pid)}) if process else record


def _intend(request: Request, fingerprint: str, number: int) -> Record:
    place = digest(str(request.folder))[:6]  # two clones may have runs of one name
    return Record(
        stage=request.stage,
        fingerprint=fingerprint,
        number=number,
        executor=choose_executor(request.slurm),
        job_name=f"{request.run}-{request.stage}-{fingerprint}-{number}-{place}",
        host=os.uname().nodename,
        submitted=time.time(),
    )


def _submit(request: Request, attempt: Path, record: Record) -> None:
    submit = submit_to_slurm if record.executor == "slurm" else submit_locally
    job_id = submit(request, attempt, record.job_name)
    write_record(request.folder, record.model_copy(update={"job_id": job_id}))


def local_cpus(request: Request) -> int:
    """Cores of a rank of a local job: those asked for, or an equal share."""
    return request.resources.cpus_per_task or max(1, request.cpus // request.resources.tasks_per_node)


def submit_locally(request: Request, attempt: Path, name: str) -> str:
    """Start a local job, and return the process id of submitit's controller."""
    executor = submitit.LocalExecutor(attempt / LOGS)
    executor.update_parameters(
        tasks_per_node=request.resources.tasks_per_node,
        gpus_per_node=request.resources.gpus_per_node,
        timeout_min=LOCAL_MINUTES,
        stderr_to_stdout=True,
    )
    with _environment({**JOB_ENVIRONMENT, "OMP_NUM_THREADS": str(local_cpus(request))}):
        return executor.submit(StageCall(str(attempt))).job_id


def submit_to_slurm(request: Request, attempt: Path, name: str) -> str:
    """Submit a batch job, and return its id."""
    executor = submitit.SlurmExecutor(attempt / LOGS, max_num_timeout=MAX_TIMEOUTS)
    executor.update_parameters(**slurm_parameters(request, name))
    with _environment(JOB_ENVIRONMENT):
        return executor.submit(StageCall(str(attempt))).job_id


def slurm_parameters(request: Request, name: str) -> dict[str, Any]:
    """The job's parameters in submitit's words. `wckey` None drops the line, which some sites refuse."""
    shape, site = request.resources, request.slurm
    srun = ["--kill-on-bad-exit=1"]
    if shape.cpus_per_task:
        srun.append(f"--cpus-per-task={shape.cpus_per_task}")  # srun no longer takes it from the batch job
    parameters = {
        "job_name": name,
        "nodes": shape.nodes,
        "ntasks_per_node": shape.tasks_per_node,
        "cpus_per_task": shape.cpus_per_task,
        "gpus_per_node": shape.gpus_per_node or None,
        "time": shape.minutes,
        "partition": shape.partition or site.partition,
        "account": site.account,
        "signal_delay_s": site.signal_seconds,
        "stderr_to_stdout": True,
        "srun_args": srun,
        "setup": [f"export {key}={value}" for key, value in JOB_ENVIRONMENT.items()],
        "additional_parameters": {"requeue": True, **site.additional},
    }
    return {key: value for key, value in parameters.items() if value is not None} | {"wckey": None}


@contextmanager
def _environment(settings: dict[str, str]) -> Generator[None]:
    """This process's environment without that of a job around it, and with `settings`, for the length of the block."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    with clean_env(), submitit.helpers.environment_variables(**settings, **kept):
        yield


def in_own_session(submit: Callable[[], None], log: Path) -> None:
    """Run `submit` in a child with a session of its own, which says what it has to say in `log`.

    The job is then out of reach of the terminal's Ctrl-C and hang-up, and a kill of this process does not stop a
    submit half-way: the child goes on, still under the lock that it has inherited, until the job is noted.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            os.setsid()
            _redirect(log)
            submit()
        except BaseException as error:  # noqa: BLE001 - a forked child must not return into its parent's code
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, errors="replace") as stream:
        trouble = stream.read()
    os.waitpid(child, 0)
    if trouble:
        raise SubmitError(f"the job could not be submitted: {trouble}")


def _redirect(log: Path) -> None:
    """Leave the terminal, or the pipe, to those who wait at it: a job that holds on to it would keep it open."""
    nothing, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
