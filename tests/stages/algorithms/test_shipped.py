"""The shipped algorithms, each on one batch worked out by hand, and however that batch is split."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from stages.algorithms.kinds import Batch, Kind, PolicyOutputs
from stages.algorithms.load import SHIPPED, load_algorithm

MakeBatch = Callable[..., Batch]
HandWorked = Callable[..., tuple[float, list[float]]]
NAMES = sorted(path.stem for path in SHIPPED.glob("*.yaml"))
OLD = torch.tensor([-1.0, -1.0, -2.0, -1.0, -1.0])


@pytest.fixture
def hand_worked(alone: MakeBatch) -> HandWorked:
    """Loss, and its gradient by the log-probabilities, of two prompts with two samples each, of 2, 1, 1 and 1 tokens.

    With `change` on top of what they were at the start of the update, which is `OLD` plus `before`; the reference is
    `OLD` plus `reference`. With the changes 0 .1 0 .4 0 the ratios are 1, e^.1 = 1.105171, 1, e^.4 = 1.491825 and 1.
    """

    def run(
        name: str,
        change: tuple[float, ...] = (0.0, 0.1, 0.0, 0.4, 0.0),
        before: tuple[float, ...] = (0.0,) * 5,
        reference: tuple[float, ...] = (0.0,) * 5,
        **given: list[float],
    ) -> tuple[float, list[float]]:
        algorithm = load_algorithm(name)
        start = OLD + torch.tensor(before)
        logprobs = (start + torch.tensor(change)).requires_grad_()
        quantities = {
            "reward": [1.0, 0.0, 1.0, 0.0],
            "length": [2.0, 1.0, 1.0, 1.0],
            "finished": [1.0] * 4,
            "limit": [10.0] * 4,
            **given,
        }
        known = {name: torch.tensor(values) for name, values in quantities.items()} | {"rollout_logprobs": OLD}
        lengths, groups = [2, 1, 1, 1], [0, 0, 1, 1]
        first = alone(
            lengths, groups, PolicyOutputs(start, torch.ones(5), torch.zeros(5)), OLD + torch.tensor(reference)
        )
        with torch.no_grad():
            made = algorithm.run_experience(first, known)
        whole = alone(lengths, groups, PolicyOutputs(logprobs, torch.ones(5), torch.zeros(5)))
        loss = algorithm.run_update(whole, {name: made[name] for name in algorithm.carried})["loss"]
        loss.backward()
        assert logprobs.grad is not None
        return loss.item(), logprobs.grad.tolist()

    return run


def close(found: tuple[float, list[float]], loss: float, gradient: list[float]) -> None:
    assert found[0] == pytest.approx(loss, rel=1e-4, abs=1e-6)
    assert found[1] == pytest.approx(gradient, rel=1e-4, abs=1e-6)


def test_dr_grpo(hand_worked: HandWorked) -> None:
    """Advantages .5 and -.5; the ratio of the fourth token is above 1.28. Divided by 4 samples x 16 tokens.

    -.5 x (1 + 1.105171 - 1 + 1.28 - 1) / 64 = -.5 x 1.385171 / 64.
    """
    close(hand_worked("dr_grpo"), -0.01082165, [x / 64 for x in (-0.5, -0.5525855, 0.5, 0.0, 0.5)])


def test_grpo(hand_worked: HandWorked) -> None:
    """The deviation is sqrt(.5), so advantages are .5 / .707207 = .707007; clipped at 1.2; mean over samples.

    -.707007 x ((1 + 1.105171) / 2 - 1 + 1.2 - 1) / 4 = -.707007 x .2525855 / 4.
    """
    close(hand_worked("grpo"), -0.0446454, [-0.0883759, -0.0976705, 0.1767518, 0.0, 0.1767518])


def test_rloo(hand_worked: HandWorked) -> None:
    """Advantages 1 and -1 times the log-probabilities of whole completions: -(-1.9 + 2 - .6 + 1) / 4."""
    close(hand_worked("rloo"), -0.125, [-0.25, -0.25, 0.25, -0.25, 0.25])


def test_ppo(hand_worked: HandWorked) -> None:
    """Values 0, so advantages are the rewards 1 1 0 1 0: mean .6, deviation sqrt(.24) = .489898; so .816495, -1.224742.

    -(.816495 + 1.105171 x .816495 - 1.224742 + 1.28 x .816495 - 1.224742) / 5 = -(.314524) / 5, and the critic's error
    of .6 by half.
    """
    close(hand_worked("ppo"), -0.0629049 + 0.3, [-0.1632990, -0.1804733, 0.2449484, 0.0, 0.2449484])


def test_reinforce_pp(hand_worked: HandWorked) -> None:
    """The reference is .1 below at the first token and .2 at the last, a penalty of .01 times that.

    Returns .999 1 0 1 -.002: mean .5994, deviation sqrt(.2403206) = .490225;
    whitened .815136 .817176 -1.222704 .817176 -1.226783. Clipped at 1.2:
    -(.815136 + .903119 - 1.222704 + .980611 - 1.226783) / 5 = -.249379 / 5.
    """
    found = hand_worked("reinforce_pp", reference=(-0.1, 0.0, 0.0, 0.0, -0.2))
    close(found, -0.0498758, [-0.1630272, -0.1806238, 0.2445408, 0.0, 0.2453566])


def test_a_token_is_penalised_for_what_comes_after_it(hand_worked: HandWorked) -> None:
    """The second token is 1 nat from the reference, so both tokens of its sample have the return .99: mean .596,

    deviation sqrt((2 x .394^2 + .404^2 + 2 x .596^2) / 5) = sqrt(.2368240) = .486646; whitened .809624.
    """
    gradient = hand_worked("reinforce_pp", change=(0.0,) * 5, reference=(0.0, -1.0, 0.0, 0.0, 0.0))[1]
    assert gradient[:2] == pytest.approx([-0.161925, -0.161925], rel=1e-4)


def test_dapo(hand_worked: HandWorked) -> None:
    """Rewards 2 0 1 0; the first answer is as long as it may be and loses 1. So GRPO's advantages of .707007; mean over

    the tokens, clipped at 1.28: -.707007 x (1 + 1.105171 - 1 + 1.28 - 1) / 5.
    """
    found = hand_worked("dapo", reward=[2.0, 0.0, 1.0, 0.0], limit=[2.0, 10.0, 10.0, 10.0])
    close(found, -0.1958651, [-0.1414014, -0.1562727, 0.1414014, 0.0, 0.1414014])


def test_gspo(hand_worked: HandWorked) -> None:
    """Ratios of the samples e^.02 = 1.020201, 1, e^.4 which is clipped at 1.04, and 1; both tokens of the first share.

    -.707007 x (1.020201 - 1 + 1.04 - 1) / 4, and .707007 x 1.020201 / 2 / 4 = .0901612 for each of its tokens.
    """
    found = hand_worked("gspo", change=(0.0, 0.04, 0.0, 0.4, 0.0))
    close(found, -0.0106406, [-0.0901612, -0.0901612, 0.1767518, 0.0, 0.1767518])


def test_cispo(hand_worked: HandWorked) -> None:
    """Weights 1 1.105171 1 1.28 1, advantages of .707007, log-probabilities -1 -.9 -2 -.6 -1; the fourth token learns.

    -.707007 x (-1 - .994654 + 2 - .768 + 1) / 5 = -.707007 x .237346 / 5.
    """
    found = hand_worked("cispo")
    close(found, -0.0335611, [-0.1414014, -0.1562727, 0.1414014, -0.1809938, 0.1414014])


def test_cpgd(hand_worked: HandWorked) -> None:
    """Advantages .5; log-ratios 0 .1 0 .4 0, the fourth clipped at log 1.28 = .246860: -.5 x .346860 / 5 = -.0346860.

    Drift: e^.1 - 1.1 = .0051709 and e^.4 - 1.4 = .0918247, mean .0193991, weight .1; its gradient .1 (r - 1) / 5 is
    .0021034 and .0098365: all that the fourth token has.
    """
    close(hand_worked("cpgd"), -0.0346860 + 0.0019399, [-0.1, -0.1 + 0.0021034, 0.1, 0.0098365, 0.1])


def test_decoupled_ppo(hand_worked: HandWorked) -> None:
    """At the start the first token was twice as likely as when it was drawn, the fourth six times, which is cut to 5.

    The ratios are those to the start: -.5 x (2 x 1 + 1.105171 - 1 + 5 x 1.28 - 1) / 5 = -.5 x 7.505171 / 5.
    """
    found = hand_worked("decoupled_ppo", before=(0.693147, 0.0, 0.0, 1.791759, 0.0))
    close(found, -0.7505171, [-0.2, -0.1105171, 0.1, 0.0, 0.1])


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_alone_in_its_group_is_no_error(name: str, alone: MakeBatch) -> None:
    """With nothing to compare it with it teaches nothing, unless the whole batch or a critic is the baseline."""
    found = experience_of(name, alone([2, 1, 1], [0, 1, 2], outputs(OLD[:4]), OLD[:4]), [1.0, 0.0, 1.0], OLD[:4])
    assert found.isfinite().all()
    compares_samples = name not in ("ppo", "reinforce_pp")
    assert bool((found == 0).all()) == compares_samples


@pytest.mark.parametrize("name", NAMES)
def test_a_rank_without_samples_has_a_loss_of_zero(name: str, alone: MakeBatch) -> None:
    none = torch.zeros(0, requires_grad=True)
    assert experience_of(name, alone([], [], outputs(none.detach()), none.detach()), [], none.detach()).shape == (0,)
    algorithm = load_algorithm(name)
    loss = algorithm.run_update(alone([], [], outputs(none)), dict.fromkeys(algorithm.carried, torch.zeros(0)))["loss"]
    loss.backward()
    assert loss.item() == 0


def outputs(logprobs: Tensor) -> PolicyOutputs:
    return PolicyOutputs(logprobs, torch.zeros(len(logprobs)), torch.zeros(len(logprobs)))


def experience_of(name: str, batch: Batch, reward: list[float], drawn: Tensor) -> Tensor:
    """The advantages of the batch."""
    count = len(reward)
    given = {"reward": torch.tensor(reward), "finished": torch.ones(count), "limit": torch.full((count,), 10.0)}
    given |= {"length": batch.lengths.float(), "rollout_logprobs": drawn}
    with torch.no_grad():
        return load_algorithm(name).run_experience(batch, given)["advantage"]


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_is_the_sum_of_its_parts_however_it_is_split(name: str) -> None:
    """Micro-batches and ranks carry the global counts, so losses and gradients of any split add up to the whole."""
    algorithm = load_algorithm(name)
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([3, 1, 4, 2, 5])
    tokens = int(lengths.sum())
    old, change, values = (torch.randn(tokens, generator=generator, dtype=torch.float64) for _ in range(3))
    sizes = {Kind.TOKEN: tokens, Kind.SAMPLE: len(lengths)}
    carried = {
        source: torch.randn(sizes[algorithm.kinds[source]], generator=generator, dtype=torch.float64)
        for source in sorted(algorithm.carried)
    } | {"rollout_logprobs": old}

    def gradient(split: list[list[int]]) -> tuple[float, Tensor]:
        logprobs = (old + 0.3 * change).requires_grad_()
        total = 0.0
        for samples in split:
            ends = lengths.cumsum(0)
            index = torch.cat(
                [torch.zeros(0, dtype=torch.int64)] + [torch.arange(ends[s] - lengths[s], ends[s]) for s in samples]
            )
            picked = torch.tensor(samples, dtype=torch.int64)
            said = PolicyOutputs(logprobs[index], torch.zeros(len(index)), values[index])
            part = Batch(
                lengths[picked],
                torch.zeros_like(picked),
                1,
                tokens,
                len(lengths),
                torch.clone,
                lambda _, said=said: said,
            )
            places = {Kind.TOKEN: index, Kind.SAMPLE: picked}
            mine = {name: carried[name][places[algorithm.kinds[name]]] for name in algorithm.carried}
            loss = algorithm.run_update(part, mine)["loss"]
            loss.backward()
            total += loss.item()
        assert logprobs.grad is not None
        return total, logprobs.grad

    whole, whole_gradient = gradient([[0, 1, 2, 3, 4]])
    for split in ([[0], [1], [2], [3], [4]], [[3, 1], [], [4, 0, 2]]):
        parts, parts_gradient = gradient(split)
        assert parts == pytest.approx(whole, rel=1e-12)
        torch.testing.assert_close(parts_gradient, whole_gradient, rtol=1e-12, atol=1e-15)


@dataclass
class Meeting:
    """Two ranks, as threads, that add up what each brings."""

    barrier: threading.Barrier
    brought: dict[int, Tensor]

    def sum(self, rank: int, tensor: Tensor) -> Tensor:
        self.brought[rank] = tensor
        self.barrier.wait(timeout=10)
        added = self.brought[0] + self.brought[1]
        self.barrier.wait(timeout=10)
        return added


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_have_the_advantages_of_one(name: str, alone: MakeBatch) -> None:
    """Three groups, of which one rank has two and the other one: moments of the batch are those of both."""
    lengths, groups = [2, 1, 1, 3, 2, 1], [0, 0, 1, 1, 2, 2]
    drawn = torch.linspace(-2.0, -0.5, 10)
    reference = drawn + torch.linspace(0.3, -0.2, 10)
    rewards = [1.0, 0.0, 0.5, 0.25, 0.0, 1.0]
    wanted = experience_of(name, alone(lengths, groups, outputs(drawn), reference), rewards, drawn)

    meeting, found = Meeting(threading.Barrier(2), {}), dict[int, Tensor]()

    def rank(number: int, samples: slice, tokens: slice) -> None:
        picked = torch.tensor(groups[samples])
        batch = Batch(
            torch.tensor(lengths[samples]),
            picked - picked.min(),
            len(picked.unique()),
            len(drawn),
            len(lengths),
            lambda tensor: meeting.sum(number, tensor),
            lambda _: outputs(drawn[tokens]),
            lambda: reference[tokens],
        )
        found[number] = experience_of(name, batch, rewards[samples], drawn[tokens])

    threads = [
        threading.Thread(target=rank, args=(0, slice(0, 4), slice(0, 7))),
        threading.Thread(target=rank, args=(1, slice(4, 6), slice(7, 10))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(torch.cat([found[0], found[1]]), wanted, atol=1e-6, rtol=1e-5)


def test_grpo_may_have_the_term_of_its_paper(tmp_path: Path, hand_worked: HandWorked) -> None:
    """The k3 estimate of KL(policy || reference), weight .04: a few lines more in the file.

    The reference is where the rollout was, so reference - policy is 0 -.1 0 -.4 0: e^-.1 - .9 = .0048374 and
    e^-.4 - .6 = .0703200; the mean over the samples of their means: (.0024187 + .0703200) / 4 = .0181847.
    """
    text = (SHIPPED / "grpo.yaml").read_text()
    text = text.replace("skip_where_zero: centred\n", "")
    text = text.replace("experience:\n", "experience:\n  reference: {operator: reference_forward}\n")
    text = text.replace("  loss: {", "  policy_loss: {")
    text = text.replace(
        "metrics:\n",
        """\
  distance: {operator: kl_k3, takes: {new: reference, old: policy.logprobs}}
  penalty: {operator: sample_mean, takes: {of: distance}}
  loss: {operator: add, takes: {base: policy_loss, other: penalty}, values: {weight: 0.04}}
metrics:
""",
    )
    (tmp_path / "grpo_kl.yaml").write_text(text)
    assert hand_worked(str(tmp_path / "grpo_kl.yaml"))[0] == pytest.approx(-0.0446454 + 0.04 * 0.0181847, rel=1e-4)


def test_a_new_algorithm_needs_no_code(tmp_path: Path, hand_worked: HandWorked) -> None:
    """PPO's clip with a KL penalty and an entropy bonus, from a file of one's own.

    Advantages 1 and -1: -(1 + 1.105171 - 1 + 1.2 - 1) / 5 = -.2610342; KL (.0051709 + .0918247) / 5 = .0193991 x .1;
    the entropy is 1 everywhere, .01 of it off.
    """
    text = """
experience:
  baseline: {operator: leave_one_out, takes: {of: reward}}
  advantage: {operator: over_tokens, takes: {of: baseline}}
update:
  policy: {operator: policy_forward}
  ratio: {operator: importance_ratio, takes: {new: policy.logprobs, old: rollout_logprobs}}
  surrogate: {operator: clipped_surrogate, takes: {ratio: ratio, advantage: advantage}}
  main: {operator: token_mean, takes: {of: surrogate.loss}}
  kl: {operator: kl_k3, takes: {new: policy.logprobs, old: rollout_logprobs}}
  kl_mean: {operator: token_mean, takes: {of: kl}}
  entropy: {operator: token_mean, takes: {of: policy.entropy}}
  penalised: {operator: add, takes: {base: main, other: kl_mean}, values: {weight: 0.1}}
  loss: {operator: add, takes: {base: penalised, other: entropy}, values: {weight: -0.01}}
"""
    (tmp_path / "mine.yaml").write_text(text)
    assert hand_worked(str(tmp_path / "mine.yaml"))[0] == pytest.approx(-0.2610342 + 0.0019399 - 0.01, rel=1e-4)


def test_only_a_ratio_in_the_loss_corrects_for_the_age_of_samples(tmp_path: Path) -> None:
    assert [name for name in NAMES if not load_algorithm(name).corrects_for_age] == ["rloo"]  # for it, a metric alone
    drifting = (
        (SHIPPED / "rloo.yaml").read_text().replace("loss: {operator: constant_mean", "main: {operator: constant_mean")
    )
    drifting = drifting.replace(
        "metrics:",
        "  drift: {operator: token_mean, takes: {of: kl}}\n"
        "  loss: {operator: add, takes: {base: main, other: drift}, values: {weight: 0.1}}\nmetrics:",
    )
    (tmp_path / "mine.yaml").write_text(drifting)
    assert not load_algorithm(str(tmp_path / "mine.yaml")).corrects_for_age
