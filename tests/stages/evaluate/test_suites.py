import random
from typing import Any

import pytest
from pydantic import ValidationError

from stages.environments.config import ArithmeticConfig
from stages.environments.registry import make
from stages.evaluate.config import EvaluateConfig
from stages.evaluate.suites import NOISE_FLOOR, build_suites, case_seed, describe, share, units

ENVIRONMENT = make(ArithmeticConfig())
SMALL = EvaluateConfig(num_prompts=6, num_harder=3, num_perturbed=2, num_sampled_prompts=3, samples_per_prompt=8)


def tasks(count: int) -> list[dict[str, Any]]:
    return [{"id": f"{n:04}", **ENVIRONMENT.reset(seed=n)[1]} for n in range(count)]


def test_prompts_do_not_depend_on_the_order_of_the_file() -> None:
    rows = tasks(20)
    shuffled = random.Random(1).sample(rows, len(rows))
    assert build_suites(SMALL, 1, ENVIRONMENT, rows, [], str) == build_suites(SMALL, 1, ENVIRONMENT, shuffled, [], str)


def test_smaller_suites_use_prompts_of_the_greedy_one() -> None:
    suites, _ = build_suites(SMALL, 1, ENVIRONMENT, tasks(20), tasks(5), str)
    greedy = {case.task["id"] for case in suites["greedy"].cases}
    for name in ("sampled", "robustness", NOISE_FLOOR):
        assert {case.task["id"] for case in suites[name].cases} <= greedy


def test_every_completion_has_a_seed_of_its_own() -> None:
    suites, _ = build_suites(SMALL, 1, ENVIRONMENT, tasks(20), tasks(5), str)
    seeds = [case.seed for name, suite in suites.items() if name != NOISE_FLOOR for case in suite.cases]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**63 for seed in seeds)
    assert case_seed(1, "greedy", "a", "", 0) != case_seed(2, "greedy", "a", "", 0)


def test_too_few_prompts_are_all_used_and_said_so() -> None:
    suites, notes = build_suites(SMALL, 1, ENVIRONMENT, tasks(4), tasks(5), str)
    assert len(suites["greedy"].cases) == 4
    assert notes == ["evaluate.num_prompts asks for 6 prompts, but the evaluation split has 4: all are used."]


def test_a_perturbation_that_the_tokenizer_cannot_take_is_left_out_with_the_reason() -> None:
    def encode(prompt: str) -> None:
        if " " in prompt:
            raise ValueError(f"' ' in {prompt!r} is not in the tokenizer's alphabet")

    suites, notes = build_suites(SMALL, 1, make(ArithmeticConfig(space_rate=0)), tasks(9), tasks(5), encode)
    assert {case.kind for case in suites["robustness"].cases} == {"zeros", "action_noise"}
    assert len(notes) == 1 and "the perturbation spaces is left out" in notes[0] and "alphabet" in notes[0]


def test_without_perturbations_and_noise_there_is_no_robustness_suite() -> None:
    def refuse(prompt: str) -> None:
        raise ValueError("no")

    quiet = SMALL.model_copy(update={"action_noise": 0.0})
    suites, notes = build_suites(quiet, 1, ENVIRONMENT, tasks(9), tasks(5), refuse)
    assert "robustness" not in suites and any(note.startswith("robustness: not measured") for note in notes)
    assert "robustness" not in {unit.suite.name for unit in units(suites)}


def test_ranks_share_prompts_without_gap_or_overlap_and_keep_the_samples_of_a_prompt_together() -> None:
    cases = build_suites(SMALL, 1, ENVIRONMENT, tasks(20), [], str)[0]["sampled"].cases
    shares = [share(cases, rank, 2) for rank in range(2)]
    assert sorted(case.seed for part in shares for case in part) == sorted(case.seed for case in cases)
    assert not {case.task["id"] for case in shares[0]} & {case.task["id"] for case in shares[1]}
    assert len(shares[0]) == 16 and len(shares[1]) == 8


def test_the_description_tells_the_settings() -> None:
    told = describe(EvaluateConfig(action_noise=0.05), ENVIRONMENT)
    assert told["robustness"].endswith("spaces, zeros, 5% of the tokens replaced at random")
    assert told["sampled"] == "8 samples a prompt at temperature 1"


@pytest.mark.parametrize("pass_at", [(), (0, 1), (1, 9)])
def test_a_k_that_the_samples_cannot_answer_is_refused_before_any_work(pass_at: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError, match="samples_per_prompt, which is 8"):
        EvaluateConfig(samples_per_prompt=8, pass_at=pass_at)
