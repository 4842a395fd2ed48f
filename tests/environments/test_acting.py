"""Actions follow the stated distribution, independently in every environment."""

from __future__ import annotations

import numpy as np
import pytest

from qpd.actions import ActingRule, Discrete

ROWS = 60_000


def act(rule: ActingRule, logits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return Discrete(logits.shape[1]).act(logits, rule, rng)


def log_probs(rule: ActingRule, logits: np.ndarray, actions: np.ndarray) -> np.ndarray:
    return Discrete(logits.shape[1]).log_probs(logits, actions, rule)


def probabilities(rule: ActingRule, logits: np.ndarray) -> np.ndarray:
    return Discrete(logits.shape[1]).probabilities(logits, rule)


def frequencies(rule: ActingRule, logits: list[float], seed: int = 0) -> np.ndarray:
    batch = np.tile(np.array(logits, np.float32), (ROWS, 1))
    actions = act(rule, batch, np.random.default_rng(seed))
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
    logits = np.tile(np.array([9.0] + [0.0] * 99, np.float32), (8, 1))
    explored = np.array([act(rule, logits, rng) != 0 for _ in range(4000)])
    # A uniform action is the argmax in 1 of 100: 0.495 explore visibly.
    assert abs(explored.mean() - 0.495) < 0.012
    correlation = np.corrcoef(explored.T)
    assert np.abs(correlation[~np.eye(8, dtype=bool)]).max() < 0.08
    # Nor do explorers share one random action.
    actions = act(rule, np.tile(logits, (100, 1)), rng)
    assert len(np.unique(actions[actions != 0])) > 50


def test_rows_are_sampled_independently_and_by_their_own_logits() -> None:
    rng = np.random.default_rng(0)
    logits = np.array([[50.0, 0.0], [0.0, 50.0], [0.0, 0.0], [0.0, 0.0]], np.float32)
    actions = np.array([act(ActingRule("sample"), logits, rng) for _ in range(2000)])
    assert (actions[:, 0] == 0).all() and (actions[:, 1] == 1).all()
    assert abs(np.corrcoef(actions[:, 2], actions[:, 3])[0, 1]) < 0.1


@pytest.mark.parametrize("rule", [ActingRule("greedy"), ActingRule("epsilon", epsilon=0.0)])
def test_greedy_takes_the_argmax(rule: ActingRule) -> None:
    logits = np.random.default_rng(1).normal(size=(50, 6)).astype(np.float32)
    actions = act(rule, logits, np.random.default_rng(0))
    np.testing.assert_array_equal(actions, logits.argmax(1))


@pytest.mark.parametrize("kind", ["sample", "epsilon"])
def test_the_seed_decides(kind: str) -> None:
    logits = np.zeros((64, 4), np.float32)
    rule = ActingRule(kind, epsilon=0.9)  # type: ignore[arg-type]
    first, again, other = (act(rule, logits, np.random.default_rng(s)) for s in (1, 1, 2))
    assert (first == again).all() and (first != other).any()


def test_huge_logits_do_not_overflow() -> None:
    logits = np.array([[3e38, -3e38], [-3e38, 3e38]], np.float32)
    rule = ActingRule("sample", sharpness=100.0)
    assert act(rule, logits, np.random.default_rng(0)).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("kind", "actor_critic", "atari", "resolved"),
    [
        ("auto", True, True, "sample"),
        ("auto", False, True, "epsilon"),
        ("auto", True, False, "greedy"),
        ("auto", False, False, "greedy"),
        ("sample", False, False, "sample"),
        ("greedy", True, True, "greedy"),
    ],
)
def test_auto_acts_as_sb3_and_the_zoo_do(
    kind: str, actor_critic: bool, atari: bool, resolved: str
) -> None:
    actions = Discrete(4, "logits" if actor_critic else "q_values")
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
    found = log_probs(rule, logits, np.array([1, 0]))
    assert found.dtype == np.float32
    normaliser = np.log(1 + np.exp(2.0) + np.exp(4.0))
    np.testing.assert_allclose(found, [2.0 - normaliser, 0.0], rtol=1e-6, atol=1e-12)
    assert np.isnan(log_probs(ActingRule("greedy"), logits, np.array([1, 0]))).all()


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
    told = probabilities(rule, np.array([logits, logits[::-1]], np.float32))
    np.testing.assert_allclose(told, [wanted, wanted[::-1]], atol=1e-6)
    assert_close(frequencies(rule, logits), wanted)
    huge = probabilities(rule, np.array([[0.0, 2000.0]], np.float32))
    assert np.isfinite(huge).all() and huge.sum() == pytest.approx(1.0)
