"""Several choices at once: acted by and told apart as independent parts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from qpd.actions import ActingRule, Discrete, MultiBinary, MultiDiscrete

ROWS = 60_000
LN3 = math.log(3.0)
PARTS = MultiDiscrete((2, 3))
SWITCHES = MultiBinary(2)
# Weights 1 : 3 in the first part, 1 : 2 : 5 in the second.
LOGITS = np.log(np.array([[1, 3, 1, 2, 5]], np.float32))
SAMPLE, GREEDY = ActingRule("sample"), ActingRule("greedy")


def drawn(
    actions: MultiDiscrete | MultiBinary, logits: np.ndarray, rule: ActingRule, seed: int = 0
) -> np.ndarray:
    taken = actions.act(logits.repeat(ROWS, axis=0), rule, np.random.default_rng(seed))
    assert taken.shape == (ROWS, *actions.shape) and taken.dtype == np.int64
    assert not actions.outside(taken).any()
    return taken


def assert_shares(taken: np.ndarray, probabilities: list[float]) -> None:
    """Within 4.5 standard errors: 1 in 10^5 fails by chance, and the seeds are fixed."""
    p = np.array(probabilities)
    observed = np.bincount(taken, minlength=len(p)) / ROWS
    assert (np.abs(observed - p) <= 4.5 * np.sqrt(p * (1 - p) / ROWS) + 1e-12).all(), observed


def assert_independent(one: np.ndarray, other: np.ndarray) -> None:
    # The standard error of a correlation of independent draws is 1 / sqrt(rows).
    assert abs(np.corrcoef(one, other)[0, 1]) < 4.5 / math.sqrt(ROWS)


@pytest.mark.parametrize(
    ("sharpness", "first", "second"),
    [(1.0, [1 / 4, 3 / 4], [1 / 8, 2 / 8, 5 / 8]), (2.0, [0.1, 0.9], [1 / 30, 4 / 30, 25 / 30])],
)
def test_every_part_is_drawn_by_its_own_logits(
    sharpness: float, first: list[float], second: list[float]
) -> None:
    taken = drawn(PARTS, LOGITS, ActingRule("sample", sharpness=sharpness))
    assert_shares(taken[:, 0], first)
    assert_shares(taken[:, 1], second)
    assert_independent(taken[:, 0], taken[:, 1])


@pytest.mark.parametrize(
    ("sharpness", "first", "second"), [(1.0, 3 / 4, 1 / 6), (2.0, 9 / 10, 1 / 26)]
)
def test_every_switch_is_drawn_by_its_own_logit(
    sharpness: float, first: float, second: float
) -> None:
    # Odds of 3 and 1/5 are probabilities of 3/4 and 1/6; their squares, 9/10 and 1/26.
    logits = np.log(np.array([[3.0, 0.2]], np.float32))
    taken = drawn(SWITCHES, logits, ActingRule("sample", sharpness=sharpness))
    assert_shares(taken[:, 0], [1 - first, first])
    assert_shares(taken[:, 1], [1 - second, second])
    assert_independent(taken[:, 0], taken[:, 1])


def test_greedy_takes_the_likeliest_of_every_part() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50, 5)).astype(np.float32)
    taken = PARTS.act(logits, GREEDY, rng)
    wanted = np.stack([logits[:, :2].argmax(1), logits[:, 2:].argmax(1)], axis=1)
    np.testing.assert_array_equal(taken, wanted)
    np.testing.assert_array_equal(SWITCHES.act(logits[:, :2], GREEDY, rng), logits[:, :2] > 0)


def test_epsilon_explores_uniformly() -> None:
    # epsilon / n for each action, the likeliest gets the rest.
    rule = ActingRule("epsilon", epsilon=0.3)
    taken = drawn(PARTS, LOGITS, rule)
    assert_shares(taken[:, 0], [0.15, 0.85])
    assert_shares(taken[:, 1], [0.1, 0.1, 0.8])
    switched = drawn(SWITCHES, np.array([[4.0, -4.0]], np.float32), rule)
    assert_shares(switched[:, 0], [0.15, 0.85])
    assert_shares(switched[:, 1], [0.85, 0.15])
    # An environment explores with one coin, where all its parts are drawn: the two differ from
    # the likeliest together in 0.3 / 2 * 2 / 3 of the rows, of the switches in 0.3 / 4.
    assert_shares(((taken[:, 0] == 0) & (taken[:, 1] != 2)).astype(int), [0.9, 0.1])
    assert_shares(((switched[:, 0] == 0) & (switched[:, 1] == 1)).astype(int), [0.925, 0.075])


@pytest.mark.parametrize("actions", [PARTS, SWITCHES])
def test_the_seed_decides(actions: MultiDiscrete | MultiBinary) -> None:
    logits = np.zeros((64, actions.num_outputs), np.float32)
    first, again, other = (
        actions.act(logits, SAMPLE, np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert (first == again).all() and (first != other).any()


def test_log_probs_are_sums_over_the_parts() -> None:
    # 3/4 and 2/8; then 1/4 and 5/8.
    found = PARTS.log_probs(LOGITS.repeat(2, axis=0), np.array([[1, 1], [0, 2]]), SAMPLE)
    np.testing.assert_allclose(found, np.log([3 / 16, 5 / 32]), rtol=1e-5)
    assert found.dtype == np.float32
    assert np.isnan(PARTS.log_probs(LOGITS, np.array([[1, 1]]), GREEDY)).all()
    # Odds of 3 and 1/5: on with 3/4, off with 5/6; twice as sharp 9/10 and 25/26.
    logits = np.log(np.array([[3.0, 0.2]], np.float32))
    taken = np.array([[1, 0]])
    assert SWITCHES.log_probs(logits, taken, SAMPLE) == pytest.approx(math.log(15 / 24), rel=1e-5)
    sharp = SWITCHES.log_probs(logits, taken, ActingRule("sample", sharpness=2.0))
    assert sharp == pytest.approx(math.log(225 / 260), rel=1e-5)
    assert np.isnan(SWITCHES.log_probs(logits, taken, GREEDY)).all()


def test_huge_logits_do_not_overflow() -> None:
    logits = np.array([[3e38, -3e38]], np.float32)
    rule = ActingRule("sample", sharpness=100.0)
    assert SWITCHES.act(logits, rule, np.random.default_rng(0)).tolist() == [[1, 0]]
    assert SWITCHES.log_probs(logits, np.array([[1, 0]]), rule).tolist() == [0.0]


def test_the_divergence_of_parts_by_hand() -> None:
    # At a temperature of 3, part 1 as in Eq. 1's test: 0.130812. Part 2 of the teacher (1/2, 1/2,
    # 0), of the student (9/10, 1/10, 0): 1/2 ln(5/9) + 1/2 ln 5 = ln(5/3) = 0.510826.
    teacher = torch.tensor([[3 * LN3, 0.0, 0.0, 0.0, -300.0]])
    student = torch.tensor([[0.0, 0.0, 2 * LN3, 0.0, -100.0]])
    found, slope = PARTS.divergence_gradient(teacher, student, 3.0)
    torch.testing.assert_close(found, torch.tensor([0.641638]), rtol=0, atol=2e-6)
    # The student's probabilities less the teacher's.
    torch.testing.assert_close(slope, torch.tensor([[-0.25, 0.25, 0.4, -0.4, 0.0]]))


def test_the_divergence_of_switches_by_hand() -> None:
    # As the parts above: a switch of logit x is a part of logits (x, 0).
    teacher, student = torch.tensor([[3 * LN3, 0.0]]), torch.tensor([[0.0, 2 * LN3]])
    found, slope = SWITCHES.divergence_gradient(teacher, student, 3.0)
    torch.testing.assert_close(found, torch.tensor([0.641638]), rtol=0, atol=2e-6)
    torch.testing.assert_close(slope, torch.tensor([[-0.25, 0.4]]))
    # KL(student || teacher): 1/2 ln(4/3) = 0.143841 and 9/10 ln(9/5) + 1/10 ln(1/5) = 0.368064.
    # Its derivative p (1 - p) (student - teacher): 1/4 (0 - ln 3) and 9/100 (2 ln 3).
    found, slope = SWITCHES.divergence_gradient(teacher, student, 3.0, reverse=True)
    torch.testing.assert_close(found, torch.tensor([0.511905]), rtol=0, atol=2e-6)
    torch.testing.assert_close(slope, torch.tensor([[-LN3 / 4, 0.18 * LN3]]))


@pytest.mark.parametrize("reverse", [False, True])
def test_switches_are_parts_of_two(reverse: bool) -> None:
    logits = 3 * torch.randn((2, 20, 4), generator=torch.Generator().manual_seed(0))
    pairs = torch.stack([logits, torch.zeros_like(logits)], -1).flatten(2)
    as_parts = MultiDiscrete((2,) * 4).divergence(*pairs, 3.0, 0.5, reverse=reverse)
    as_switches = MultiBinary(4).divergence(*logits, 3.0, 0.5, reverse=reverse)
    torch.testing.assert_close(as_switches, as_parts, rtol=1e-4, atol=1e-5)


def test_one_part_is_discrete() -> None:
    logits = torch.randn((2, 20, 4), generator=torch.Generator().manual_seed(0))
    alone = MultiDiscrete((4,)).divergence(*logits, 3.0)
    assert torch.equal(alone, Discrete(4).divergence(*logits, 3.0))


def test_logits_are_centred_part_by_part() -> None:
    logits = torch.tensor([[1.0, 3.0, 1.0, 2.0, 6.0]])
    centred = torch.tensor([[-1.0, 1.0, -2.0, -1.0, 3.0]])
    torch.testing.assert_close(PARTS.centred(logits), centred)
    # A switch's logit has nothing to take off: it is a difference already.
    assert torch.equal(SWITCHES.centred(logits[:, :2]), logits[:, :2])


def test_how_decided_labels_are() -> None:
    # (3/4, 1/4) has 0.5623 nats, (0.6, 0.2, 0.2) 0.9503: 0.76 on average; the best 67.5%.
    labels = torch.log(torch.tensor([[3.0, 1.0, 3.0, 1.0, 1.0]])) * 3.0
    said = PARTS.describe_labels(labels, 3.0)
    assert said.endswith("the best choices have 68% on average, 0.76 nats of entropy each")


def test_actions_outside_are_told() -> None:
    assert PARTS.outside(np.array([[0, 0], [1, 2], [2, 0], [0, 3], [-1, 0]])).tolist() == [
        *(False, False),
        *(True, True, True),
    ]
    assert SWITCHES.outside(np.array([[0, 1], [0, 2], [-1, 0]])).tolist() == [False, True, True]
    taken = np.array([[1, 2], [1, 2]])
    assert PARTS.same(taken, np.array([[1, 2], [1, 1]])).tolist() == [True, False]
    assert PARTS.empty(3).shape == (3, 2) and not PARTS.empty(3).any()


def test_random_outputs_are_acted_by_uniformly() -> None:
    rng = np.random.default_rng(0)
    parts = PARTS.act(PARTS.random_outputs(ROWS, rng), SAMPLE, rng)
    assert_shares(parts[:, 0], [1 / 2] * 2)
    assert_shares(parts[:, 1], [1 / 3] * 3)
    switches = SWITCHES.act(SWITCHES.random_outputs(ROWS, rng), SAMPLE, rng)
    assert_shares(switches[:, 1], [1 / 2] * 2)


def test_actions_of_other_sizes_or_kinds_are_others() -> None:
    assert not PARTS.differs_from(MultiDiscrete((2, 3)))
    assert PARTS.differs_from(MultiDiscrete((3, 2))) and SWITCHES.differs_from(MultiBinary(3))
    assert SWITCHES.differs_from(MultiDiscrete((2, 2)))  # other numbers of outputs
    assert MultiDiscrete((2,)).differs_from(Discrete(2))  # [1] is not 1


def test_actions_without_choices_are_refused() -> None:
    for nvec in ((), (2, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            MultiDiscrete(nvec)
    with pytest.raises(ValueError, match="0 switches"):
        MultiBinary(0)


@pytest.mark.parametrize("actions", [PARTS, SWITCHES])
def test_auto_samples_on_atari_and_is_greedy_elsewhere(
    actions: MultiDiscrete | MultiBinary,
) -> None:
    for on_atari, kind in ((True, "sample"), (False, "greedy")):
        rule = actions.rule("auto", on_atari=on_atari, epsilon=0.1, sharpness=2.0)
        assert rule == ActingRule(kind, 0.1, 2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="acting 'best': one of auto, sample, epsilon, greedy"):
        actions.rule("best", on_atari=False, epsilon=0.1, sharpness=1.0)
    assert actions.temperature == 3.0 and actions.fold(3.0, 2.0) == 6.0


def test_they_are_described_in_words() -> None:
    assert str(PARTS) == "2 choices among 2, 3" and str(SWITCHES) == "2 switches"


def test_epsilon_turns_a_switch_half_the_time() -> None:
    # One in five states is explored, half of its switches are on: 0.8 + 0.1, and 0.1.
    rule = ActingRule("epsilon", epsilon=0.2)
    outputs = np.array([[1.0, -1.0]], np.float32)
    assert MultiBinary(2).probabilities(outputs, rule).tolist() == [pytest.approx([0.9, 0.1])]
    acted = MultiBinary(2).act(outputs.repeat(20_000, 0), rule, np.random.default_rng(0))
    assert acted.mean(0) == pytest.approx([0.9, 0.1], abs=0.01)  # four standard errors


@pytest.mark.parametrize("actions", [MultiDiscrete((2, 2)), SWITCHES])
def test_the_head_learns_as_fast_as_logits_are_large(actions: MultiDiscrete | MultiBinary) -> None:
    """As for one choice: a deviation of 2 over a temperature of 0.5, never more than 1 / 0.5."""
    size = actions.num_outputs
    labels = torch.tensor([[2.0, -2.0] * (size // 2)])
    assert actions.output_scale(labels, 0.5) == 2.0
    assert actions.output_scale(0.3 * labels, 0.5) == pytest.approx(1.2)
    assert actions.output_scale(labels, 3.0) == 1.0
