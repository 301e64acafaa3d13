"""What every policy is asked: the same prompts with the same random numbers, whatever the policy, rank or restart."""

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stages.environments.base import BaseEnvironment, Task
from stages.evaluate.config import EvaluateConfig

POLICIES = ("base", "sft", "rl")
GREEDY, SAMPLED, GENERALISATION, ROBUSTNESS = SUITES = ("greedy", "sampled", "generalisation", "robustness")
ACTION_NOISE = "action_noise"
"""The kind of the robustness suite in which some of the policy's own tokens are replaced by random ones."""
NOISE_FLOOR = "noise_floor"
"""Greedy once more for one policy, with another batch shape: what differs is rounding, not the policy."""
NOISE_POLICY, NOISE_PROMPTS = "rl", 64


@dataclass(frozen=True)
class Case:
    """One completion to ask for, and the task that grades it."""

    task: Task
    """A row of the evaluation or the harder split."""
    prompt: str
    """The text that the policy sees: the task's prompt, or a perturbed copy of it."""
    seed: int
    kind: str = ""
    """What was perturbed, in the robustness suite."""
    sample: int = 0
    noise: float = 0.0


@dataclass(frozen=True)
class Suite:
    """The cases of one part of the evaluation, those of one prompt side by side, and how they are generated."""

    name: str
    cases: tuple[Case, ...]
    slots: int
    greedy: bool = True


def build_suites(
    config: EvaluateConfig,
    seed: int,
    environment: BaseEnvironment,
    evaluation: Sequence[Task],
    harder: Sequence[Task],
    encode: Callable[[str], object],
) -> tuple[dict[str, Suite], list[str]]:
    """The suites that this environment can have, and a note in plain words on whatever is missing or fewer than asked.

    Prompts are taken in the order of their ids, which are digests: a random draw that does not follow the order in
    which a user wrote the file, and in which every smaller suite is a part of the greater. `encode` raises ValueError
    for a prompt that the tokenizer cannot take.
    """
    notes: list[str] = []
    tasks = _draw(evaluation, config.num_prompts, "evaluation", "num_prompts", notes)
    sampled = tasks[: config.num_sampled_prompts]
    slots = config.sampling.slots
    suites = {
        GREEDY: Suite(GREEDY, tuple(_plain(task, GREEDY, seed) for task in tasks), slots),
        SAMPLED: Suite(
            SAMPLED,
            tuple(_plain(t, SAMPLED, seed, n) for t in sampled for n in range(config.samples_per_prompt)),
            slots,
            greedy=False,
        ),
    }
    if harder:
        drawn = _draw(harder, config.num_harder, "harder", "num_harder", notes)
        suites[GENERALISATION] = Suite(GENERALISATION, tuple(_plain(t, GENERALISATION, seed) for t in drawn), slots)
    else:
        notes.append("generalisation: not measured, the synth stage's result has no harder tasks.")
    disturbed = tasks[: config.num_perturbed]
    robustness = _perturbed(environment, seed, disturbed, encode, notes) + _noisy(config.action_noise, seed, disturbed)
    if robustness:
        suites[ROBUSTNESS] = Suite(ROBUSTNESS, robustness, slots)
    else:
        notes.append("robustness: not measured, there is no perturbation to use and evaluate.action_noise is 0.")
    again = suites[GREEDY].cases[:NOISE_PROMPTS]
    suites[NOISE_FLOOR] = Suite(NOISE_FLOOR, again, slots=max(1, min(slots, len(again)) // 2))
    return suites, notes


def describe(config: EvaluateConfig, environment: BaseEnvironment) -> dict[str, str]:
    """What is asked in each suite, for a person to read."""
    kinds = [kind.replace("_", " ") for kind in environment.perturbations]
    noise = [f"{config.action_noise:.0%} of the tokens replaced at random"] * bool(config.action_noise)
    return {
        GREEDY: "the likeliest token each time, on prompts never trained on",
        SAMPLED: f"{config.samples_per_prompt} samples a prompt at temperature {config.sampling.temperature:g}",
        GENERALISATION: "greedy, on harder tasks than any that was trained on",
        ROBUSTNESS: f"greedy, with the prompt perturbed or the policy disturbed: {', '.join(kinds + noise)}",
    }


@dataclass(frozen=True)
class Unit:
    """One policy on one suite: what is worked off, and committed, by itself."""

    policy: str
    suite: Suite

    @property
    def name(self) -> str:
        """The start of the names of its files."""
        return f"{self.policy}-{self.suite.name}"


def units(suites: dict[str, Suite]) -> list[Unit]:
    """All units in the order in which they are worked off."""
    pairs = [Unit(policy, suites[name]) for policy in POLICIES for name in SUITES if name in suites]
    return [*pairs, Unit(NOISE_POLICY, suites[NOISE_FLOOR])]


def share(cases: Sequence[Case], rank: int, world_size: int) -> list[Case]:
    """The cases of the prompts that `rank` works on; the samples of a prompt stay together."""
    order = {prompt: index for index, prompt in enumerate(dict.fromkeys(case.task["id"] for case in cases))}
    return [case for case in cases if order[case.task["id"]] % world_size == rank]


def case_seed(seed: int, suite: str, prompt: str, kind: str, sample: int) -> int:
    """The seed of one completion, from what it is and nothing else. In 0 .. 2**63 - 1."""
    name = f"{seed}/{suite}/{prompt}/{kind}/{sample}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


def _draw(tasks: Sequence[Task], wanted: int, split: str, key: str, notes: list[str]) -> list[Task]:
    if len(tasks) < wanted:
        notes.append(f"evaluate.{key} asks for {wanted} prompts, but the {split} split has {len(tasks)}: all are used.")
    return sorted(tasks, key=lambda task: task["id"])[:wanted]


def _plain(task: Task, suite: str, seed: int, sample: int = 0) -> Case:
    return Case(task, task["prompt"], case_seed(seed, suite, task["id"], "", sample), sample=sample)


def _perturbed(
    environment: BaseEnvironment,
    seed: int,
    tasks: Sequence[Task],
    encode: Callable[[str], object],
    notes: list[str],
) -> tuple[Case, ...]:
    """The tasks under each perturbation whose prompts the tokenizer can take."""
    found: list[Case] = []
    for kind in environment.perturbations:
        cases: list[Case] = []
        for task in tasks:
            own = case_seed(seed, ROBUSTNESS, task["id"], kind, 0)
            cases.append(Case(task, environment.perturb(task["prompt"], kind, random.Random(own)), own, kind))
        try:
            for case in cases:
                encode(case.prompt)
        except ValueError as error:
            notes.append(f"robustness: the perturbation {kind} is left out, the tokenizer cannot take it: {error}.")
        else:
            found += cases
    return tuple(found)


def _noisy(noise: float, seed: int, tasks: Sequence[Task]) -> tuple[Case, ...]:
    if not noise:
        return ()
    seeds = (case_seed(seed, ROBUSTNESS, task["id"], ACTION_NOISE, 0) for task in tasks)
    return tuple(
        Case(task, task["prompt"], own, ACTION_NOISE, noise=noise) for task, own in zip(tasks, seeds, strict=True)
    )
