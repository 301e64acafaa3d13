"""The short Slurm job of `qianka doctor --nodes`: every node examines itself and its neighbours, and writes a report.

The nodes are allocated once, and each runs a step of its own: a node that does not start its step, or dies in it, then
takes no other one with it.
"""

import contextlib
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from checkpoints.manifest import write_json
from slurm.ask.asked import Asked
from slurm.ask.check import check_slurm
from slurm.config import SlurmConfig
from slurm.health.collect import Limits, collect
from slurm.health.finding import Finding
from slurm.health.node import JOB, Plan
from slurm.query.environment import slurm_environment
from slurm.query.nodelist import expand
from slurm.query.queue import NoAnswer, SubmitError, ask
from slurm.query.words import HELD, state_words, way_out

LEFT_OUT = ("dependency", "comment", "mail_user", "mail_type")
"""Options of the rl stage that are not for a job of minutes."""
STAGE = "rl"
QUEUE_SECONDS = 2.0
FOLDER = ".doctor-job-"
OLD_SECONDS = 86400.0
END_SECONDS = 5.0
"""Slurm needs about one to end a step; srun of a frozen node would wait for a minute and more."""
USUAL = Limits()


def examine_nodes(
    config: SlurmConfig, above: Path, count: int, say: Callable[[str], None], limits: Limits = USUAL
) -> list[Finding]:
    """Findings of `count` nodes, and of those among them that gave no answer.

    Works in a folder of its own in `above`, and leaves neither it nor the job behind. Raises ValueError for what Slurm
    does not have, SubmitError when it gives no nodes, NoAnswer when it cannot be asked.
    """
    for old in above.glob(f"{FOLDER}*"):  # of a doctor that was killed
        if time.time() - old.stat().st_mtime > OLD_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    folder = above / f"{FOLDER}{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir(mode=0o700)
    name = f"qianka-doctor-{secrets.token_hex(4)}"
    steps: dict[str, subprocess.Popen[bytes]] = {}
    try:
        plan = Plan(slurm=config, cards=config.resources(STAGE).gpus_per_node, seconds=limits.node)
        write_json(folder / JOB, plan.model_dump())
        minutes = 2 + int((limits.answer + limits.node) // 60)
        job_id, nodes = allocate(of_doctor(config, count, minutes), name, folder, say)
        for node in nodes:
            steps[node] = start(config, job_id, node, folder)
        return collect(folder, steps, limits, say)
    finally:
        with contextlib.suppress(NoAnswer):
            ask("scancel", f"--name={name}")
        end(steps)
        remove(folder, say)


def of_doctor(config: SlurmConfig, count: int, minutes: int) -> SlurmConfig:
    """The config of the doctor's job: where the rl stage would run, but short, and on nodes wherever they are."""
    shape = {"nodes": count, "tasks_per_node": 1, "cpus_per_task": None, "minutes": minutes, **dict.fromkeys(LEFT_OUT)}
    rl = config.resources(STAGE).model_copy(update=shape)
    return config.model_copy(update={STAGE: rl, "topology": "", **dict.fromkeys(LEFT_OUT)})


def allocate(config: SlurmConfig, name: str, folder: Path, say: Callable[[str], None]) -> tuple[str, list[str]]:
    """The job's id and nodes, once Slurm has given them; the queue may take its time.

    Raises ValueError for what Slurm does not have, before it is asked for a job.
    """
    check_slurm(config, [STAGE], folder)
    asked = Asked.of(config, STAGE, folder)
    shape = {"nodes": asked.shape.nodes, "ntasks-per-node": 1, "time": asked.shape.minutes, "job-name": name}
    shape |= {"gpus-per-node": asked.shape.gpus_per_node} if asked.shape.gpus_per_node else {}
    words = [f"--{key}" if value is True else f"--{key}={value}" for key, value in {**asked.options, **shape}.items()]
    log = folder / "salloc.log"
    with log.open("wb") as stream:
        process = _start(["salloc", "--no-shell", "--no-kill", *words], stream)
    try:
        last = ""
        while process.poll() is None:
            queued = ask("squeue", "-h", f"--name={name}", "-o", "%A|%T|%r")
            job_id, state, reason = queued[0].split("|") if queued else ("", "", "")
            now = f"job {job_id} {state_words(state, reason)}" if job_id else "asking for nodes"
            if now != last:
                say(now)
                last = now
            if way_out(reason) or reason in HELD:
                raise SubmitError(f"{now}: it would wait for ever")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(QUEUE_SECONDS)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode != 0:
        raise SubmitError(f"salloc: {log.read_text(errors='replace').strip()}")
    given = ask("squeue", "-h", f"--name={name}", "-o", "%A %N")
    if not given:
        raise SubmitError("the job of the doctor was ended before it began")
    job_id, nodes = given[0].split()
    return job_id, expand(nodes)


def start(config: SlurmConfig, job_id: str, node: str, folder: Path) -> subprocess.Popen[bytes]:
    """One node's step."""
    program = shlex.join([sys.executable, "-P", "-m", "slurm.health", str(folder)])
    step = ["--nodes=1", "--ntasks=1", f"--nodelist={node}", "--overlap"]
    script = "\n".join([*config.setup, f"exec {program}"])
    with (folder / f"step-{node}.log").open("wb") as stream:
        return _start(["srun", f"--jobid={job_id}", *step, "bash", "-c", script], stream)


def end(steps: dict[str, subprocess.Popen[bytes]]) -> None:
    """Wait for the steps of a cancelled job: srun ends when its node's program has. One of a frozen node is killed."""
    latest = time.monotonic() + END_SECONDS
    for step in steps.values():
        with contextlib.suppress(subprocess.TimeoutExpired):
            step.wait(max(0, latest - time.monotonic()))
        step.kill()
        step.wait()


def remove(folder: Path, say: Callable[[str], None]) -> None:
    """Remove the job's folder, in which a node that hears late of the end may still be at a file.

    Renamed first, so that no node can begin another file in it, which a removal would stumble over.
    """
    gone = folder.rename(folder.with_name(f"{folder.name}-ended"))
    latest = time.monotonic() + END_SECONDS
    while True:
        try:
            shutil.rmtree(gone)
            return
        except OSError as error:
            if time.monotonic() > latest:
                say(f"{gone}: not removed ({error}); a doctor of another day tries again")
                return
        time.sleep(0.2)


def _start(command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """In a session of its own: the Ctrl-C is ours to take. What the job around us set is not for the new one."""
    nothing, env = subprocess.DEVNULL, slurm_environment()
    return subprocess.Popen(command, stdin=nothing, stdout=output, stderr=output, env=env, start_new_session=True)
