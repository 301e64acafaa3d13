"""Seconds of `qianka --help`, against a Python interpreter that starts and ends. At most 0.6 s on two cores."""

from benchmarks.commands import PYTHON, QIANKA, ROOT, fastest, figure


def measure() -> dict[str, str | float]:
    """The fastest of several runs of each, in turn."""
    ours, bare = fastest([*QIANKA, "--help"], [*PYTHON, "-c", "pass"], folder=ROOT)
    return figure("cli_help_seconds", ours, bare)
