"""Which epoch is kept: by divergence, unless the return has collapsed; or by return."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import torch

from qpd.actions import ActingRule, Discrete
from qpd.environments.policy import Policy
from qpd.evaluation.games import EvaluationResult
from qpd.training.selection import Score, Selection, Validated
from qpd.training.state import PhaseState


class Imitator:
    """A policy that diverges by so much from its teacher on states of a difficulty of 1."""

    def __init__(self, divergence: float) -> None:
        self.divergence, self.actions = divergence, Discrete(2)

    def __call__(self, observations: np.ndarray, /) -> np.ndarray:
        raise NotImplementedError


def validated(returns: list[float], divergence: float, difficulty: float = 1.0) -> Validated:
    """The validation of an imitator whose own games lead to states of this difficulty."""

    def divergence_of(policy: Policy) -> float:
        assert isinstance(policy, Imitator)
        return policy.divergence * difficulty

    lengths = np.ones(len(returns), np.int64)
    games = EvaluationResult(np.array(returns), lengths, 0, ActingRule("greedy"))
    policy = Imitator(divergence)
    return Validated(games, divergence_of(policy), policy, divergence_of)


def new_state() -> PhaseState:
    module = torch.nn.Linear(1, 1)
    groups = [{"params": module.parameters(), "name": "head", "lr_factor": 1.0}]
    return PhaseState(module, torch.optim.SGD(groups), np.random.default_rng(0))


def kept(by: Selection, *validations: Validated) -> int:
    """The epoch, counted from 1, that is kept of these."""
    state = new_state()
    for number, one in enumerate(validations):
        state.epoch = number + 1
        state.keep_if_best(one, by, pytest.fail)
    return state.best_epoch


NEAR = validated([300.0, 380.0, 420.0, 340.0], 0.006)
LUCKY = validated([340.0, 400.0, 420.0, 360.0], 0.008)
COLLAPSED = validated([2.0, 0.0, 1.0, 3.0], 0.001)


@pytest.mark.parametrize("order", [(NEAR, LUCKY), (LUCKY, NEAR)])
def test_the_nearest_to_the_teacher_or_the_highest_return(order: tuple[Validated, ...]) -> None:
    assert order[kept("divergence", *order) - 1] is NEAR
    assert order[kept("return", *order) - 1] is LUCKY


def test_one_that_meets_the_easy_states_alone_is_not_nearer() -> None:
    """Students of a DQN that lost early had 0.26 nats on their own states, better ones 0.30."""
    weak, strong = validated([150.0, 160.0], 0.34, 0.8), validated([190.0, 200.0], 0.31)
    assert weak.divergence < strong.divergence
    assert kept("divergence", weak, strong) == 2
    assert kept("divergence", strong, weak) == 1


def test_the_best_ones_games_are_played_again_after_a_checkpoint() -> None:
    weak, strong = validated([150.0, 160.0], 0.34, 0.8), validated([190.0, 200.0], 0.31)
    state = new_state()
    state.keep_if_best(weak, "divergence", pytest.fail)
    best = state.module.state_dict()["weight"].clone()
    resumed = new_state()
    resumed.load_state_dict(*state.state_dict())
    seen = []

    def validate() -> Validated:
        seen.append(resumed.module.state_dict()["weight"].clone())
        return weak

    with torch.no_grad():
        resumed.module.weight.add_(1.0)
    resumed.epoch = 2
    resumed.keep_if_best(strong, "divergence", validate)
    assert len(seen) == 1 and torch.equal(seen[0], best)
    assert resumed.best_epoch == 2 and torch.equal(resumed.best["weight"], best + 1.0)
    resumed.keep_if_best(weak, "divergence", pytest.fail)
    assert resumed.best_epoch == 2


def test_a_student_that_has_collapsed_is_not_kept_whatever_it_imitates() -> None:
    assert kept("divergence", NEAR, COLLAPSED) == 1
    assert kept("divergence", COLLAPSED, NEAR) == 2
    assert kept("divergence", validated([300.0, 400.0], float("nan")), NEAR) == 2


def test_returns_do_not_sink_step_by_step() -> None:
    """Each interval reaches the one before, which is nearer each time; the last not the first."""
    falling = [
        validated([mean - 60.0, mean - 20.0, mean + 20.0, mean + 60.0], divergence)
        for mean, divergence in ((400.0, 0.0100), (320.0, 0.0099), (240.0, 0.0098), (160.0, 0.0097))
    ]
    scores = [Score.of(each) for each in falling]
    assert all(after.high > before.low for before, after in pairwise(scores))
    expected = max(i for i, each in enumerate(scores) if each.high >= scores[0].low)
    assert expected < 3
    assert kept("divergence", *falling) == expected + 1


def test_one_game_tells_nothing_of_a_collapse() -> None:
    nearer, luckier = validated([300.0], 0.01), validated([301.0], 0.5)
    assert kept("divergence", nearer, luckier) == 1
    score = Score.of(luckier)
    assert Score.from_json(json.loads(json.dumps(score.to_json(), allow_nan=False))) == score


def test_ties_go_to_the_later_epoch() -> None:
    for by in ("divergence", "return"):
        assert kept(by, NEAR, NEAR, NEAR) == 3  # type: ignore[arg-type]


def test_equal_returns_are_told_apart_by_divergence() -> None:
    """As in a task with a highest score: phase 3 must not end with a worse student than it had."""
    nearer, further = validated([500.0] * 4, 0.01), validated([500.0] * 4, 0.9)
    assert kept("return", nearer, further) == 1
    assert kept("return", further, nearer) == 2


def test_a_checkpoint_remembers_the_score() -> None:
    score = Score.of(NEAR)
    assert Score.from_json(score.to_json()) == score
    old = Score(350.0, 350.0, 350.0)
    assert old.to_json()["divergence"] is None and Score.from_json(old.to_json()) == old
    assert Score.of(LUCKY).beats(old, "divergence", old.low)
