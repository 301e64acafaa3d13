"""Which of sbatch's options a user may give, and how they come to the batch script."""

import re
from collections.abc import Mapping

Value = str | int | bool

JOB_NAME = "Qianka finds its job by the name that it gives it"
LOGS = "the logs lie in the attempt folder, where `qianka logs` and the waiting command look for them"
ONE_JOB = "Qianka makes one job for one attempt"
NODES, TASKS = "set slurm.<stage>.nodes", "set slurm.<stage>.tasks_per_node"
CARDS = "set slurm.<stage>.gpus_per_node; a site that counts its cards otherwise sets it to 0 and takes `gres`"
REQUEUE = "a job that stops in good order, or loses a node, is always requeued"
FOLDER = "jobs work in the folder from which Qianka was started"
SAID = "Qianka reads what sbatch says"
CLUSTER = "the cluster is the one of SLURM_CONF"
ENVIRONMENT = "set slurm.environment"
RESERVED = {
    "array": ONE_JOB,
    "batch": "the first node runs the batch script",
    "chdir": FOLDER,
    "cluster": CLUSTER,
    "clusters": CLUSTER,
    "cpus-per-task": "set slurm.<stage>.cpus_per_task",
    "error": LOGS,
    "export": ENVIRONMENT,
    "export-file": ENVIRONMENT,
    "get-user-env": ENVIRONMENT,
    "gpus": CARDS,
    "gpus-per-node": CARDS,
    "gpus-per-task": CARDS,
    "help": SAID,
    "input": "a job has no input",
    "job-name": JOB_NAME,
    "no-requeue": REQUEUE,
    "nodes": NODES,
    "ntasks": TASKS,
    "ntasks-per-core": TASKS,
    "ntasks-per-gpu": TASKS,
    "ntasks-per-node": TASKS,
    "ntasks-per-socket": TASKS,
    "open-mode": LOGS,
    "output": LOGS,
    "parsable": SAID,
    "quiet": SAID,
    "requeue": REQUEUE,
    "signal": "set slurm.signal_seconds",
    "test-only": SAID,
    "time": "set slurm.<stage>.minutes",
    "usage": SAID,
    "verbose": SAID,
    "version": SAID,
    "wait": "Qianka waits by itself, and is not ended by it",
    "wrap": "Qianka writes the batch script",
}
"""Options that Qianka sets itself, or that would break its hold on the job, and what to do instead."""
NODE_LISTS = ("exclude", "nodelist")
LONG_NAME = re.compile(r"[a-z][a-z0-9-]+")
HIDE = "keep it in a file that only you can read (chmod 600), and write `export NAME=$(cat FILE)` in slurm.setup"
SECRET = re.compile(
    r"SECRET|PASSW|PASSPHRASE|CREDENTIAL|(TOKEN|KEY|KEYS)(_|$)|(^|_)(PASS|PAT|AUTH)(_|$)|_PWD(_|$)", re.IGNORECASE
)
"""Names of environment variables whose values are nobody else's business: they are refused where others may read them,
and not shown. TOKENIZERS_PARALLELISM, MAX_TOKENS, PATH and PWD are none of them."""
LITERAL = re.compile(r"""\b(\w+)=(?!["']?[$`])["']?\S""")
"""An assignment of a value that stands there, and is not the content of a file or another variable."""


def check_additional(options: Mapping[str, Value]) -> dict[str, Value]:
    """The options by their names as sbatch spells them. ValueError for one that cannot be given, with what to do."""
    checked: dict[str, Value] = {}
    for given, value in options.items():
        name = given.replace("_", "-").removeprefix("--")
        if not LONG_NAME.fullmatch(name):
            raise ValueError(f"{given!r} is no long name of an option of sbatch, such as `licenses` for -L")
        if name in RESERVED:
            raise ValueError(f"`{given}` cannot be given: {RESERVED[name]}")
        if name in NODE_LISTS and "/" in str(value):
            raise ValueError(f"`{given}` is {value!r}: write the names of the nodes, such as mx[0-3], and no file")
        if name in checked:
            raise ValueError(f"`{given}` is here twice")
        checked[name] = one_line(value)
    return checked


def one_line(value: Value) -> Value:
    """The value, which has to fit one line of a batch script."""
    if not isinstance(value, str):
        return value
    if not (value and value.isprintable()):
        raise ValueError(f"it should be one line of printable text, and not {value!r}")
    return without_secret(value)


def check_setup(lines: list[str]) -> list[str]:
    """ValueError when a line holds a secret."""
    return [without_secret(line) for line in lines]


def without_secret(text: str) -> str:
    """The text. ValueError when it sets a secret: Slurm shows options and batch scripts, and may store them."""
    for name in LITERAL.findall(text):
        if SECRET.search(name):
            raise ValueError(f"what sets {name} would be shown to whoever may look at the job; {HIDE}")
    return text
