"""The command `qianka`. Every part that takes time to import is imported by the command that needs it."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Post-training of language models as one pipeline: synth, sft, rl, evaluate.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG.yaml]... [KEY=VALUE]...",
        help="Config files, the later over the earlier, and overrides such as rl.learning_rate=3e-4. "
        "Without a file: the shipped demo.",
        show_default=False,
    ),
]
Cores = Annotated[int | None, typer.Option(min=1, help="Cores of this machine for local jobs; all by default.")]
Run = Annotated[str | None, typer.Argument(help="Name of a run; by default the last used one.", show_default=False)]
Stage = Annotated[
    str | None, typer.Argument(help="Name of a stage; by default the one that is under way.", show_default=False)
]


@contextmanager
def mistakes_shown() -> Generator[None]:
    """End with one message and exit code 2 where the user can mend it, 1 where the cluster must."""
    from checkpoints.disk import trouble
    from slurm.query.queue import NoAnswer, SubmitError

    try:
        yield
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    except (NoAnswer, SubmitError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    except OSError as error:
        full = trouble(error, Path.cwd())
        if full is None:
            raise
        print(
            f"error: {error.filename or Path.cwd()}: {full}; make room and run the same command again", file=sys.stderr
        )
        raise typer.Exit(2) from error


@app.command()
def run(arguments: Arguments = None, cores: Cores = None) -> None:
    """Run what is missing or out of date, and end with a table of what came of it."""
    with mistakes_shown():
        from workflow.config import load
        from workflow.pipeline import run_pipeline

        raise typer.Exit(run_pipeline(load(arguments or []), cores))


@app.command()
def plan(
    arguments: Arguments = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also place each stage on the site's topology (slurm.topology).")
    ] = False,
    cards: Annotated[
        int | None, typer.Option(min=1, help="With --explain: as if the rl stage asked for so many cards.")
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Check an algorithm and draw it, shipped or your own, without a run."),
    ] = None,
) -> None:
    """Say what would run and why, and draw the algorithm. Nothing is started or written."""
    with mistakes_shown():
        from workflow.config import load

        if algorithm is not None:
            from workflow.pipeline import show_algorithm

            if arguments or explain or cards:
                plan_it = f"a run that has it is planned with rl.algorithm={algorithm}"
                raise ValueError(f"--algorithm draws {algorithm} by itself; {plan_it}")
            show_algorithm(algorithm)
            return
        config = load(arguments or [])
        if explain or cards:
            from workflow.explain import explain_placement

            explain_placement(config, cards)
            return
        from workflow.pipeline import show_plan

        show_plan(config)


@app.command()
def stage(
    name: Annotated[str, typer.Argument(help="synth, sft, rl or evaluate.")],
    arguments: Arguments = None,
    cores: Cores = None,
    log: Annotated[Path | None, typer.Option(help="Also write what the terminal shows to this file.")] = None,
    here: Annotated[
        bool, typer.Option("--here", help="This process's own Slurm job is the stage's: note it, print the folder.")
    ] = False,
    publish: Annotated[bool, typer.Option("--publish", help="Publish the result of a job made with --here.")] = False,
) -> None:
    """Run one stage alone: submit its job or find the one that runs, wait, and publish its result."""
    with mistakes_shown():
        from workflow import stage as stages
        from workflow.config import INPUTS, load

        if name not in INPUTS:
            raise ValueError(f"there is no stage {name!r}; the stages are {', '.join(INPUTS)}")
        config = load(arguments or [])
        if here:
            print(stages.take_over_stage(config, name, cores))
        elif publish:
            stages.publish_stage(config, name)
        else:
            raise typer.Exit(stages.run_stage(config, name, cores, log))


@app.command()
def status(runs: Annotated[list[str] | None, typer.Argument(help="Names of runs; all by default.")] = None) -> None:
    """Show the stages of a run, their jobs and progress, and the lineage of its last result."""
    with mistakes_shown():
        from rich.console import Console

        from workflow.paths import RUNS, known_runs
        from workflow.status import render

        known = known_runs()
        console = Console(width=None if sys.stdout.isatty() else 160)
        for name in runs or known:
            if name not in known:
                raise ValueError(
                    f"there is no run {name!r} in {RUNS.resolve()}; there are {', '.join(known) or 'none'}"
                )
            console.print(render(name))
        if not known:
            print(f"no runs in {RUNS.resolve()} yet; `qianka run` starts one")


@app.command()
def replay(run: Run = None, step: Annotated[int, typer.Option(min=1, help="The step whose batch it is.")] = 1) -> None:
    """Rebuild a batch that asynchronous mode has trained on, check it, and show it; exit code 1 if something lacks."""
    with mistakes_shown():
        from workflow.replay import replay_batch

        raise typer.Exit(replay_batch(run, step))


@app.command()
def attach(run: Run = None, stage: Stage = None) -> None:
    """Wait for the job of a run as `qianka stage` does: show its log, take Ctrl-C as a cancel, publish the result."""
    with mistakes_shown():
        from workflow import jobs

        raise typer.Exit(jobs.attach(run, stage))


@app.command()
def cancel(run: Run = None, stage: Stage = None) -> None:
    """End the jobs of a run, or of one stage, after they have committed their progress if they can."""
    with mistakes_shown():
        from workflow import jobs

        raise typer.Exit(jobs.cancel(run, stage))


actors_app = typer.Typer(help="Show who plays for a run of rl.mode=asynchronous, or bring more while it goes on.")
app.add_typer(actors_app, name="actors")
RunOption = Annotated[
    str | None, typer.Option("--run", help="Name of a run; by default the last used one.", show_default=False)
]


@actors_app.callback(invoke_without_command=True)
def actors(context: typer.Context, run: RunOption = None) -> None:
    """Show who plays for a run of rl.mode=asynchronous, and why others are gone; `add N` brings more."""
    if context.invoked_subcommand is not None:
        return
    with mistakes_shown():
        from rich.console import Console

        from workflow.actors import show_actors

        Console(width=None if sys.stdout.isatty() else 160).print(show_actors(run))


@actors_app.command()
def add(count: Annotated[int, typer.Argument(min=1, help="How many.")], run: RunOption = None) -> None:
    """Bring more actors to a run that goes on."""
    with mistakes_shown():
        from workflow.actors import add_actors

        add_actors(run, count)


@app.command()
def logs(
    run: Run = None,
    stage: Stage = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as the log grows, until the job ends.")] = False,
    rank: Annotated[int, typer.Option(min=0, help="The rank whose log is shown.")] = 0,
) -> None:
    """Show the log of a stage's job. Ctrl-C ends the showing and not the job."""
    with mistakes_shown():
        from workflow.logs import show

        raise typer.Exit(show(run, stage, follow, rank))


@app.command()
def doctor(
    arguments: Arguments = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Check so many nodes in a short Slurm job; without it, this machine.")
    ] = None,
    topology: Annotated[
        bool, typer.Option("--topology", help="Print a topology file, drafted from what Slurm says, and nothing else.")
    ] = False,
) -> None:
    """Check file system, clocks, cards, collectives and graders, and end with a table for the administrator."""
    with mistakes_shown():
        from workflow import doctor as doctors
        from workflow.config import load

        raise typer.Exit(doctors.draft() if topology else doctors.examine(load(arguments or []), nodes))


@app.command()
def schema(
    write: Annotated[bool, typer.Option("--write", help="Write it to workflow/configs/schema.json.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Fail when schema.json is another one.")] = False,
) -> None:
    """Print the JSON schema of the config: every key, its type, default and meaning."""
    from workflow.config import SCHEMA, schema_text

    if write:
        SCHEMA.write_text(schema_text())
    elif not check:
        print(schema_text(), end="")
    elif not SCHEMA.exists() or SCHEMA.read_text() != schema_text():
        print(f"error: {SCHEMA} is out of date; `qianka schema --write` makes it", file=sys.stderr)
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
