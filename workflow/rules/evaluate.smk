# Base, SFT and RL on the same prompts, as numbers and as a dashboard.
rule evaluate:
    input:
        paths.manifest("synth"),
        paths.manifest("sft"),
        paths.manifest("rl"),
        lambda _: force("evaluate"),
    output:
        paths.manifest("evaluate"),
        paths.report,
        paths.dashboard,
    log:
        paths.log("evaluate"),
    threads: workflow.cores
    params:
        *triggers(settings, "evaluate"),
    shell:
        "{python:q} -P -m workflow.cli stage evaluate {paths.config:q} --cores {threads} --log {log:q}"
