"""Submit an array of actors through submitit."""

from pathlib import Path

import submitit
from submitit.core.utils import FailedJobError, JobPaths

from slurm.actor import ACTOR, EVALUATOR, run_actor
from slurm.actors.arrays import Array, logs_of
from slurm.ask.asked import Asked
from slurm.ask.submit import JOB_ENVIRONMENT, MAX_TIMEOUTS, job_environment, parameters_of
from slurm.attempt import Request
from slurm.query.queue import submit_error


class ActorCall:
    """What submitit pickles, once for each task, and all alike: which of them it is, a task knows from Slurm."""

    def __init__(self, attempt: str, name: str, evaluator: int | None) -> None:
        self.attempt, self.name, self.evaluator = attempt, name, evaluator

    def __call__(self) -> None:
        """Be the actor; leave by exit code, so that one that failed has failed for Slurm too."""
        environment = submitit.JobEnvironment()
        result = environment.paths.result_pickle
        result.with_suffix(f"{result.suffix}.save_tmp").unlink(missing_ok=True)  # submitit refuses to write over it
        task = environment.job_id.partition("_")[2]
        is_evaluator = self.evaluator is not None and task == str(self.evaluator) and environment.global_rank == 0
        code = run_actor(Path(self.attempt), EVALUATOR if is_evaluator else ACTOR, self.name)
        if code:
            raise SystemExit(code)

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """For a signal that comes before the actor has its own handlers."""
        return submitit.helpers.DelayedSubmission(ActorCall(self.attempt, self.name, self.evaluator))


def submit_array(request: Request, attempt: Path, array: Array) -> str:
    """Submit a job array, and return its id. An array of one task is a plain job. Raises SubmitError."""
    executor = submitit.SlurmExecutor(logs_of(attempt), max_num_timeout=MAX_TIMEOUTS)
    asked = Asked.of(request.slurm, "actors", request.run_folder)
    # One that fails must not take along the others of its task.
    parameters = parameters_of(request, array.name, asked, after(asked, array), "--kill-on-bad-exit=0")
    executor.update_parameters(**parameters, array_parallelism=array.tasks)
    call = ActorCall(str(attempt), array.name, array.actors if array.evaluator else None)
    with job_environment(request, JOB_ENVIRONMENT):
        try:
            with executor.batch():  # an array, and with a `checkpoint` of its own, which map_array would hide
                jobs = [executor.submit(call) for _ in range(array.tasks)]
        except FailedJobError as error:
            raise submit_error(str(error)) from error
    return jobs[0].job_id.partition("_")[0]


def after(asked: Asked, array: Array) -> str:
    """The dependency: no card waits for learners that wait for cards themselves.

    No `singleton`, as a stage's job has: the tasks of an array share their name, and would run one after the other.
    """
    given = asked.text("dependency") or ""
    job = array.start.partition("+")[0]
    return given if "?" in given or not job else f"{given},after:{job}".lstrip(",")


def finish_array(attempt: Path, array: Array) -> None:
    """Give the pickles the names under which the tasks look for them, which a killed submitter may have left undone."""
    folder = logs_of(attempt)
    names = [f"{array.job_id}_{task}" for task in range(array.tasks)] if array.tasks > 1 else [str(array.job_id)]
    wanted = [JobPaths(folder, name).submitted_pickle for name in names]
    left = sorted(path for path in folder.glob("*.pkl") if "_" not in path.name)
    for path, place in zip(left, [place for place in wanted if not place.exists()], strict=False):
        path.rename(place)
