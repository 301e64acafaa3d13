import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.algorithms.penalties import length_penalty, overlong_penalty
from stages.environments.base import GraderError
from stages.environments.config import RewardConfig
from stages.environments.rewards import TERMS, Episode, Term, load_terms


def episode(**changes: Any) -> Episode:
    whole = {"task": {"id": "row"}, "turns": ("a b",), "tokens": (3, 4, 5, 2), "limit": 10, "finished": True}
    return Episode(**{**whole, "reward": 1.0, "parsed": True, **changes})


def load(term: str, **values: Any) -> Term:
    return load_terms([RewardConfig(term=term, values=values)])[0]


def test_the_verifier_is_the_reward_of_the_environment_and_nothing_for_an_episode_that_was_cut() -> None:
    assert load("verifier")(episode()) == 1
    assert load("verifier")(episode(finished=False)) == 0
    assert load("verifier")(episode(reward=0.25)) == 0.25


def test_form_is_rewarded_without_looking_at_the_answer() -> None:
    assert [load("parsed")(episode(parsed=parsed, reward=0.0)) for parsed in (True, False)] == [1, 0]
    assert [load("finished")(episode(finished=finished)) for finished in (True, False)] == [1, 0]


def test_the_overlong_punishment_is_equation_13_of_dapo() -> None:
    """L_max 10, L_cache 4: 0 up to 6 tokens, (6 - n) / 4 beyond, -1 at the limit."""
    term = load("overlong_penalty", buffer_share=0.4)
    assert [term(episode(tokens=(3,) * size)) for size in (1, 6, 7, 9, 10)] == [0, 0, -0.25, -0.75, -1]


def test_each_token_costs_its_share_of_the_limit() -> None:
    assert load("length_penalty")(episode()) == -0.4


@pytest.mark.parametrize("values", [{"buffer_share": 0.25}, {}])
def test_penalties_are_those_of_the_operators_of_their_name(values: dict[str, float]) -> None:
    sizes = [0, 1, 5, 6, 8, 9, 10]
    length, limit = torch.tensor(sizes, dtype=torch.float32), torch.full((len(sizes),), 10.0)
    played = [episode(tokens=(3,) * size) for size in sizes]
    overlong, price = load("overlong_penalty", **values), load("length_penalty")
    torch.testing.assert_close(torch.tensor([*map(overlong, played)]), overlong_penalty(length, limit, **values))
    torch.testing.assert_close(torch.tensor([*map(price, played)]), length_penalty(length, limit))


def test_repetition_is_the_share_of_ngrams_that_came_before() -> None:
    """1 2 1 2 1: the pairs are 12 21 12 21, two of them seen before."""
    term = load("repetition", ngram=2)
    assert term(episode(tokens=(1, 2, 1, 2, 1))) == -0.5
    assert term(episode(tokens=(1, 2, 3))) == 0 and term(episode(tokens=(1,))) == 0


@given(
    st.lists(st.integers(0, 3), max_size=30),
    st.integers(30, 60),
    st.booleans(),
    st.booleans(),
    st.floats(0, 1),
)
def test_every_shipped_term_stays_in_its_range(
    tokens: list[int], limit: int, finished: bool, parsed: bool, reward: float
) -> None:
    played = episode(tokens=tuple(tokens), limit=limit, finished=finished, parsed=parsed, reward=reward)
    for name in TERMS:
        low, high = (-1, 0) if name in ("overlong_penalty", "repetition", "length_penalty") else (0, 1)
        assert low <= load(name)(played) <= high, name


OWN = """
from stages.environments.rewards import Episode


def brevity(episode: Episode, *, words: int = 3) -> float:
    return -float(len(episode.completion.split()) > words)


def broken(episode: Episode) -> float:
    return 1 / 0


def silent(episode: Episode) -> float:
    return None


def loose(episode: Episode, words=3) -> float:
    return 0.0


async def later(episode: Episode) -> float:
    return 0.0


def lost(episode: "Epsiode") -> float:
    return 0.0
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "my_rewards.py"
    path.write_text(OWN)
    return str(path)


def test_a_function_of_the_users_own_is_a_term_with_values(own: str) -> None:
    term = load(f"{own}:brevity", words=1)
    assert term.name == "brevity"
    assert (term(episode()), load(f"{own}:brevity")(episode())) == (-1, 0)


def test_a_file_leaves_nothing_beside_it_and_is_read_anew(own: str) -> None:
    assert load(f"{own}:brevity")(episode(turns=("a b c d",))) == -1
    Path(own).write_text(OWN.replace("-float", "float"))
    assert load(f"{own}:brevity")(episode(turns=("a b c d",))) == 1
    assert [path.name for path in Path(own).parent.iterdir()] == ["my_rewards.py"]


def test_a_term_that_raises_is_a_failure_that_names_it(own: str) -> None:
    with pytest.raises(GraderError, match="the reward term broken failed: ZeroDivisionError"):
        load(f"{own}:broken")(episode())


def test_a_term_that_gives_no_number_is_the_users_mistake(own: str) -> None:
    with pytest.raises(ValueError, match="the reward term silent gave None, but it must return a number"):
        load(f"{own}:silent")(episode())


def test_the_name_of_a_term_has_no_comma_since_commas_join_them_in_the_trajectories(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text("globals()['a,b'] = lambda episode: 1.0\n")
    with pytest.raises(ValueError, match="odd.py has no function 'a,b'; it has none"):
        load(f"{tmp_path / 'odd.py'}:a,b")


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"term": "verifer"}, r"rl.rewards\[0\]: there is no term 'verifer'; did you mean verifier\?"),
        ({"term": "repetition", "values": {"ngam": 3}}, r"has no value 'ngam'; it has ngram; did you mean ngram\?"),
        ({"term": "repetition", "values": {"ngram": 0}}, "'ngram' of repetition is 0: input should be greater than 0"),
        ({"term": "repetition", "values": {"ngram": True}}, "should not be true or false"),
        ({"term": "overlong_penalty", "values": {"buffer_share": 1.5}}, "is 1.5: input should be less than or equal"),
        ({"term": "parsed", "values": {"x": 1}}, "parsed has no value 'x'; it has none"),
    ],
)
def test_a_wrong_term_or_value_is_named(reward: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_terms([RewardConfig.model_validate(reward)])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("brevty", "my_rewards.py has no function 'brevty'; did you mean brevity"),
        ("loose", "my_rewards.py:loose: 'words' should be a typed value after `*`"),
        ("later", "my_rewards.py:later is asynchronous"),
        ("lost", "my_rewards.py:lost: an annotation names what the file does not have"),
    ],
)
def test_a_function_that_is_no_term_is_named(own: str, function: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(f"{own}:{function}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (", "my_rewards.py:1: '\\(' was never closed"),
        ("x = 1\ny = 1 / 0", "my_rewards.py:2: ZeroDivisionError"),
        ("import nosuchlibrary", "my_rewards.py:1: ModuleNotFoundError: .*; import it inside the function"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_its_line(own: str, text: str, message: str) -> None:
    Path(own).write_text(text)
    with pytest.raises(ValueError, match=message):
        load(f"{own}:brevity")
    with pytest.raises(ValueError, match="no.py: No such file"):
        load("no.py:brevity")


def test_terms_that_could_not_be_told_apart_are_refused(own: str) -> None:
    with pytest.raises(ValueError, match="repetition is there twice"):
        load_terms([RewardConfig(term="repetition"), RewardConfig(term="repetition", values={"ngram": 2})])
    with pytest.raises(ValueError, match="rl.rewards is empty"):
        load_terms([])


def test_values_must_be_finite() -> None:
    with pytest.raises(ValueError, match="finite"):
        RewardConfig(term="verifier", weight=math.nan)
    with pytest.raises(ValueError, match="finite"):
        RewardConfig(term="overlong_penalty", values={"buffer_share": math.inf})
