"""Sessions: the turns of an episode keep their keys and values."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from stages.rollout.config import SamplingConfig
from stages.rollout.engine import Completion, Request
from stages.rollout.torch.engine import TorchEngine

EOS = 2
SAMPLING = SamplingConfig(max_new_tokens=6, slots=4)
REPLY = [7, 8, 9]
"""What the environment answers."""
Tiny = Callable[..., PreTrainedModel]
Logprobs = Callable[..., npt.NDArray[np.float32]]


def play(engine: TorchEngine, requests: dict[int, Request]) -> dict[int, Completion]:
    for key, request in requests.items():
        engine.add(key, request)
    ended: dict[int, Completion] = {}
    while len(ended) < len(requests):
        ended.update(engine.step())
    return ended


def episodes(engine: TorchEngine, sessions: list[int], turns: int) -> dict[int, list[tuple[list[int], Completion]]]:
    """All `sessions` take their turns together."""
    played: dict[int, list[tuple[list[int], Completion]]] = {session: [] for session in sessions}
    prompts = {session: [1, 3 + session, 4, 5] for session in sessions}
    for turn in range(turns):
        asked = {session: Request(prompts[session], 10 * session + turn, session=session) for session in sessions}
        for session, completion in play(engine, asked).items():
            played[session].append((prompts[session], completion))
            prompts[session] = [*prompts[session], *completion.tokens, *REPLY]
    return played


def test_three_turns_are_those_of_whole_prompts_and_prefill_new_tokens_only(tiny: Tiny, logprobs_of: Logprobs) -> None:
    model = tiny()
    engine = TorchEngine(model, EOS)
    engine.start(SAMPLING)
    played = episodes(engine, [0, 1, 2], 3)
    assert engine.prefilled == 3 * (4 + 2 * (1 + len(REPLY)))  # the last token of a turn was sampled, never computed
    for session, turns in played.items():
        for turn, (prompt, completion) in enumerate(turns):
            wanted = logprobs_of(model, prompt, completion.tokens)
            np.testing.assert_allclose(completion.logprobs, wanted, atol=1e-5)
            engine.start(SAMPLING)
            whole = play(engine, {0: Request(prompt, 10 * session + turn)})[0]
            assert whole.tokens == completion.tokens
            np.testing.assert_allclose(whole.logprobs, completion.logprobs, atol=1e-5)


def test_the_session_that_is_idle_for_the_longest_makes_room_and_is_prefilled_whole(
    tiny: Tiny, logprobs_of: Logprobs
) -> None:
    model = tiny()
    engine = TorchEngine(model, EOS)
    engine.start(SAMPLING)
    prompts = {session: [1, 3 + session, 4, 5] for session in range(4)}
    first = {s: play(engine, {s: Request(prompts[s], s, session=s)})[s] for s in prompts}
    play(engine, {9: Request([1, 6], 9)})  # all four slots were kept
    before = engine.prefilled
    for session, new in ((1, 1 + len(REPLY)), (0, 4 + len(first[0].tokens) + len(REPLY))):
        prompt = [*prompts[session], *first[session].tokens, *REPLY]
        completion = play(engine, {session: Request(prompt, session, session=session)})[session]
        assert engine.prefilled - before == new
        np.testing.assert_allclose(completion.logprobs, logprobs_of(model, prompt, completion.tokens), atol=1e-5)
        before = engine.prefilled


def test_a_prompt_that_does_not_begin_with_what_was_kept_is_prefilled_whole(tiny: Tiny, logprobs_of: Logprobs) -> None:
    model = tiny()
    engine = TorchEngine(model, EOS)
    engine.start(SAMPLING)
    play(engine, {0: Request([1, 4, 5], 0, session=3)})
    before = engine.prefilled
    prompt = [1, 4, 6, *range(3, 20)]
    completion = play(engine, {1: Request(prompt, 1, session=3)})[1]
    assert engine.prefilled - before == len(prompt)
    np.testing.assert_allclose(completion.logprobs, logprobs_of(model, prompt, completion.tokens), atol=1e-5)


def test_after_an_update_a_turn_is_prefilled_whole_with_the_new_weights(tiny: Tiny, logprobs_of: Logprobs) -> None:
    model, other = tiny(), tiny(seed=1)
    engine = TorchEngine(model, EOS)
    engine.start(SAMPLING)
    (prompt, first), *_ = episodes(engine, [0], 1)[0]
    engine.update(other.named_parameters(), 1)
    before, turn = engine.prefilled, [*prompt, *first.tokens, *REPLY]
    second = play(engine, {0: Request(turn, 5, session=0)})[0]
    assert engine.prefilled - before == len(turn)
    np.testing.assert_allclose(second.logprobs, logprobs_of(other, turn, second.tokens), atol=1e-5)


def test_a_turn_that_an_update_met_leaves_nothing_to_go_on_from(tiny: Tiny, logprobs_of: Logprobs) -> None:
    other = tiny(seed=1)
    engine = TorchEngine(tiny(), eos=-1)
    engine.start(SAMPLING)
    engine.add(0, Request([1, 4], 0, session=0))
    engine._admit()  # pyright: ignore[reportPrivateUsage]
    engine.update(other.named_parameters(), 1)
    first = dict(engine.step())[0]
    turn = [1, 4, *first.tokens, *REPLY]
    before = engine.prefilled
    second = play(engine, {1: Request(turn, 5, session=0)})[1]
    assert engine.prefilled - before == len(turn)
    np.testing.assert_allclose(second.logprobs, logprobs_of(other, turn, second.tokens), atol=1e-5)


def test_a_released_session_gives_its_slot_back(tiny: Tiny) -> None:
    engine = TorchEngine(tiny(), EOS)
    engine.start(SAMPLING)
    played = episodes(engine, [0, 1], 1)
    engine.release([0, 1])
    before, turn = engine.prefilled, [*played[0][0][0], *played[0][0][1].tokens, *REPLY]
    play(engine, {0: Request(turn, 5, session=0)})
    assert engine.prefilled - before == len(turn)


def test_many_episodes_share_few_slots_and_each_turn_goes_on(tiny: Tiny) -> None:
    engine = TorchEngine(tiny(), EOS)
    engine.start(SamplingConfig(max_new_tokens=6, slots=2))
    prompts = {session: [1, 3 + session, 4, 5] for session in range(9)}
    turns = dict.fromkeys(prompts, 0)
    for session, prompt in prompts.items():
        engine.add(session, Request(prompt, session, session=session))
    while min(turns.values()) < 3:
        for session, completion in engine.step():
            turns[session] += 1
            prompts[session] = [*prompts[session], *completion.tokens, *REPLY]
            if turns[session] < 3:
                engine.add(session, Request(prompts[session], session, session=session))
            else:
                engine.release([session])
    assert engine.prefilled == 9 * (4 + 2 * (1 + len(REPLY)))  # a turn goes before an episode that has not begun
