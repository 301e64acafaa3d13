"""Seconds of `snakemake -n` on Qianka's pipeline, against a Snakefile of the same shape that knows nothing.

Qianka adds the config with its checks, the code digests, and the manifests of the results: at most 0.6 s.
"""

import tempfile
from pathlib import Path

from benchmarks.commands import PYTHON, ROOT, fastest, figure, write_config

BARE = """\
rule all:
    input: "evaluate"
rule synth:
    output: "synth"
    shell: "touch {output}"
rule sft:
    input: "synth"
    output: "sft"
    shell: "touch {output}"
rule rl:
    input: "synth", "sft"
    output: "rl"
    shell: "touch {output}"
rule evaluate:
    input: "synth", "sft", "rl"
    output: "evaluate"
    shell: "touch {output}"
"""
SNAKEMAKE = [*PYTHON, "-m", "snakemake", "--cores", "1", "-n", "--quiet"]


def measure() -> dict[str, str | float]:
    """The fastest of several runs of each, in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_config(folder, "slurm: {executor: local}")
        (folder / "bare").write_text(BARE)
        ours = [*SNAKEMAKE, "--snakefile", str(ROOT / "Snakefile"), "--configfile", "tiny.yaml"]
        value, baseline = fastest(ours, [*SNAKEMAKE, "--snakefile", "bare"], folder=folder)
    return figure("plan_overhead", value, baseline)
