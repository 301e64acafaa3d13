"""Warnings about learning: which rules are watched, and what to try.

Trouble begins where a rule's badness is 1 and ends below ENDS_BELOW, so what hovers about the limit is warned of once.
All of it follows from the history: a restart that reads the committed metrics goes on as if nothing had happened.
Nothing here changes what is trained.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from data.warnings import Warned
from stages.rl import rules
from stages.rl.rules import Found, History, Row

ENDS_BELOW = 0.75

RULES: tuple[tuple[Callable[[History], Found | None], str], ...] = (
    (
        rules.entropy_collapse,
        "Try a lower rl.learning_rate, an algorithm with a higher upper clip (dapo) or with an entropy term, or a "
        "higher rl.sampling.temperature; the model of an earlier step still has what was lost.",
    ),
    (
        rules.length_collapse,
        "Look at the sample completions. Try a weaker length penalty, a reward term that short wrong answers do not "
        "earn, a lower rl.learning_rate, or a KL term to the reference.",
    ),
    (
        rules.completions_cut,
        "Try a greater rl.sampling.max_new_tokens, SFT on examples that end, or an overlong penalty (dapo).",
    ),
    (
        rules.no_signal,
        "Where all fail: easier prompts, more SFT, more rl.samples_per_prompt. Where all succeed: harder prompts. "
        "Dynamic sampling (dapo) plays further prompts in their place.",
    ),
    (
        rules.reward_stuck,
        "Look at the sample completions and at groups_without_signal. Where kl or clip_share are high, try a lower "
        "rl.learning_rate; where both are almost 0, a higher one. Or try more rl.samples_per_prompt, or more SFT. A "
        "large model at a low rate may need hundreds of steps.",
    ),
    (
        rules.reward_falls,
        "Try a lower rl.learning_rate, fewer epochs or minibatches in the algorithm file, or a KL term to the "
        "reference.",
    ),
    (
        rules.kl_explodes,
        "Try a lower rl.learning_rate, fewer epochs or minibatches in the algorithm file, or a smaller "
        "rl.optimizer.max_gradient_norm.",
    ),
    (
        rules.far_from_reference,
        "Look at the sample completions. Try a greater weight of the KL term in the algorithm file, or a lower "
        "rl.learning_rate.",
    ),
    (rules.clip_share_high, "Try a lower rl.learning_rate or fewer epochs and minibatches in the algorithm file."),
    (
        rules.critic_useless,
        "Try a greater weight of the value loss, more minibatches, or an algorithm without a critic (grpo, rloo).",
    ),
)
"""Each rule with what to try."""


@dataclass
class Watch:
    """Follows a run and warns once of each episode of trouble."""

    history: list[Row] = field(default_factory=list[Row])
    open: set[str] = field(default_factory=set[str])
    """Rules whose trouble has begun and not ended."""
    warned: list[Warned] = field(default_factory=list[Warned])

    def add(self, step: int, row: Row) -> list[Warned]:
        """The warnings that begin at `step`, whose metrics are `row`."""
        self.history.append(row)
        new: list[Warned] = []
        for rule, advice in RULES:
            name, found = rule.__name__.replace("_", " "), rule(self.history)
            if found is not None and found.badness >= 1 and name not in self.open:
                self.open.add(name)
                new.append(Warned(step, name, found.seen, advice))
            elif found is None or found.badness < ENDS_BELOW:
                self.open.discard(name)
        self.warned += new
        return new


def warnings_of(history: Iterable[Row]) -> Watch:
    """The watch of a run that has had these metrics; each row has its `step`."""
    watch = Watch()
    for row in history:
        step = row["step"]
        assert step is not None
        watch.add(int(step), row)
    return watch
