# Verifiable tasks with step-by-step traces, cleaned and split.
rule synth:
    input:
        lambda _: force("synth"),
    output:
        paths.manifest("synth"),
    log:
        paths.log("synth"),
    threads: workflow.cores
    params:
        *triggers(settings, "synth"),
    shell:
        "{python:q} -P -m workflow.cli stage synth {paths.config:q} --cores {threads} --log {log:q}"
