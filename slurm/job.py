"""Inside the job: build the `Job`, check the inputs, run the stage, and say how it ended. Every rank runs this.

Started by submitit (`slurm.ask.submit`), by `srun` or `torchrun` as `python -m slurm.job ATTEMPT_FOLDER`, or by
hand in the same way for one process. torch is imported by the stage, not here.
"""

import importlib
import importlib.util
import os
import resource
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import FrameType

from checkpoints.disk import trouble
from checkpoints.manifest import ATTEMPT, NAME, Provenance, Result
from data.job import Flag, Job, Stopped
from data.section import Section
from slurm.actors.ask import end
from slurm.attempt import JobFile, read_job_file
from slurm.devices.read import kind_of_node
from slurm.exclusions import FILE, exclude, excluded
from slurm.fingerprint import PACKAGES, ROOT
from slurm.inside import environment, watchdog
from slurm.inside.log import show_log
from slurm.inside.place import Place, make_job, read_place, somewhere
from slurm.lock import hold
from slurm.query.queue import NoAnswer, requeue
from slurm.verdict import BadNode, Verdict, clear_verdict, write_verdict

STOPPED, FAILED = 75, 1
"""Exit codes: stopped after committing (run again to resume), and failed."""
MAX_RESTARTS = 1000
"""A job that Slurm has started so often gets nowhere."""
OPEN_FILES = 65536
REQUEUE_SECONDS = 60.0
"""How long ranks wait for Slurm to end them after the requeue was asked for."""


class Signals:
    """What the job is told from outside: by USR2 that time is nearly over, by TERM and INT that someone ends it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ended = Flag()
        signal.signal(signal.SIGUSR2, self._on_time)
        signal.signal(signal.SIGTERM, self._on_end)
        signal.signal(signal.SIGINT, self._on_end)

    def _on_time(self, number: int, frame: FrameType | None) -> None:
        self.job.stop.set()

    def _on_end(self, number: int, frame: FrameType | None) -> None:
        self.ended.set()
        self.job.stop.set()


def run_stage(attempt: Path) -> int:
    """Run the stage of an attempt folder on this rank, and return the exit code.

    Every start resumes from what the folder holds. How it ended, when not well, is committed as this rank's verdict.
    """
    show_log()
    place = somewhere()
    try:
        place = read_place()
        clear_verdict(attempt, place.rank)
        check_packages()
        _be_alone(attempt, place)
        return _work(attempt, place, read_job_file(attempt))
    except Exception as error:  # noqa: BLE001 - it is told to the one who waits, and the rank fails
        verdict = verdict_of(error, attempt, place)
        if verdict.why == "error":
            traceback.print_exc()
        else:
            print(f"error: {verdict.message}", flush=True)
        write_verdict(attempt, verdict)
        if isinstance(error, BadNode):
            _avoid(error, attempt)
        return FAILED


def _work(attempt: Path, place: Place, job_file: JobFile) -> int:
    roll = watchdog.begin(attempt, place)
    raise_file_limit()
    os.environ["OMP_NUM_THREADS"] = str(place.cpus or job_file.cpus)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    environment.apply(job_file, kind_of_node())
    job = make_job(place, job_file, attempt)
    signals = Signals(job)
    try:
        with watchdog.watched(attempt, place, job, job_file, roll):
            _check_nodes(job_file, attempt, place)
            _run(job_file, attempt, job)
    except Stopped as stopped:
        write_verdict(attempt, Verdict.of("stopped", str(stopped), place))
        return _leave(str(stopped), signals, place, attempt)
    return 0


def verdict_of(error: Exception, attempt: Path, place: Place) -> Verdict:
    """What is told of an exception that ended the rank."""
    if isinstance(error, BadNode):
        return Verdict.of("node", str(error), place, error.nodes)
    if isinstance(error, ValueError):
        return Verdict.of("mistake", str(error), place)
    if full := trouble(error, attempt):
        way_out = "make room, and the same command goes on from what was committed"
        return Verdict.of("mistake", f"{attempt}: {full}; {way_out}", place)
    return Verdict.of("error", f"{type(error).__name__}: {error}", place)


def raise_file_limit() -> None:
    """Gloo holds a socket for each of the other ranks, and the usual soft limit of open files is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _check_nodes(job_file: JobFile, attempt: Path, place: Place) -> None:
    """Raise BadNode when this node cannot do the job. All ranks have signed the roll, or are about to."""
    entry = excluded(_run_folder(job_file, attempt)).get(place.node) if place.starter == "slurm" else None
    if entry is not None:
        # A job that was requeued, or submitted by hand, may be put on a node that failed since.
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.until))
        raise BadNode(
            (place.node,),
            f"this run avoids {place.node} until {until} ({entry.reason}); submit with --exclude={place.node}, or "
            f"remove {_run_folder(job_file, attempt) / FILE}",
        )
    from slurm.health.preflight import preflight

    preflight(place, job_file, attempt)


def _avoid(bad: BadNode, attempt: Path) -> None:
    """Keep later jobs of the run away from the nodes; those that are avoided already are not so for longer."""
    job_file = read_job_file(attempt)
    folder = _run_folder(job_file, attempt)
    exclude(folder, set(bad.nodes) - excluded(folder).keys(), str(bad), job_file.watch.exclude_hours)


def _run_folder(job_file: JobFile, attempt: Path) -> Path:
    return (attempt / job_file.run_folder).resolve()


def _run(job_file: JobFile, attempt: Path, job: Job) -> None:
    if (attempt / NAME).exists():
        return
    stage, config, inputs = read_task(job_file, attempt, job.is_first)
    run = importlib.import_module(f"stages.{stage}.run").run
    if job.is_first:  # the first line of the stage itself
        again = f", start {job.restarts + 1}" if job.restarts else ""
        shards = f", weights sharded over {job.shard_ranks} of them" if job.shard_ranks else ""
        print(f"{stage}: {attempt.name} on {job.world_size} rank(s){shards}, job {job.job_id}{again}", flush=True)
    run(config, inputs, attempt, job)
    if job.is_first and not (attempt / NAME).exists():
        raise AssertionError(f"{stage} returned without committing its manifest")
    if job.is_first:
        with suppress(NoAnswer):  # also when nobody waits any more; a node without scancel leaves it to them
            end(attempt, wait=False)


def read_task(job_file: JobFile, attempt: Path, look_at_files: bool) -> tuple[str, Section, dict[str, Result]]:
    """The stage of an attempt, its config, and the results that it reads.

    A thousand ranks need not look for each file of a manifest; but each has to have the right manifest. Raises
    ValueError when an input is another one by now.
    """
    provenance = Provenance.model_validate_json((attempt / ATTEMPT).read_bytes())
    stage = provenance.stage
    inputs = {name: Result((attempt / path).resolve(), look_at_files) for name, path in job_file.inputs.items()}
    for name, result in inputs.items():
        if result.digest != provenance.inputs[name]:
            raise ValueError(f"{stage}: the result of {name} changed after this attempt was opened; run it again")
    config = importlib.import_module(f"stages.{stage}.config").StageConfig.model_validate(provenance.config)
    return stage, config, inputs


def _leave(message: str, signals: Signals, place: Place, attempt: Path) -> int:
    """After a stop for lack of time: on Slurm rank 0 has the job requeued."""
    if place.rank == 0:
        print(message, flush=True)
    if place.starter != "slurm" or signals.ended.is_set():
        return STOPPED
    if place.restarts >= MAX_RESTARTS:
        often = f"not requeued again after {place.restarts} restarts"
        print(f"error: {often}", flush=True)
        write_verdict(attempt, Verdict.of("error", often, place))
        return FAILED
    if place.rank == 0 and not ask_to_requeue(place.job_id):
        return STOPPED
    # An exit with an error would end the step before rank 0 has asked for the requeue.
    signals.ended.wait(REQUEUE_SECONDS)
    return STOPPED if signals.ended.is_set() else 0


def ask_to_requeue(job_id: str) -> bool:
    """Ask Slurm to start this job again. Where it cannot be asked from here, the one who waits submits a new job."""
    print(f"requeue of job {job_id}", flush=True)
    try:
        requeue(job_id)
    except NoAnswer as error:
        print(f"the requeue of job {job_id} failed: {error}", flush=True)
        return False
    return True


def _be_alone(attempt: Path, place: Place) -> None:
    """Hold the attempt against a second local job. On Slurm the job id does that, across nodes as well."""
    if place.starter == "slurm" or place.rank != 0:
        return
    holder = hold(attempt / ".job.lock")
    if holder:
        raise ValueError(f"{attempt}: {holder} runs this attempt already")


def check_packages() -> None:
    """Raise ValueError when another installation hides one of the five packages."""
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        origin = Path(found.origin).resolve() if found and found.origin else None
        if origin is None or not origin.is_relative_to(ROOT):
            raise ValueError(
                f"the package `{name}` comes from {origin}, not from {ROOT}: something in this environment, or in "
                f"the working directory {Path.cwd()}, has the same name; move it away or uninstall it"
            )


def main() -> None:
    """`python -m slurm.job ATTEMPT_FOLDER`."""
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / ATTEMPT).exists():
        sys.exit("usage: python -m slurm.job ATTEMPT_FOLDER (which `qianka stage NAME --here` makes and prints)")
    code = run_stage(Path(sys.argv[1]).resolve())
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
