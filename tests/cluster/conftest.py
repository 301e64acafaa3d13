"""The real Slurm cluster as a fixture: the one that runs already (`make test`), or one for this session.

FAULTS=docs/faults.md in the environment has the table there renewed by what the tests of faults measure.
"""

import contextlib
import os
import re
import signal
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
COLUMNS = "| fault | what the person sees | steps lost | seconds |\n|---|---|--:|--:|\n"
ORDER = (
    "`kill -9` of snakemake, the job is queued",
    "`kill -9` of snakemake, the job runs",
    "`kill -9` of snakemake, the job ends while nobody looks",
    "`kill -9` between `sbatch` and the record",
    "two snakemakes at once",
    "Ctrl-C in the terminal",
    "INT to snakemake alone",
    "TERM to snakemake alone",
    "HUP to snakemake alone",
    "`scancel` by someone else",
    "the time limit comes near",
    "the time limit strikes (no signal, no budget)",
    "preemption, PreemptMode=REQUEUE",
    "preemption, PreemptMode=CANCEL",
    "preemption, PreemptMode=SUSPEND",
    "`scontrol requeue`",
    "a node crashes",
    "a node freezes",
    "a node is drained while the job runs",
    "all nodes are drained while the job waits",
    "slurmctld is killed for 30 s, and the waiter meanwhile",
    "slurmctld is gone when a job is submitted",
    "slurmdbd is killed, and the job requeued meanwhile",
    "no accounting, and squeue has forgotten the job",
    "no accounting, and squeue has forgotten a job that failed",
    "the queue is full (MaxSubmitJobs)",
    "a dependency has failed",
    "a rank is killed",
    "a rank stands still",
    "ranks do not start on a node",
    "a bad card, found by the preflight",
    "a bad node of an earlier job",
    "`sbatch` by hand, then snakemake",
    "a folder named `a b'c\"d$e`, runs/ on a second file system, umask 077",
)
"""The faults of the table, in its order."""


class Faults:
    """What the tests of a session have seen and measured of faults."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}

    def note(self, fault: str, line: str, seconds: float, lost: int = 0) -> None:
        """A line that a person saw, and the seconds that passed to the next step, or to what the fault ends with."""
        assert fault in ORDER
        shown = re.sub(r"(?<![\w.])(?:/[^/\s:;,]+)+/", "", line).strip().replace("|", "\\|")
        self.rows[fault] = f"| {fault} | {f'`{shown}`' if shown else 'nothing'} | {lost} | {seconds:.0f} |"

    def write(self, path: Path) -> None:
        """Replace the table of a page; a row that was not measured this time stays as it is."""
        above, _, table = path.read_text().partition(COLUMNS)
        kept = {fault: line for line in table.splitlines() for fault in ORDER if line.startswith(f"| {fault} |")}
        rows = kept | self.rows
        path.write_text(above + COLUMNS + "".join(f"{rows[fault]}\n" for fault in ORDER if fault in rows))


@pytest.fixture(scope="session")
def faults() -> Generator[Faults]:
    """Where a test notes what it has seen of a fault."""
    faults = Faults()
    yield faults
    if "FAULTS" in os.environ:
        faults.write(Path(os.environ["FAULTS"]))


class Cluster:
    """A client of the cluster, for a test whose environment has its SLURM_CONF."""

    def __init__(self, folder: Path) -> None:
        """What is submitted here has `folder` as its working directory."""
        self.folder = folder

    def run(self, *command: str | Path, seconds: float = 60) -> str:
        """Standard output of a command, which has to succeed."""
        words = [str(part) for part in command]
        for _ in range(3):  # this machine may stand still for longer than a client of Slurm waits here
            done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, timeout=seconds)
            if done.returncode == 0 or words[0] not in ("squeue", "sinfo", "sacct") or "timed out" not in done.stderr:
                break
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

    def heal(self) -> None:
        """Boot the nodes that are down."""
        for line in set(self.run("sinfo", "-h", "-N", "-o", "%n %t").splitlines()):
            name, state = line.split()
            if state.startswith("down"):
                self.script("start-node", name)

    @contextlib.contextmanager
    def controller(self, *lines: str) -> Generator[None]:
        """A slurmctld that has these lines in its configuration, for the length of the block."""
        try:
            self.script("controller", *lines, seconds=90)
            yield
        finally:
            self.script("controller", seconds=90)

    def kill_daemon(self, name: str) -> None:
        """SIGKILL to slurmctld or slurmdbd; `up` starts it again."""
        os.kill(int((self.root() / f"run/{name}.pid").read_text()), signal.SIGKILL)

    @staticmethod
    def root() -> Path:
        """The folder of the cluster's daemons."""
        return Path(os.environ["SLURM_CONF"]).parents[1]

    def processes(self, node: str) -> list[psutil.Process]:
        """All processes of a node."""
        first = psutil.Process(int((self.root() / f"run/node-{node}.pid").read_text()))
        return [first, *first.children(recursive=True)]

    def rank(self, job: str, number: int) -> psutil.Process:
        """The process of a rank of a job; another cluster of this machine may have a job of the same number."""
        mine = {"SLURM_CONF": os.environ["SLURM_CONF"], "SLURM_JOB_ID": job, "SLURM_PROCID": str(number)}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if "submitit.core._submit" in process.cmdline() and mine.items() <= process.environ().items():
                    return process
        raise AssertionError(f"no process of rank {number}")

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


@contextlib.contextmanager
def client_of(slurm_conf: str, folder: Path) -> Generator[Cluster]:
    """A client, and the environment for it; in the end its jobs are cancelled, and crashed nodes boot again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", slurm_conf)
        client = Cluster(folder)
        yield client
        end = time.monotonic() + 60
        while jobs := client.mine():
            client.run("scancel", "--quiet", *jobs)
            assert time.monotonic() < end, f"jobs {jobs} do not end"
            time.sleep(0.5)
        client.heal()


@pytest.fixture
def cluster(slurm_conf: str, tmp_path: Path) -> Generator[Cluster]:
    """The cluster, for a test."""
    with client_of(slurm_conf, tmp_path) as client:
        yield client


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

    def line(self, text: str, start: int = 0) -> str:
        """The last line with `text`, of what was said after `start` characters."""
        return [line for line in self.said()[start:].splitlines() if text in line][-1]

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

    def rank(self, stage: str, number: int) -> psutil.Process:
        """The process of a rank of the stage's job."""
        return self.cluster.rank(self.job(stage), number)

    def settings(self, *lines: str) -> None:
        """Write the slurm section of the config, of which no result depends."""
        path = self.folder / "tiny.yaml"
        kept = path.read_text().partition("slurm:")[0]
        path.write_text(f"{kept}slurm: {{executor: slurm, interface: lo{''.join(', ' + line for line in lines)}}}\n")


@contextlib.contextmanager
def living(folder: Path, cluster: Cluster) -> Generator[Life]:
    """A run of the tiny config in `folder`; its commands end with the block."""
    life = Life(folder, cluster)
    life.settings()
    yield life
    for command in life.commands:
        command.kill()


@pytest.fixture
def life(cluster: Cluster, tiny: Path) -> Generator[Life]:
    """A run of the tiny config on the cluster, none of whose stages has begun."""
    with living(tiny.parent, cluster) as life:
        yield life


@pytest.fixture(scope="module")
def lasting(slurm_conf: str, tmp_path_factory: pytest.TempPathFactory, tiny_config: str) -> Generator[Life]:
    """The same for all tests of a file."""
    folder = tmp_path_factory.mktemp("lasting")
    (folder / "tiny.yaml").write_text(tiny_config)
    with client_of(slurm_conf, folder) as cluster, living(folder, cluster) as life:
        yield life
