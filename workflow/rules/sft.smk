# Supervised fine-tuning on the training split.
rule sft:
    input:
        paths.manifest("synth"),
        lambda _: force("sft"),
    output:
        paths.manifest("sft"),
    log:
        paths.log("sft"),
    threads: workflow.cores
    params:
        *triggers(settings, "sft"),
    shell:
        "{python:q} -P -m workflow.cli stage sft {paths.config:q} --cores {threads} --log {log:q}"
