"""Slurm at the process boundary, for tests: sbatch, squeue, sacct, scancel, scontrol and srun over a folder of files.

`install(bin)` puts the commands on a PATH. $FAKE_SLURM is the folder: one JSON file a job, and files that make a
command misbehave: `squeue.down`, `sacct.down` (the query fails), `held` (jobs stay pending), `forget` (squeue knows
no ended job).
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")


def install(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("sbatch", "squeue", "sacct", "scancel", "scontrol", "srun"):
        command = folder / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} {name} "$@"\n')
        command.chmod(0o755)


def state_folder() -> Path:
    return Path(os.environ["FAKE_SLURM"])


def load(job_id: str) -> dict:
    path = state_folder() / f"{job_id}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def save(job: dict) -> None:
    aside = state_folder() / f".{job['id']}.{os.getpid()}"
    aside.write_text(json.dumps(job))
    aside.replace(state_folder() / f"{job['id']}.json")


def option(arguments: list[str], name: str) -> str | None:
    return next((a.split("=", 1)[1] for a in arguments if a.startswith(f"--{name}=")), None)


def fail_if(name: str) -> None:
    if (state_folder() / name).exists():
        sys.exit("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")


def sbatch(arguments: list[str]) -> None:
    if "--test-only" in arguments:
        return
    script = Path(arguments[-1]).read_text()
    flags = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", script, re.MULTILINE))
    job_id = str(1000 + len(list(state_folder().glob("[0-9]*.json"))))
    leaked = sorted(name for name in os.environ if name.startswith(("SLURM_", "SRUN_")))
    job = {"id": job_id, "name": flags["job-name"], "state": "PENDING", "reason": "Priority", "restarts": 0}
    save({**job, "flags": flags, "leaked": leaked, "script": script, "conf": os.environ.get("SLURM_CONF", "")})
    if not (state_folder() / "held").exists():
        start(job_id)
    print(f"Submitted batch job {job_id}")


def start(job_id: str) -> None:
    command = [sys.executable, __file__, "runner", job_id]
    subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def runner(arguments: list[str]) -> None:
    job = load(arguments[0])
    tasks = int(job["flags"].get("nodes", 1)) * int(job["flags"].get("ntasks-per-node", 1))
    given = {
        "SLURM_JOB_ID": job["id"],
        "SLURM_NTASKS": str(tasks),
        "SLURM_JOB_NUM_NODES": job["flags"].get("nodes", "1"),
    }
    if job["restarts"]:
        given["SLURM_RESTART_COUNT"] = str(job["restarts"])
    output = Path(job["flags"]["output"].strip("'").replace("%j", job["id"]).replace("%t", "0"))
    with output.open("a") as stream:
        child = subprocess.Popen(
            ["bash", "-c", job["script"]],
            env={**os.environ, **given},
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        save({**job, "state": "RUNNING", "reason": "None", "pid": child.pid})
        code = child.wait()
    job = load(job["id"])
    if job["state"] == "RUNNING":
        save({**job, "state": "COMPLETED" if code == 0 else "FAILED"})
    elif job["state"] == "REQUEUED":
        time.sleep(0.5)
        save({**job, "state": "PENDING", "reason": "BeginTime", "restarts": job["restarts"] + 1})
        start(job["id"])


def srun(arguments: list[str]) -> None:
    rest, output = list(arguments), ""
    while rest[0].startswith("--"):
        word = rest.pop(0)
        if word == "--output":
            output = rest.pop(0)
        output = word.partition("=")[2] if word.startswith("--output=") else output
    children = []
    for rank in range(int(os.environ["SLURM_NTASKS"])):
        place = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_STEP_ID": "0", "SLURM_CPUS_ON_NODE": "1"}
        place |= {"SLURM_STEP_NUM_TASKS": os.environ["SLURM_NTASKS"], "SLURMD_NODENAME": "localhost"}
        with Path(output.replace("%j", os.environ["SLURM_JOB_ID"]).replace("%t", str(rank))).open("a") as stream:
            children.append(subprocess.Popen(rest, env={**os.environ, **place}, stdout=stream, stderr=stream))
    sys.exit(max(abs(child.wait()) for child in children))


def squeue(arguments: list[str]) -> None:
    fail_if("squeue.down")
    jobs = [json.loads(path.read_text()) for path in sorted(state_folder().glob("[0-9]*.json"))]
    if (state_folder() / "forget").exists():
        jobs = [job for job in jobs if job["state"] not in ENDED]
    if name := option(arguments, "name"):
        print("\n".join(job["id"] for job in jobs if job["name"] == name))
        return
    wanted = option(arguments, "jobs")
    job = next((job for job in jobs if job["id"] == wanted), None)
    if job is None:
        sys.exit("slurm_load_jobs error: Invalid job id specified")
    print(f"{job['state']}|{job['reason']}|{job.get('nodes', '')}|{job.get('restarts', 0)}|{job['name']}||")


def sacct(arguments: list[str]) -> None:
    fail_if("sacct.down")
    for path in sorted(state_folder().glob("[0-9]*.json")):
        job = json.loads(path.read_text())
        if job["id"] == option(arguments, "jobs"):
            print(f"{job['state']}|0:0|{job['name']}")
        if job["name"] == option(arguments, "name"):
            print(job["id"])


def end_session(job: dict, number: int) -> None:
    """Signal everything the job has started: its session is that of its batch script."""
    for line in subprocess.check_output(["ps", "-eo", "pid=,sid="], text=True).splitlines():
        pid, session = line.split()
        if session == str(job["pid"]):
            os.kill(int(pid), number)


def scancel(arguments: list[str]) -> None:
    job = load(arguments[0])
    save({**job, "state": "CANCELLED"})
    if "pid" in job:
        end_session(job, signal.SIGTERM)


def scontrol(arguments: list[str]) -> None:
    if arguments[0] == "requeue":
        job = load(arguments[1])
        save({**job, "state": "REQUEUED"})
        end_session(job, signal.SIGTERM)
    elif arguments[:2] == ["show", "job"]:
        print(f"JobId={arguments[-1]} EndTime=2030-01-02T03:04:05 Deadline=N/A")


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2:])
