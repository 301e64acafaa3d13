"""The real Slurm cluster as a fixture: the one that runs already (`make test`), or one for this session."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import psutil
import pytest

from slurm.record import Record, read_record

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SCRIPT = Path(__file__).parent / "cluster.sh"


class Cluster:
    """A client of the cluster, for a test whose environment has its SLURM_CONF."""

    def __init__(self, folder: Path) -> None:
        """What is submitted here has `folder` as its working directory."""
        self.folder = folder

    def run(self, *command: str | Path, seconds: float = 60) -> str:
        """Standard output of a command, which has to succeed."""
        words = [str(part) for part in command]
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def script(self, *arguments: str, seconds: float = 60) -> str:
        """A command of cluster.sh."""
        return self.run("bash", SCRIPT, *arguments, seconds=seconds)

    def nodes(self) -> list[str]:
        """Names of all nodes."""
        return sorted(set(self.run("sinfo", "-h", "-N", "-o", "%n").split()))

    def submit(self, command: str, *options: str) -> str:
        """Id of a job that runs a shell command. Its output is lost unless an option says where it goes."""
        return self.run("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={command}")

    def state(self, job_id: str) -> str:
        """The job's last state, of squeue or else of sacct; empty when neither knows it yet."""
        queued = subprocess.run(["squeue", "-h", "-j", job_id, "-o", "%T"], capture_output=True, text=True)
        if queued.stdout.strip():
            return queued.stdout.split()[0]
        return (self.run("sacct", "-n", "-X", "-P", "-j", job_id, "-o", "State").split() or [""])[0]

    def wait(self, job_id: str, *states: str, seconds: float = 60) -> str:
        """The job's state, once it is one of `states`."""
        end = time.monotonic() + seconds
        while (state := self.state(job_id)) not in states:
            assert time.monotonic() < end, f"job {job_id} is {state!r} and not one of {states} after {seconds} s"
            time.sleep(0.3)
        return state

    def job_nodes(self, job_id: str) -> list[str]:
        """Nodes of a running job, the first one first."""
        return self.run("scontrol", "show", "hostnames", self.run("squeue", "-h", "-j", job_id, "-o", "%N")).split()

    def mine(self) -> list[str]:
        """Ids of the jobs that were submitted from this test's folder and have not ended."""
        lines = [line.split(" ", 1) for line in self.run("squeue", "-h", "-o", "%A %Z").splitlines()]
        return [job for job, folder in lines if Path(folder).is_relative_to(self.folder)]


@pytest.fixture(scope="session")
def slurm_conf() -> Generator[str]:
    """Path of the cluster's slurm.conf; the cluster is stopped at the end if it was started here."""
    ours = subprocess.run(["bash", str(SCRIPT), "running"]).returncode != 0
    if ours:
        subprocess.run(["bash", str(SCRIPT), "up"], check=True)
    yield subprocess.check_output(["bash", "-c", f'eval "$(bash {SCRIPT} env)"; echo "$SLURM_CONF"'], text=True).strip()
    if ours:
        subprocess.run(["bash", str(SCRIPT), "down"], check=True)


@pytest.fixture
def cluster(slurm_conf: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[Cluster]:
    """The cluster; after the test its jobs are cancelled, and crashed nodes boot again."""
    monkeypatch.setenv("SLURM_CONF", slurm_conf)
    client = Cluster(tmp_path)
    yield client
    end = time.monotonic() + 60
    while jobs := client.mine():
        client.run("scancel", "--quiet", *jobs)
        assert time.monotonic() < end, f"jobs {jobs} do not end"
        time.sleep(0.5)
    for line in set(client.run("sinfo", "-h", "-N", "-o", "%n %t").splitlines()):
        name, state = line.split()
        if state.startswith("down"):
            client.script("start-node", name)


def wait_for(condition: Callable[[], object], what: str, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not after {seconds} s"
        time.sleep(0.1)


class Command:
    """A command of a person at a terminal: a session of its own, and what it has shown."""

    def __init__(self, folder: Path, *words: str, env: dict[str, str] | None = None) -> None:
        self.path = folder / f"terminal-{len(list(folder.glob('terminal-*')))}"
        settings = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "400", "OMP_NUM_THREADS": "1"}
        with self.path.open("wb") as out:
            self.process = psutil.Popen(
                words, cwd=folder, env=settings | (env or {}), stdout=out, stderr=out, start_new_session=True
            )

    def said(self) -> str:
        return self.path.read_text(errors="replace")

    def sees(self, text: str, seconds: float = 90) -> None:
        wait_for(lambda: text in self.said() or self.process.poll() is not None, f"{text!r} in {self.said()}", seconds)
        assert text in self.said(), self.said()

    def kill(self) -> None:
        """SIGKILL to the command and all that it has started."""
        below = self.process.children(recursive=True) if self.process.poll() is None else []
        for process in [*below, self.process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def tell(self, number: int) -> int:
        """Signal the process alone, and return its exit code."""
        self.process.send_signal(number)
        return self.ends(30)

    def ends(self, seconds: float = 120) -> int:
        try:
            return self.process.wait(seconds)
        except (psutil.TimeoutExpired, subprocess.TimeoutExpired):
            pytest.fail(f"it goes on: {self.said()}")


class Life:
    """A run in a folder of its own."""

    def __init__(self, folder: Path, cluster) -> None:
        self.folder, self.cluster, self.commands = folder, cluster, list[Command]()

    wait_for = staticmethod(wait_for)

    def start(self, *words: str, env: dict[str, str] | None = None) -> Command:
        self.commands.append(Command(self.folder, *words, env=env))
        return self.commands[-1]

    def snakemake(self, stage: str, **settings) -> Command:
        options = ("--cores", "1", stage, "--configfile", "tiny.yaml")
        return self.start("snakemake", "--snakefile", str(ROOT / "Snakefile"), *options, **settings)

    def qianka(self, *words: str, **settings) -> Command:
        return self.start(sys.executable, "-P", "-m", "workflow.cli", *words, **settings)

    def stage(self, stage: str) -> Path:
        return self.folder / "runs" / "tiny" / stage

    def record(self, stage: str) -> Record:
        record = read_record(self.stage(stage))
        assert record
        return record

    def job(self, stage: str) -> str:
        wait_for(lambda: self.stage(stage).is_dir() and read_record(self.stage(stage)), "the intent")
        wait_for(lambda: self.record(stage).job_id, "the job's id")
        return self.record(stage).job_id or ""

    def jobs(self, stage: str) -> list[str]:
        """Ids of all jobs that the accounting or the queue knows by the name of the stage's attempt."""
        name = self.record(stage).job_name
        queued = self.cluster.run("squeue", "-h", "--states=all", "-o", "%A", f"--name={name}")
        ended = self.cluster.run("sacct", "-n", "-X", "-P", "-o", "JobID", "--starttime=now-1hour", f"--name={name}")
        return sorted({*queued.split(), *ended.split()})

    def release(self, job: str) -> None:
        self.cluster.run("scontrol", "update", f"jobid={job}", "starttime=now")

    def settings(self, *lines: str) -> None:
        """Write the slurm section of the config, of which no result depends."""
        path = self.folder / "tiny.yaml"
        kept = path.read_text().partition("slurm:")[0]
        path.write_text(f"{kept}slurm: {{executor: slurm, interface: lo{''.join(', ' + line for line in lines)}}}\n")


@pytest.fixture
def life(cluster: Cluster, tiny: Path) -> Generator[Life]:
    """A run of the tiny config on the cluster, none of whose stages has begun; its commands end with the test."""
    life = Life(tiny.parent, cluster)
    life.settings()
    yield life
    for command in life.commands:
        command.kill()
