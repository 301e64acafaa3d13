"""Whether what the config asks of Slurm can be had, before anything is submitted, from a Slurm that answers in time."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurm.ask.asked import Asked, listed
from slurm.ask.fit import in_service, too_few
from slurm.ask.trial import trials
from slurm.config import ActorsConfig, SlurmConfig
from slurm.query.answers import Limits, Partition
from slurm.query.facts import SECONDS, Facts, gather
from slurm.query.nodelist import expand
from slurm.query.queue import NoAnswer, is_known

DEPENDENCY = re.compile(r"(?<=:)(\d+)")
OPERATORS = re.compile(r"\*\d+|[&|,\[\]()!\"]")


def check_slurm(slurm: SlurmConfig, stages: Sequence[str], run_folder: Path) -> list[str]:
    """What is worth knowing of the jobs of `stages`. Raises ValueError with a line for each thing that cannot be had.

    A Slurm that does not answer within ten seconds is no reason to refuse anything.
    """
    asked = [Asked.of(slurm, stage, run_folder) for stage in stages]
    facts = gather(accounts=any("account" in each.options for each in asked))
    wrong, notes = _path(run_folder), list[str]()
    if facts.partitions is not None:  # else it answers nothing, or is not to be reached
        misplaced, told = _topology(slurm.topology)
        notes = [*(note for each in asked for note in _dependency(each)), *told]
        wrong += [problem for each in asked for problem in _problems(each, facts)] + misplaced
        wrong = wrong or trials(asked, facts)
    if wrong:
        raise ValueError("\n".join(dict.fromkeys(wrong)))
    return list(dict.fromkeys([*(note for each in asked for note in _notes(each, facts)), *notes]))


def _problems(asked: Asked, facts: Facts) -> Iterator[str]:
    largest = facts.settings.get("MaxArraySize", "")
    if isinstance(asked.shape, ActorsConfig) and largest.isdigit() and asked.shape.count >= int(largest):
        yield (
            f"slurm.actors.count is {asked.shape.count}, but arrays of this cluster have less than {largest} tasks "
            "(MaxArraySize); take fewer, and add some with `qianka actors add`"
        )
    yield from _account(asked, facts)
    yield from _qos(asked, facts)
    yield from _names(asked, facts)
    if facts.partitions is None:
        return
    partitions, unknown = _partitions(asked, facts.partitions)
    yield from unknown
    found = [list(_of_partition(asked, partition, facts)) for partition in partitions]
    if found and all(found):  # of several partitions, Slurm takes the one that fits
        yield from found[0]


def _partitions(asked: Asked, known: dict[str, Partition]) -> tuple[list[Partition], list[str]]:
    """The partitions that the job may go to, and what is wrong with their names."""
    names = asked.names("partition")
    if names:
        wrong = [asked.unknown("partition", name, known) for name in names if name not in known]
        return [known[name] for name in names if name in known], wrong
    default = [partition for partition in known.values() if partition.is_default]
    if known and not default:
        return [], [f"slurm.partition: this cluster has no default partition; name one of {listed(known)}"]
    return default, []


def _of_partition(asked: Asked, partition: Partition, facts: Facts) -> Iterator[str]:
    where = f"partition {partition.name}"
    if partition.state in ("DRAIN", "INACTIVE"):
        yield f"{asked.key('partition')}: {where} takes no jobs, it is {partition.state.lower()}; take another one"
    for option, allowed, denied in (
        ("account", partition.accounts, partition.denied),
        ("qos", partition.allowed_qos, partition.denied_qos),
    ):
        value = asked.text(option)
        value = value.lower() if value and option == "account" else value  # as the accounting keeps them
        if value and (value in denied or (allowed is not None and value not in allowed)):
            others = f"; it takes {listed(allowed)}" if allowed is not None else "; take another one"
            yield f"{asked.key(option)} is {asked.text(option)!r}, which {where} does not take{others}"
    for limits, name in _limits(asked, partition, facts):
        yield from _beyond(asked, limits, name)
    if facts.nodes is not None:
        nodes = [node for node in facts.nodes if node.partition == partition.name]
        if problem := too_few(asked, partition.name, nodes):
            yield problem


def _limits(asked: Asked, partition: Partition, facts: Facts) -> Iterator[tuple[Limits, str]]:
    """The limits that hold for a job, and whose they are."""
    account = asked.text("account")
    mine = [each for each in facts.associations or [] if account is None or account.lower() == each.account]
    names = {asked.text("qos") or ""} if asked.text("qos") else {each.default_qos for each in mine}
    qos = {name: (facts.qos or {})[name] for name in names if name in (facts.qos or {})}
    above = {flag for limits in qos.values() for flag in limits.flags}
    own = partition.limits
    yield (
        Limits(
            minutes=None if "PartitionTimeLimit" in above else own.minutes,
            nodes=None if "PartitionMaxNodes" in above else own.nodes,
        ),
        f"partition {partition.name}",
    )
    if not facts.enforces("limits"):
        return
    if partition.qos in (facts.qos or {}):
        qos[partition.qos] = (facts.qos or {})[partition.qos]
    yield from ((limits, f"QOS {name}") for name, limits in qos.items())
    if len(mine) == 1:
        yield mine[0].limits, f"account {mine[0].account}"


def _beyond(asked: Asked, limits: Limits, whose: str) -> Iterator[str]:
    shape = asked.shape
    if limits.minutes is not None and shape.minutes > limits.minutes:
        yield (
            f"slurm.{asked.stage}.minutes is {shape.minutes}, but a job of {whose} gets {limits.minutes:g} at most; "
            "set it to that: the stage commits before the limit, and goes on when its job is requeued"
        )
    if limits.nodes is not None and shape.nodes > limits.nodes:
        yield f"slurm.{asked.stage}.nodes is {shape.nodes}, but a job of {whose} gets {limits.nodes} at most (MaxNodes)"


def _account(asked: Asked, facts: Facts) -> Iterator[str]:
    account, mine = asked.text("account"), {each.account for each in facts.associations or []}
    if account is None or facts.associations is None or account.lower() in mine:
        return
    if facts.enforces("associations") or (facts.accounts is not None and account.lower() not in facts.accounts):
        yield asked.unknown("account", account, mine, "account of yours")


def _qos(asked: Asked, facts: Facts) -> Iterator[str]:
    qos = asked.text("qos")
    if qos is None or not facts.qos:
        return
    mine = {name for each in facts.associations or [] for name in each.qos}
    if qos not in facts.qos:
        yield asked.unknown("qos", qos, facts.qos, "QOS")
    elif facts.enforces("qos") and mine and qos not in mine:
        yield asked.unknown("qos", qos, mine, "QOS that you may use")


def _names(asked: Asked, facts: Facts) -> Iterator[str]:
    """Names of features, nodes and reservations."""
    if facts.nodes is not None:
        features = {feature for node in facts.nodes for feature in node.features}
        for name in feature_names(asked.text("constraint") or ""):
            if name not in features:
                yield asked.unknown("constraint", name, features, "node feature")
        nodes = {node.name for node in facts.nodes}
        for option in ("nodelist", "exclude"):
            try:
                names = expand(asked.text(option) or "")
            except ValueError as error:
                yield f"{asked.key(option)}: {error}"
                continue
            yield from (asked.unknown(option, name, nodes, "node") for name in names if name not in nodes)
    if facts.reservations is not None:
        for name in asked.names("reservation"):
            if name not in facts.reservations:
                yield asked.unknown("reservation", name, facts.reservations)


def feature_names(constraint: str) -> list[str]:
    """The names in a constraint of sbatch: `[a*2&b|c]` has a, b and c."""
    return [name for part in OPERATORS.sub(" ", constraint).split() if (name := part.strip())]


def _topology(file: str) -> tuple[list[str], list[str]]:
    """Where the site's topology file and Slurm disagree, and what else is worth knowing of it."""
    if not file:
        return [], []
    from slurm.topology.agree import check_against_slurm
    from slurm.topology.site import load

    try:
        return [], check_against_slurm(load(Path(file)), SECONDS)
    except NoAnswer:
        return [], []
    except ValueError as error:
        return str(error).splitlines(), []


def _path(folder: Path) -> list[str]:
    if set(str(folder)).isdisjoint("%\\") and str(folder).isprintable():
        return []
    return [f"{folder}: Slurm gives `%` and backslashes in the path of a log a meaning of its own; use another folder"]


def _dependency(asked: Asked) -> Iterator[str]:
    """Jobs that are not to be seen, which may be a colleague's. One that is not there Slurm takes for finished."""
    for job in dict.fromkeys(DEPENDENCY.findall(asked.text("dependency") or "")):
        try:
            known = is_known(job, SECONDS)
        except NoAnswer:
            continue
        if not known:
            yield (
                f"{asked.stage}: {asked.key('dependency')} is {asked.text('dependency')!r}, and Slurm shows you no job "
                f"{job}; if there is none, nothing is waited for"
            )


def _notes(asked: Asked, facts: Facts) -> Iterator[str]:
    """What makes the job wait, and does not keep it from running one day."""
    partitions, _ = _partitions(asked, facts.partitions or {})
    for partition in partitions:
        if partition.state == "DOWN":
            yield f"{asked.stage}: partition {partition.name} is down; the job will wait until it is up"
    if len(partitions) == 1 and facts.nodes is not None:
        nodes = [node for node in facts.nodes if node.partition == partitions[0].name]
        yield from in_service(asked, partitions[0].name, nodes)


def limits_of_jobs(facts: Facts) -> dict[str, str]:
    """How many jobs the cluster and the accounting let the user have, for `qianka doctor`."""
    found = {name: facts.settings[name] for name in ("MaxJobCount", "MaxArraySize") if name in facts.settings}
    limits = [(f"account {each.account}", each.limits) for each in facts.associations or []]
    for whose, each in [*limits, *((f"QOS {name}", limits) for name, limits in (facts.qos or {}).items())]:
        found |= {f"MaxJobs of {whose}": str(each.jobs)} if each.jobs is not None else {}
        found |= {f"MaxSubmit of {whose}": str(each.submitted)} if each.submitted is not None else {}
    return found
