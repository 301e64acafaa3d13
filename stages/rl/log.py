"""What a person sees of a step: metrics, warnings, the progress file, and one line in the job's log."""

from collections.abc import Mapping
from pathlib import Path

from data.metrics import Metrics, metric_shards, read_metrics
from data.progress import Progress
from data.warnings import write_warnings
from stages.rl.summary import PREFIX
from stages.rl.warnings import Watch, warnings_of

LINE = (
    ("reward", "reward {:.3f}"),
    ("success", "success {:.0%}"),
    ("completion_length", "length {:.1f}"),
    ("entropy", "entropy {:.3f}"),
    ("kl", "kl {:.2g}"),
    ("clip_share", "clipped {:.1%}"),
    ("importance_ratio_max", "ratio at most {:.2f}"),
    ("explained_variance", "explained {:.2f}"),
    ("gradient_norm", "gradient {:.2g}"),
    ("tokens_per_second", "{:,.0f} tokens/s"),
    ("episodes_per_second", "{:.1f} episodes/s"),
    ("staleness", "staleness {:.1f}"),
    ("queue_depth", "{:.0f} in the queue"),
    ("actors", "actors {:.0f}"),
    ("actors_utilisation", "busy {:.0%}"),
    ("waiting_share", "waiting {:.0%}"),
)
"""Metrics in the line of a step, and how; one that the step has not is left out."""
SHORT = 4
"""So many of them are in the progress message."""


class StepLog:
    """Logs each step once. Every rank has one; only the first rank writes."""

    def __init__(self, folder: Path, steps: int, job_is_first: bool) -> None:
        """`folder` is that of the attempt, and `steps` how many there are in all."""
        self.folder, self.steps, self.writes = folder, steps, job_is_first
        self.metrics, self.watch = Metrics(folder, job_is_first), Watch()
        self.progress: Progress | None = None

    def resume(self, step: int) -> None:
        """Go on after `step`, that of the checkpoint (0 for none): what lies beyond it is dropped."""
        self.metrics.resume(step)
        if self.writes:
            rows = read_metrics(self.folder).to_pylist() if metric_shards(self.folder) else []
            self.watch = warnings_of(rows)
            write_warnings(self.folder, self.watch.warned)
            self.progress = Progress(self.folder, self.steps, "steps", done=step, first=step)

    def step(self, step: int, values: Mapping[str, float], curves: Mapping[str, float] | None = None) -> None:
        """Note the values of `step`, print its line, and warn of what begins to look wrong.

        `curves` are for TensorBoard alone.
        """
        self.metrics.log(step, **values)
        self.metrics.show(step, curves or {})
        if self.progress is None:
            return
        shown = [text.format(values[name]) for name, text in LINE if name in values]
        shown += terms_in(values)
        print(f"step {step}/{self.steps}: {', '.join(shown)}", flush=True)
        new = self.watch.add(step, values)
        for warned in new:
            print(f"warning: {warned}", flush=True)
        if new:
            write_warnings(self.folder, self.watch.warned)
        self.progress.update(step, ", ".join(shown[:SHORT]))

    def waits(self, step: int, message: str) -> None:
        """Say in the progress file for what the learners wait before `step`."""
        if self.progress is not None:
            self.progress.update(step - 1, message)

    def commit(self, step: int) -> None:
        """Make the steps up to `step` safe, just before the checkpoint that covers them."""
        self.metrics.commit(step)

    def close(self) -> None:
        """Flush what is on its way to TensorBoard."""
        self.metrics.close()


def terms_in(values: Mapping[str, float]) -> list[str]:
    """The mean of each term of the reward, as `brevity -0.2`, where there are several."""
    means = {name.removeprefix(PREFIX).removesuffix("_mean"): value for name, value in values.items() if is_term(name)}
    return [f"{term} {mean:.3g}" for term, mean in means.items()] if len(means) > 1 else []


def is_term(metric: str) -> bool:
    """Whether a metric is the mean of a term of the reward."""
    return metric.startswith(PREFIX) and metric.endswith("_mean")


def speed(values: Mapping[str, float], read_back: bool, seconds: Mapping[str, float]) -> dict[str, float]:
    """Metrics of a step's time: `seconds` of rollout, experience and update, for the `values` of its tokens.

    Rollouts that were `read_back` after a restart say nothing about the speed of the engine, nor an update without
    anything to learn about its own.
    """
    found = {f"seconds_{phase}": value for phase, value in seconds.items()}
    if not read_back:
        found["rollout_tokens_per_second"] = values["tokens"] / seconds["rollout"]
        found["tokens_per_second"] = values["tokens"] / sum(seconds.values())
    if values["tokens_trained"]:
        found["update_tokens_per_second"] = values["tokens_trained"] / (seconds["experience"] + seconds["update"])
    return found
