"""One choice among several: acted by as stated, independently in every environment."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from qpd.actions import ActingRule, Discrete

ROWS = 60_000


def frequencies(rule: ActingRule, logits: list[float], seed: int = 0) -> np.ndarray:
    batch = np.tile(np.array(logits, np.float32), (ROWS, 1))
    actions = Discrete(len(logits)).act(batch, rule, np.random.default_rng(seed))
    assert actions.shape == (ROWS,) and actions.dtype == np.int64
    return np.bincount(actions, minlength=len(logits)) / ROWS


def assert_close(observed: np.ndarray, probabilities: list[float]) -> None:
    """Within 4.5 standard errors: 1 in 10^5 fails by chance, and the seeds are fixed."""
    p = np.array(probabilities)
    assert (np.abs(observed - p) <= 4.5 * np.sqrt(p * (1 - p) / ROWS) + 1e-12).all(), observed


def test_sampling_follows_the_softmax() -> None:
    # Weights 1 : 2 : 5.
    logits = [0.0, np.log(2), np.log(5)]
    assert_close(frequencies(ActingRule("sample"), logits), [1 / 8, 2 / 8, 5 / 8])


@pytest.mark.parametrize(("sharpness", "weights"), [(2.0, [1, 4, 25]), (0.5, [1, 2**0.5, 5**0.5])])
def test_sharpness_is_a_factor_on_the_logits(sharpness: float, weights: list[float]) -> None:
    logits = [0.0, np.log(2), np.log(5)]
    observed = frequencies(ActingRule("sample", sharpness=sharpness), logits)
    assert_close(observed, [w / sum(weights) for w in weights])


def test_epsilon_greedy_explores_uniformly() -> None:
    # epsilon / 4 for each action, the argmax gets the rest.
    observed = frequencies(ActingRule("epsilon", epsilon=0.2), [0.0, 3.0, 1.0, 2.0])
    assert_close(observed, [0.05, 0.85, 0.05, 0.05])


def test_every_environment_tosses_its_own_coin() -> None:
    # Were there one coin for the batch, all 8 environments would explore together.
    rule, rng = ActingRule("epsilon", epsilon=0.5), np.random.default_rng(0)
    actions = Discrete(100)
    logits = np.tile(np.array([9.0] + [0.0] * 99, np.float32), (8, 1))
    explored = np.array([actions.act(logits, rule, rng) != 0 for _ in range(4000)])
    # A uniform action is the argmax in 1 of 100: 0.495 explore visibly.
    assert abs(explored.mean() - 0.495) < 0.012
    correlation = np.corrcoef(explored.T)
    assert np.abs(correlation[~np.eye(8, dtype=bool)]).max() < 0.08
    # Nor do explorers share one random action.
    taken = actions.act(np.tile(logits, (100, 1)), rule, rng)
    assert len(np.unique(taken[taken != 0])) > 50


def test_rows_are_sampled_independently_and_by_their_own_logits() -> None:
    rng = np.random.default_rng(0)
    logits = np.array([[50.0, 0.0], [0.0, 50.0], [0.0, 0.0], [0.0, 0.0]], np.float32)
    actions = np.array([Discrete(2).act(logits, ActingRule("sample"), rng) for _ in range(2000)])
    assert (actions[:, 0] == 0).all() and (actions[:, 1] == 1).all()
    assert abs(np.corrcoef(actions[:, 2], actions[:, 3])[0, 1]) < 0.1


@pytest.mark.parametrize("rule", [ActingRule("greedy"), ActingRule("epsilon", epsilon=0.0)])
def test_greedy_takes_the_argmax(rule: ActingRule) -> None:
    logits = np.random.default_rng(1).normal(size=(50, 6)).astype(np.float32)
    actions = Discrete(6).act(logits, rule, np.random.default_rng(0))
    np.testing.assert_array_equal(actions, logits.argmax(1))


@pytest.mark.parametrize("kind", ["sample", "epsilon"])
def test_the_seed_decides(kind: str) -> None:
    logits = np.zeros((64, 4), np.float32)
    rule = ActingRule(kind, epsilon=0.9)  # type: ignore[arg-type]
    first, again, other = (
        Discrete(4).act(logits, rule, np.random.default_rng(s)) for s in (1, 1, 2)
    )
    assert (first == again).all() and (first != other).any()


def test_huge_logits_do_not_overflow() -> None:
    logits = np.array([[3e38, -3e38], [-3e38, 3e38]], np.float32)
    rule = ActingRule("sample", sharpness=100.0)
    assert Discrete(2).act(logits, rule, np.random.default_rng(0)).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("kind", "labels", "atari", "resolved"),
    [
        ("auto", "logits", True, "sample"),
        ("auto", "q_values", True, "epsilon"),
        ("auto", "logits", False, "greedy"),
        ("auto", "q_values", False, "greedy"),
        ("sample", "q_values", False, "sample"),
        ("greedy", "logits", True, "greedy"),
    ],
)
def test_auto_acts_as_sb3_and_the_zoo_do(
    kind: str, labels: str, atari: bool, resolved: str
) -> None:
    actions = Discrete(4, labels)  # type: ignore[arg-type]
    rule = actions.rule(kind, on_atari=atari, epsilon=0.05, sharpness=2.0)
    assert rule == ActingRule(resolved, 0.05, 2.0)  # type: ignore[arg-type]


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(ValueError, match="'best': one of auto, sample, epsilon, greedy"):
        Discrete(4).rule("best", on_atari=True, epsilon=0.0, sharpness=1.0)


def test_the_text_says_what_was_done() -> None:
    assert str(ActingRule("sample")) == "sampled"
    assert str(ActingRule("sample", sharpness=3.0)) == "sampled from softmax(3 * logits)"
    assert str(ActingRule("epsilon", epsilon=0.01)) == "epsilon-greedy (0.01)"
    assert str(ActingRule("greedy")) == "greedy"


def test_log_probs_are_those_of_what_is_sampled() -> None:
    logits = np.array([[0.0, 1.0, 2.0], [1000.0, 0.0, 0.0]], np.float32)
    rule = ActingRule("sample", sharpness=2.0)
    found = Discrete(3).log_probs(logits, np.array([1, 0]), rule)
    assert found.dtype == np.float32
    normaliser = np.log(1 + np.exp(2.0) + np.exp(4.0))
    np.testing.assert_allclose(found, [2.0 - normaliser, 0.0], rtol=1e-6, atol=1e-12)
    greedy = Discrete(3).log_probs(logits, np.array([1, 0]), ActingRule("greedy"))
    assert np.isnan(greedy).all()


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        # Weights 1 : 2 : 5, then their squares.
        (ActingRule("sample"), [1 / 8, 2 / 8, 5 / 8]),
        (ActingRule("sample", sharpness=2.0), [1 / 30, 4 / 30, 25 / 30]),
        (ActingRule("epsilon", epsilon=0.3), [0.1, 0.1, 0.8]),
        (ActingRule("greedy"), [0.0, 0.0, 1.0]),
    ],
)
def test_probabilities_are_those_of_act(rule: ActingRule, wanted: list[float]) -> None:
    logits = [0.0, np.log(2), np.log(5)]
    told = Discrete(3).probabilities(np.array([logits, logits[::-1]], np.float32), rule)
    np.testing.assert_allclose(told, [wanted, wanted[::-1]], atol=1e-6)
    assert_close(frequencies(rule, logits), wanted)
    huge = Discrete(2).probabilities(np.array([[0.0, 2000.0]], np.float32), rule)
    assert np.isfinite(huge).all() and huge.sum() == pytest.approx(1.0)


def test_an_action_space_without_actions_is_refused() -> None:
    with pytest.raises(ValueError, match="0 actions: at least 1"):
        Discrete(0)


def test_actions_outside_are_told() -> None:
    actions = Discrete(3)
    assert actions.outside(np.array([0, 2, 3, -1])).tolist() == [False, False, True, True]
    assert actions.empty(5).shape == (5,) and actions.empty(5).dtype == np.int64
    assert actions.same(np.array([0, 1]), np.array([0, 2])).tolist() == [True, False]


def test_what_outputs_mean_makes_no_other_actions() -> None:
    assert not Discrete(3).differs_from(Discrete(3, "q_values"))
    assert Discrete(3).differs_from(Discrete(4))


def test_random_outputs_are_acted_by_uniformly() -> None:
    outputs = Discrete(3).random_outputs(ROWS, np.random.default_rng(0))
    taken = Discrete(3).act(outputs, ActingRule("sample"), np.random.default_rng(1))
    assert_close(np.bincount(taken, minlength=3) / ROWS, [1 / 3] * 3)


def test_a_temperature_folds_into_the_logits() -> None:
    # Logits trained on labels / 3 are the teacher's own times 3; twice as sharp, times 6.
    assert Discrete(4).fold(3.0, 2.0) == 6.0
    assert Discrete(4).temperature == 3.0 and Discrete(4, "q_values").temperature is None


def test_a_constant_added_to_all_logits_is_centred_away() -> None:
    logits = torch.tensor([[1.0, 2.0, 6.0]])
    torch.testing.assert_close(Discrete(3).centred(logits), torch.tensor([[-2.0, -1.0, 3.0]]))
    torch.testing.assert_close(Discrete(3).centred(logits + 7.0), Discrete(3).centred(logits))


def test_how_decided_labels_are_depends_on_the_temperature() -> None:
    labels = torch.tensor([[0.0, 0.01 * math.log(3.0)], [5.0, 5.0]])
    # At 0.01 the first state's labels are 1/4 and 3/4, the other's 1/2 and 1/2.
    first = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    expected = ((first + math.log(2)) / 2, (0.75 + 0.5) / 2)
    assert Discrete(2).label_entropy(labels, 0.01) == pytest.approx(expected, rel=1e-5)
    assert Discrete(2).label_entropy(labels, 100.0) == pytest.approx((math.log(2), 0.5), rel=1e-4)
    # (0.5623 + 0.6931) / 2 = 0.6277 nats, (3/4 + 1/2) / 2 = 62.5%.
    said = Discrete(2).describe_labels(labels, 0.01)
    assert "temperature 0.01" in said and "62% on average, 0.63 nats" in said


def test_the_temperature_of_q_values_by_hand() -> None:
    # Labels (0, x) at tau = x / ln 3 are (1/4, 3/4): 0.5623 nats, 0.8113 of ln 2. Larger Q-values
    # have a larger tau, in proportion: the scale of rewards does not matter.
    share = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75)) / math.log(2)
    for x in (1e-3, 1.0, 500.0):
        labels = torch.tensor([[3.0, 3.0 + x]], dtype=torch.float64)
        found = Discrete(2, "q_values").temperature_for(labels, share)
        assert found == pytest.approx(x / math.log(3.0), rel=1e-5)
    assert Discrete(1, "q_values").temperature_for(torch.ones(3, 1), 0.5) == 1.0


@pytest.mark.parametrize(
    ("temperature", "logits", "factor"),
    [
        (3.0, [[9.0, -9.0]], 1.0),  # smoothed: as the rest
        (0.01, [[5.02, 4.98], [3.02, 2.98]], 2.0),  # 0.02 from each state's mean, over 0.01
        (0.01, [[5.001, 4.999]], 1.0),  # never slower
        (0.01, [[90.0, 10.0]], 100.0),  # never faster than logits of 1 would need
    ],
)
def test_the_head_learns_as_fast_as_its_logits_are_large(
    temperature: float, logits: list[list[float]], factor: float
) -> None:
    found = Discrete(2).output_scale(torch.tensor(logits), temperature)
    assert found == pytest.approx(factor, rel=1e-4)


def test_the_scale_of_q_values_is_the_median_states() -> None:
    # Deviations of 1, 2 and 400 within a state, whatever their mean: 2 over 0.01 is 200.
    labels = torch.tensor([[5.0, 7.0], [103.0, 99.0], [-400.0, 400.0]])
    assert Discrete(2, "q_values").output_scale(labels, 0.01) == pytest.approx(200.0)
    assert Discrete(2, "q_values").output_scale(labels, 4.0) == 1.0  # never slower
