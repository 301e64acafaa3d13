"""What Slurm's commands print about a cluster, in the words of its several versions, as partitions, nodes and limits.

A word that nobody knows is passed over, and what is not said is no limit.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from slurm.query.queue import BROKEN

ASSOCIATIONS = ("Account", "Partition", "QOS", "DefaultQOS", "MaxWall", "MaxJobs", "MaxSubmit")
QOS = ("Name", "Flags", "MaxWall", "MaxJobsPU", "MaxSubmitPU")
"""Columns of sacctmgr."""
WORD = re.compile(r"(?:^|\s)([\w/:]+)=")
NO_LIMIT = ("", "UNLIMITED", "INFINITE", "NONE", "N/A", "-1")


@dataclass(frozen=True)
class Node:
    """A node as one partition has it."""

    name: str
    partition: str
    state: str
    cpus: int
    cards: int
    features: frozenset[str]

    @property
    def in_service(self) -> bool:
        """Whether it takes jobs, now or when the one that runs there has ended."""
        return not self.state.startswith(BROKEN) and not self.state.endswith("*")


@dataclass(frozen=True)
class Limits:
    """Of a partition, a QOS or an association; None is no limit."""

    minutes: float | None = None
    nodes: int | None = None
    jobs: int | None = None
    submitted: int | None = None
    flags: frozenset[str] = frozenset()
    """Of a QOS: PartitionTimeLimit and PartitionMaxNodes put it over the partition."""


@dataclass(frozen=True)
class Partition:
    """A partition; the lists are None where all are allowed."""

    name: str
    state: str
    is_default: bool
    limits: Limits
    qos: str | None
    accounts: frozenset[str] | None
    denied: frozenset[str]
    allowed_qos: frozenset[str] | None
    denied_qos: frozenset[str]


@dataclass(frozen=True)
class Association:
    """What the accounting lets the user do with an account."""

    account: str
    partition: str
    """Empty for all."""
    qos: frozenset[str]
    default_qos: str
    limits: Limits


def read_partitions(lines: Iterable[str]) -> dict[str, Partition]:
    """`scontrol show partition -o`, of any version: unknown words are passed over, absent ones are no limit."""
    found: dict[str, Partition] = {}
    for line in lines:
        words = read_words(line)
        if not (name := words.get("PartitionName")):
            continue
        found[name] = Partition(
            name=name,
            state=words.get("State", "UP").upper(),
            is_default=words.get("Default", "NO").upper() == "YES",
            limits=Limits(minutes=read_minutes(words.get("MaxTime", "")), nodes=read_count(words.get("MaxNodes", ""))),
            qos=_named(words.get("QoS", "")),
            accounts=_list(words.get("AllowAccounts", "ALL").lower()),
            denied=_list(words.get("DenyAccounts", "").lower()) or frozenset(),
            allowed_qos=_list(words.get("AllowQos", "ALL")),
            denied_qos=_list(words.get("DenyQos", "")) or frozenset(),
        )
    return found


def read_words(line: str) -> dict[str, str]:
    """`Key=value Key=value with blanks`: the values by their keys."""
    parts = WORD.split(line)
    return {key: value.strip() for key, value in zip(parts[1::2], parts[2::2], strict=True)}


def read_nodes(lines: Iterable[str]) -> list[Node]:
    """`sinfo -N -o '%N|%R|%t|%c|%G|%f'`: a node once for each of its partitions."""
    found: list[Node] = []
    for line in lines:
        fields = [part.strip() for part in line.split("|")]
        if len(fields) != 6 or not fields[3].rstrip("+").isdecimal():
            continue
        name, partition, state, cpus, gres, features = fields
        names = frozenset(part for part in re.split(r"[,&]", features) if part and part != "(null)")
        found.append(Node(name, partition, state, int(cpus.rstrip("+")), read_cards(gres), names))
    return found


def read_cards(gres: str) -> int:
    """Cards of a node from its generic resources: `gpu:8(S:0-1)`, `gpu:c550:4,gpu:c500:4`, `(null)`."""
    without_sockets = re.sub(r"\([^)]*\)", "", gres)
    counts = [re.fullmatch(r"gpu(?::[^:]+)??(?::(\d+))?", item.strip()) for item in without_sockets.split(",")]
    return sum(int(count[1] or 1) for count in counts if count)


def read_qos(lines: Iterable[str]) -> dict[str, Limits]:
    """`sacctmgr show qos`: limits by name."""
    found: dict[str, Limits] = {}
    for name, flags, wall, jobs, submitted in _rows(lines, len(QOS)):
        limits = Limits(read_minutes(wall), None, read_count(jobs), read_count(submitted), _names(flags))
        found[name] = limits
    return found


def read_associations(lines: Iterable[str]) -> list[Association]:
    """`sacctmgr show assoc where user=...`."""
    found: list[Association] = []
    for account, partition, qos, default, wall, jobs, submitted in _rows(lines, len(ASSOCIATIONS)):
        limits = Limits(read_minutes(wall), None, read_count(jobs), read_count(submitted))
        found.append(Association(account, partition, _names(qos), default, limits))
    return found


def _rows(lines: Iterable[str], columns: int) -> list[list[str]]:
    return [row for line in lines if len(row := line.split("|")) == columns]


def read_reservations(lines: Iterable[str]) -> frozenset[str]:
    """Names in `scontrol show reservation -o`."""
    return frozenset(name for line in lines if (name := read_words(line).get("ReservationName")))


def read_settings(lines: Iterable[str]) -> dict[str, str]:
    """`scontrol show config`."""
    pairs = (line.partition("=") for line in lines)
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def read_minutes(text: str) -> float | None:
    """A time limit of Slurm in minutes: `90`, `30:00`, `12:00:00`, `1-0`, `1-12:30`, `2-00:00:00`; None is no limit."""
    if text.strip().upper() in NO_LIMIT:
        return None
    days, dash, clock = text.strip().rpartition("-")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in [*parts, days or "0"]) or len(parts) > 3:
        return None
    numbers = [int(part) for part in parts]
    if dash:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    return int(days or 0) * 1440 + hours * 60 + minutes + seconds / 60


def read_count(text: str) -> int | None:
    """A number that limits something; None is no limit."""
    return int(text) if text.strip().isdecimal() else None


def _named(text: str) -> str | None:
    return None if text.upper() in ("", "N/A", "(NULL)") else text


def _list(text: str) -> frozenset[str] | None:
    return None if text.upper() in ("ALL", "(NULL)") else _names(text)


def _names(text: str) -> frozenset[str]:
    return frozenset(filter(None, text.split(",")))
