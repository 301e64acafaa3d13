"""Slurm's words for the states of a job and the reasons why it waits, in words that a person understands."""

import pwd
import re

STATES = {
    "PENDING": "waits in the queue",
    "CONFIGURING": "its nodes boot",
    "RUNNING": "runs",
    "COMPLETING": "its last processes end",
    "SUSPENDED": "stands still: Slurm, or an administrator, has suspended it",
    "STOPPED": "stands still: it was stopped by a signal",
    "STAGE_OUT": "its files are being copied from the burst buffer",
    "REQUEUED": "Slurm will start it again",
    "REQUEUE_FED": "a cluster of the federation will start it again",
    "REQUEUE_HOLD": "held by Slurm, which does not start it again by itself: `scontrol release` does",
    "SPECIAL_EXIT": "held by Slurm after its exit code: `scontrol release` starts it again",
    "RESV_DEL_HOLD": "held because its reservation was deleted",
    "COMPLETED": "ended",
    "FAILED": "failed",
    "TIMEOUT": "reached its time limit",
    "DEADLINE": "reached its deadline",
    "OUT_OF_MEMORY": "ran out of memory on a node: ask for more (slurm.additional: {mem: ...}), or for smaller batches",
    "NODE_FAIL": "lost a node",
    "BOOT_FAIL": "its nodes did not boot",
    "PREEMPTED": "was preempted by a job of higher priority",
    "REVOKED": "another cluster of the federation runs it",
}
"""What squeue and sacct call a state."""

REASONS = {
    "Priority": "jobs of higher priority are before it",
    "Resources": "it is the next one, as soon as enough nodes are free",
    "BeginTime": "its time to start has not come: that of --begin, or the end of the pause after a requeue",
    "Cleaning": "what its last start left on the nodes is being cleaned up",
    "Dependency": "a job that it depends on has not ended",
    "Reservation": "its reservation has not begun",
    "Licenses": "the licences that it asks for are in use",
    "NodeDown": "a node that it wants is down",
    "ReqNodeNotAvail": "nodes that it could have are down, drained or reserved",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition starts no jobs now",
    "PartitionNodeLimit": "its partition does not give so many nodes to one job",
    "PartitionTimeLimit": "its partition does not give so much time to one job",
    "JobHeldUser": "held by its owner: `scontrol release` lets it go",
    "JobHeldAdmin": "held by an administrator, who alone can release it",
    "JobHoldMaxRequeue": "held by Slurm, which has started it too often: `scontrol release` lets it go",
    "job_requeued_in_held_state": "held after a requeue: `scontrol release` lets it go",
    "launch_failed_requeued_held": "held by Slurm, because it could not be launched: `scontrol release` lets it go",
    "DependencyNeverSatisfied": "the job that it depends on has failed, so that it can never start",
    "BadConstraints": "no node has what it asks for",
    "AccountNotAllowed": "its account may not use this partition",
    "InvalidAccount": "its account is not one of Slurm's",
    "InvalidQOS": "its QOS is not one of Slurm's",
    "QOSNotAllowed": "its QOS may not use this partition",
    "QOSTimeLimit": "its QOS does not give so much time to one job",
    "SystemFailure": "a failure of the system",
    "NonZeroExitCode": "its exit code says that it failed",
    "NodeFail": "a node failed",
    "TimeLimit": "its time was up",
    "OutOfMemory": "a process was out of memory",
    "Prolog": "the site's prolog runs on its nodes",
    "FrontEndDown": "no front end is up",
    "BurstBufferResources": "the burst buffer is full",
    "exit code 0:53": "its first node could not open the log; is the run's folder there under the same name?",
    "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions": (
        "nodes that it needs are down, drained, or reserved for jobs of higher priority"
    ),
}
"""Why a job waits, as squeue's %r says it."""

LIMITS = re.compile(r"^(QOS|Assoc)(Max|Grp)(\w+?)(Per\w+|Limit)?$")
"""QOSMaxJobsPerUserLimit, AssocGrpCpuLimit and their kin: a limit of a QOS, or of an account."""

HOPELESS = {
    "DependencyNeverSatisfied": "take the dependency away (slurm.dependency), or name a job that can end well",
    "InvalidAccount": "name another account (slurm.account)",
    "InvalidQOS": "name another QOS (slurm.qos)",
}
"""Reasons for which a job never starts, and the way out."""
MAY_PASS = ("InvalidAccount", "InvalidQOS")
"""Those of them that slurmctld gives as well while it has not heard from slurmdbd."""

HELD = {
    *("REQUEUE_HOLD", "SPECIAL_EXIT", "JobHoldMaxRequeue"),
    *("job_requeued_in_held_state", "launch_failed_requeued_held"),
}
"""States and reasons after a job has failed to start: waited for, but within a bound.

What an administrator holds, or what fits no node or partition as they are now, is waited for as long as it takes: the
job would lose its place in the queue in a night of maintenance.
"""

UNTIL_IT_ENDS = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED")


def state_words(state: str, reason: str = "", nodes: str = "") -> str:
    """One phrase for a state, with squeue's reason or sacct's exit code; a word that nobody knows stays as it is."""
    word, _, rest = state.partition(" ")
    word = word.rstrip("+")
    if word == "CANCELLED":
        return f"was cancelled by {_user(rest.removeprefix('by ').strip())}" if rest else "was cancelled"
    words = STATES.get(word, word)
    if word in UNTIL_IT_ENDS:
        return f"{words} on {nodes}" if nodes else words
    if not reason or reason in ("None", word):
        return words
    return f"{words}: {reason_words(reason)}" if word == "PENDING" else f"{words} ({reason_words(reason)})"


def reason_words(reason: str) -> str:
    """Words for a reason, and what Slurm adds to it, such as the names of nodes."""
    name, _, more = reason.strip("() ").partition(",")
    name, more = (reason.strip("() "), "") if reason.strip("() ") in REASONS else (name.strip(), more.strip())
    if name in REASONS:
        return f"{REASONS[name]} ({more})" if more else REASONS[name]
    limit = LIMITS.match(name)
    if limit:
        whose = "QOS" if limit[1] == "QOS" else "account"
        return f"a limit of the {whose} is reached ({name})"
    return reason


def way_out(reason: str) -> str | None:
    """What to do about a job that can never start; None when it can."""
    return HOPELESS.get(reason.partition(",")[0].strip("() "))


def may_pass(reason: str) -> bool:
    """Whether a job that can never start may do so all the same in a while."""
    return reason.partition(",")[0].strip("() ") in MAY_PASS


def is_held(state: str, reason: str) -> bool:
    """Whether Slurm has put the job aside because it did not start."""
    return bool({state.split()[0].rstrip("+"), reason.partition(",")[0].strip("() ")} & HELD)


def _user(number: str) -> str:
    try:
        return pwd.getpwuid(int(number)).pw_name
    except (ValueError, KeyError):
        return f"user {number}"
