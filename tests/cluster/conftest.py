"""The real Slurm cluster as a fixture: the one that runs already (`make test`), or one for this session."""

import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
