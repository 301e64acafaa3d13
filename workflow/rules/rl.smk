# Reinforcement learning from the verifier's reward.
rule rl:
    input:
        paths.manifest("synth"),
        paths.manifest("sft"),
        lambda _: force("rl"),
    output:
        paths.manifest("rl"),
    log:
        paths.log("rl"),
    threads: workflow.cores
    params:
        *triggers(settings, "rl"),
    shell:
        "{python:q} -P -m workflow.cli stage rl {paths.config:q} --cores {threads} --log {log:q}"
