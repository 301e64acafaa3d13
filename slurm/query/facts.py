"""What Slurm says about the cluster, asked for at once. What it does not say in time is unknown."""

import getpass
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from slurm.query.answers import (
    ASSOCIATIONS,
    QOS,
    Association,
    Limits,
    Node,
    Partition,
    read_associations,
    read_nodes,
    read_partitions,
    read_qos,
    read_reservations,
    read_settings,
)
from slurm.query.queue import NoAnswer, ask

SECONDS = 10.0
"""For an answer; what does not come in this time, which a busy login node may need, is unknown."""


@dataclass(frozen=True)
class Facts:
    """The answers; None where Slurm did not answer, or keeps no account of it."""

    partitions: dict[str, Partition] | None = None
    nodes: list[Node] | None = None
    qos: dict[str, Limits] | None = None
    associations: list[Association] | None = None
    accounts: frozenset[str] | None = None
    """All that the accounting knows."""
    reservations: frozenset[str] | None = None
    settings: dict[str, str] = field(default_factory=dict[str, str])

    def enforces(self, what: str) -> bool:
        """Whether the accounting enforces `associations`, `limits` or `qos`."""
        words = set(self.settings.get("AccountingStorageEnforce", "").lower().split(","))
        implied = {"associations": {"limits", "qos", "safe", "wckeys"}, "limits": {"safe"}, "qos": set[str]()}
        return bool(words & ({what, "all"} | implied[what]))


def gather(accounts: bool = False) -> Facts:
    """Ask for everything at once, at most SECONDS long; for all accounts where they are wanted."""
    questions: dict[str, Callable[[], object]] = {
        "partitions": lambda: read_partitions(_ask("scontrol", "show", "partition", "-a", "-o")),
        "nodes": lambda: read_nodes(_ask("sinfo", "-h", "-a", "-N", "-o", "%N|%R|%t|%c|%G|%f")),
        "reservations": lambda: read_reservations(_ask("scontrol", "show", "reservation", "-o")),
        "settings": lambda: read_settings(_ask("scontrol", "show", "config")),
        "qos": lambda: read_qos(_sacctmgr("qos", QOS)),
        "associations": lambda: read_associations(_sacctmgr("assoc", ASSOCIATIONS, "where", f"user={_user()}")),
    }
    if accounts:
        questions["accounts"] = lambda: frozenset(_sacctmgr("account", ("Account",)))
    with ThreadPoolExecutor(len(questions)) as pool:
        answers = {name: pool.submit(_or_unknown, question) for name, question in questions.items()}
    found: dict[str, Any] = {name: answer.result() for name, answer in answers.items()}
    # No partition, node or QOS at all is no answer of a cluster; no reservation is.
    return Facts(
        **{name: value for name, value in found.items() if value or (name == "reservations" and value is not None)}
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except KeyError as error:  # a container may have a user id that has no name
        raise NoAnswer(f"nobody knows the name of this user: {error}") from error


def _ask(*command: str) -> list[str]:
    return ask(*command, seconds=SECONDS)


def _sacctmgr(table: str, columns: Iterable[str], *condition: str) -> list[str]:
    return _ask("sacctmgr", "-n", "-P", "show", table, *condition, f"format={','.join(columns)}")


def _or_unknown(question: Callable[[], object]) -> object:
    try:
        return question()
    except NoAnswer:
        return None
