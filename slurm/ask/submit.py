"""Start a stage's job through submitit, on Slurm or on this machine."""

import contextlib
import os
import select
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, JobPaths
from submitit.helpers import clean_env

from slurm.ask.asked import Asked
from slurm.ask.options import Value
from slurm.ask.share import local_cpus
from slurm.attempt import LOGS, START_LINE, Request
from slurm.exclusions import FILE, excluded
from slurm.job import run_stage
from slurm.query.environment import KEPT, slurm_environment
from slurm.query.queue import QueueFull, SubmitError, submit_error

MAX_TIMEOUTS = 1000
LOCAL_MINUTES = 60 * 24 * 365
"""Nothing ends a local job but its own end."""
JOB_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONSAFEPATH": "1", "SUBMITIT_LOG_LEVEL": "WARNING"}
"""Waiting threads sleep; a folder `data` in the working directory hides no package; the log holds the stage's words."""


class StageCall:
    """What submitit pickles: nothing but a folder. The same pickle may be loaded again at any restart."""

    def __init__(self, attempt: str) -> None:
        self.attempt = attempt

    def __call__(self) -> None:
        """Run the stage on this rank; leave by exit code, so that a job that failed is one for Slurm too."""
        result = submitit.JobEnvironment().paths.result_pickle
        result.with_suffix(f"{result.suffix}.save_tmp").unlink(missing_ok=True)  # submitit refuses to write over it
        code = run_stage(Path(self.attempt))
        if code:
            raise SystemExit(code)

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """For a signal that comes before the stage has its own handlers."""
        return submitit.helpers.DelayedSubmission(StageCall(self.attempt))


def submit_locally(request: Request, attempt: Path, name: str) -> str:
    """Start a local job, and return the process id of submitit's controller."""
    executor = submitit.LocalExecutor(attempt / LOGS)
    executor.update_parameters(
        tasks_per_node=request.resources.tasks_per_node,
        gpus_per_node=request.resources.gpus_per_node,
        timeout_min=LOCAL_MINUTES,
        stderr_to_stdout=True,
    )
    with job_environment(request, {**JOB_ENVIRONMENT, "OMP_NUM_THREADS": str(local_cpus(request))}):
        return executor.submit(StageCall(str(attempt))).job_id


def submit_to_slurm(request: Request, attempt: Path, name: str) -> str:
    """Submit a batch job, and return its id. Raises SubmitError with what sbatch says."""
    executor = submitit.SlurmExecutor(attempt / LOGS, max_num_timeout=MAX_TIMEOUTS)
    executor.update_parameters(**slurm_parameters(request, name))
    with job_environment(request, JOB_ENVIRONMENT):
        try:
            return executor.submit(StageCall(str(attempt))).job_id
        except FailedJobError as error:
            avoided = "; ".join(f"{node}: {entry.reason}" for node, entry in excluded(request.run_folder).items())
            hint = f"\nthis run avoids nodes ({avoided}); remove {request.run_folder / FILE} to use them again"
            raise SubmitError(f"{error}{hint if avoided else ''}") from error


def slurm_parameters(request: Request, name: str) -> dict[str, Any]:
    """The parameters of a stage's job in submitit's words."""
    asked = Asked.of(request.slurm, request.stage, request.run_folder)
    return parameters_of(request, name, asked, alone(asked.text("dependency") or ""), "--kill-on-bad-exit=1")


def parameters_of(request: Request, name: str, asked: Asked, dependency: str, *srun_options: str) -> dict[str, Any]:
    """The parameters of what is asked for. `wckey` None drops the line, which some sites refuse."""
    shape, site = asked.shape, request.slurm
    srun = list(srun_options)
    if shape.cpus_per_task:
        srun.append(f"--cpus-per-task={shape.cpus_per_task}")  # srun no longer takes it from the batch job
    parameters = {
        "job_name": name,
        "nodes": shape.nodes,
        "ntasks_per_node": shape.tasks_per_node,
        "cpus_per_task": shape.cpus_per_task,
        "gpus_per_node": shape.gpus_per_node or None,
        "time": shape.minutes,
        "signal_delay_s": site.signal_seconds,
        "stderr_to_stdout": True,
        "srun_args": srun,
        "setup": [START_LINE, *site.setup, *(f"export {key}={value}" for key, value in JOB_ENVIRONMENT.items())],
        "additional_parameters": {
            "requeue": True,
            **{key: _kept(value) for key, value in asked.for_sbatch().items()},
            **({"dependency": dependency} if dependency else {}),
        },
    }
    return {key: value for key, value in parameters.items() if value is not None} | {"wckey": None}


def alone(dependency: str) -> str:
    """The dependency with `singleton`, by which Slurm runs one job of a name at a time, and ours have one an attempt.

    Commands on two login nodes may both submit a job, where the file system's locks hold on each machine alone. Beside
    a dependency with `?` (or) it would be one more that suffices, so that one stays as it is.
    """
    return dependency if "?" in dependency or "singleton" in dependency else f"{dependency},singleton".lstrip(",")


def _kept(value: Value) -> Value:
    """The value for a line of the batch script, in which sbatch drops a backslash even within quotes."""
    return value.replace("\\", "\\\\") if isinstance(value, str) else value


def finish_submit(attempt: Path, job_id: str) -> None:
    """Give the pickle the name under which the job looks for it, which a killed submitter may have left undone."""
    wanted = JobPaths(attempt / LOGS, job_id).submitted_pickle
    left = [path for path in (attempt / LOGS).glob("*.pkl") if "_" not in path.name]
    if left and not wanted.exists():
        max(left, key=lambda path: path.stat().st_mtime).rename(wanted)


@contextmanager
def job_environment(request: Request, settings: dict[str, str]) -> Generator[None]:
    """This process's environment without that of a job around it, and with `settings`, for the length of the block.

    sbatch hands all of it to the job, and a site may store it. What the config removes is not in it.
    """
    ours = slurm_environment()
    kept = {name: ours[name] for name in KEPT if name in ours}
    removed = [name for name, variable in request.slurm.environment.items() if variable.value is None]
    foreign = os.environ.keys() - ours.keys()
    with clean_env([*removed, *foreign]), submitit.helpers.environment_variables(**settings, **kept):
        yield


def in_own_session(submit: Callable[[], None], log: Path, interrupts: Sequence[int] = ()) -> None:
    """Run `submit` in a child with a session of its own, which says what it has to say in `log`.

    The job is then out of reach of the terminal's Ctrl-C and hang-up, and a kill of this process does not stop a
    submit half-way: the child goes on, still under the lock that it has inherited, until the job is noted. sbatch
    itself may wait for minutes, so a signal in `interrupts` ends the wait, and a Ctrl-C the child as well.

    Raises SubmitError, and QueueFull when it may pass or when nobody knows whether the job was submitted.
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
            kind = "" if isinstance(error, SubmitError) else f"{type(error).__name__}: "
            os.write(writer, f"{kind}{error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, errors="replace") as stream:
        while not select.select([stream], [], [], 0.1)[0]:
            if interrupts:
                if interrupts[0] == signal.SIGINT:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child, signal.SIGKILL)
                raise QueueFull("the submit was interrupted")
        trouble = stream.read()
    os.waitpid(child, 0)
    if trouble:
        raise submit_error(f"the job could not be submitted: {trouble}")


def _redirect(log: Path) -> None:
    """Leave the terminal, or the pipe, to those who wait at it: a job that holds on to it would keep it open."""
    nothing, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
