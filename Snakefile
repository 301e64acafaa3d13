# The pipeline: synth -> sft -> rl -> evaluate, one rule file a stage. `snakemake --cores 2` runs it all.
import sys

from slurm.wait.callers import end_with_callers, pass_signals_on
from workflow.config import load
from workflow.force import Force
from workflow.paths import RunPaths
from workflow.profile import over_profile
from workflow.request import triggers
from workflow.session import accept_published, begin

given = over_profile(workflow.config_settings.config, sys.argv)
settings = load([str(path) for path in workflow.configfiles], given)
paths = RunPaths(settings.name)
python = sys.executable
force = Force(workflow, settings)


localrules:
    all,
    synth,
    sft,
    rl,
    evaluate,


rule all:
    input:
        paths.manifest("evaluate"),
        paths.report,
        paths.dashboard,


include: "workflow/rules/synth.smk"
include: "workflow/rules/sft.smk"
include: "workflow/rules/rl.smk"
include: "workflow/rules/evaluate.smk"


onstart:
    begin(settings)
    end_with_callers()
    pass_signals_on()


onsuccess:
    accept_published(settings)


onerror:
    accept_published(settings)
