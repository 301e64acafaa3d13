"""What is installed, and whether it is what this version of Qianka was tested with."""

import platform
import shutil
import socket
import subprocess
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from slurm.health.finding import Finding
from slurm.query.environment import slurm_environment

SHOWN = ("torch", "submitit", "snakemake", "transformers")


def check_versions(node: str) -> list[Finding]:
    """Versions of what matters, the requirements of `pyproject.toml`, and where the five packages come from."""
    from slurm.job import check_packages

    shown = [f"python {platform.python_version()}", *(f"{name} {_version(name) or 'missing'}" for name in SHOWN)]
    found = [Finding("versions", node, "ok", ", ".join([*shown, _slurm()]))]
    wrong: list[str] = []
    for text in requires("qianka") or []:
        wanted = Requirement(text)
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        here = _version(wanted.name)
        if here is None or not wanted.specifier.contains(here, prereleases=True):
            wrong.append(f"{wanted.name} is {here or 'missing'}, and {wanted.specifier} is asked for")
    if wrong:
        way_out = "install Qianka again into this environment (docs/install.md)"
        found.append(Finding("requirements", node, "bad", "; ".join(wrong), way_out))
    else:
        found.append(Finding("requirements", node, "ok", "all as pyproject.toml asks"))
    try:
        check_packages()
    except ValueError as error:
        return [*found, Finding("packages", node, "bad", str(error), "see the message")]
    return [*found, Finding("packages", node, "ok", "all five lie in this repository")]


def check_name(node: str, has_peers: bool) -> list[Finding]:
    """The node's own name leads to an address: gloo and nccl look it up when no interface is configured."""
    try:
        address = socket.gethostbyname(node)
    except OSError as error:
        way_out = "make it resolve (/etc/hosts, DNS), or set slurm.interface"
        return [Finding("own name", node, "bad", f"{node}: {error.strerror or error}", way_out)]
    if has_peers and address.startswith("127."):
        measured = f"{node} is {address} to itself: the others may not reach what it announces"
        return [Finding("own name", node, "unknown", measured, "set slurm.interface, or mend /etc/hosts")]
    return [Finding("own name", node, "ok", f"{node} is {address}")]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _slurm() -> str:
    if shutil.which("srun") is None:
        return "no Slurm"
    done = subprocess.run(["srun", "--version"], env=slurm_environment(), capture_output=True, text=True, check=False)
    return done.stdout.strip() or "Slurm does not say which"
