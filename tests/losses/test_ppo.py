"""The reward term: advantages and PPO's objective against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from qpd.losses.ppo import clipped_objective, policy_change
from qpd.replay.advantages import PlayedStep, generalized_advantages


def step(
    streams: list[int],
    rewards: list[float],
    values: list[float],
    ended: list[bool],
    cut: list[bool] | None = None,
) -> PlayedStep:
    cut = cut or [False] * len(streams)
    given = (np.array(each) for each in (streams, rewards, values, ended, cut))
    return PlayedStep(*given)


def test_advantages_by_hand() -> None:
    # One stream, discount 0.5, lambda 0.5; the episode ends after the third step.
    # delta = 1 + 0.5*4 - 2 = 1;  0 + 0.5*6 - 4 = -1;  3 - 6 = -3
    # A3 = -3;  A2 = -1 + 0.25 * -3 = -1.75;  A1 = 1 + 0.25 * -1.75 = 0.5625
    steps = [
        step([0], [1.0], [2.0], [False]),
        step([0], [0.0], [4.0], [False]),
        step([0], [3.0], [6.0], [True]),
    ]
    advantages = generalized_advantages(steps, 1, 0.5, 0.5)
    assert [float(a[0]) for a in advantages] == [0.5625, -1.75, -3.0]


def test_a_last_step_without_successor_is_unknown_and_serves_as_bootstrap() -> None:
    steps = [step([0], [1.0], [2.0], [False]), step([0], [0.0], [4.0], [False])]
    first, last = generalized_advantages(steps, 1, 0.5, 0.5)
    assert first.tolist() == [1.0] and math.isnan(last[0])


def test_a_step_before_a_time_limit_is_unknown_and_the_limit_is_no_end() -> None:
    # A critic that is right: 1 a step for ever at discount 0.9 is worth 10.
    steps = [
        step([0], [1.0], [10.0], [False]),
        step([0], [1.0], [10.0], [True], cut=[True]),
        step([0], [1.0], [10.0], [False]),
        step([0], [1.0], [10.0], [True]),
    ]
    found = [float(each[0]) for each in generalized_advantages(steps, 1, 0.9, 0.5)]
    assert found[0] == 0.0 and math.isnan(found[1])
    # Delta of the last, which does end: 1 - 10; half of it, discounted, is carried back.
    assert found[2:] == pytest.approx([0.45 * -9.0, -9.0])


def test_streams_that_pause_keep_their_own_sequence() -> None:
    # Stream 1 does not act in the middle step (a forced action); stream 0 does.
    steps = [
        step([0, 1], [0.0, 1.0], [1.0, 1.0], [False, False]),
        step([0], [0.0], [1.0], [True]),
        step([0, 1], [5.0, 2.0], [1.0, 3.0], [True, True]),
    ]
    first, second, third = generalized_advantages(steps, 2, 1.0, 1.0)
    # Stream 1: delta = 1 + 3 - 1 = 3, then 2 - 3 = -1. Stream 0: an episode of two steps, then 5.
    assert third.tolist() == [4.0, -1.0]
    assert second.tolist() == [-1.0]
    assert first.tolist() == [0.0 + 1.0 - 1.0 - 1.0, 3.0 - 1.0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "moves"),
    [
        (1.0, 2.0, -2.0, True),
        (1.5, 2.0, -2.2, False),  # beyond 1.1: no further
        (0.5, 2.0, -1.0, True),  # below 0.9, but it must come back
        (0.5, -2.0, 1.8, False),
        (1.5, -2.0, 3.0, True),
    ],
)
def test_clipped_objective_by_hand(
    ratio: float, advantage: float, expected: float, moves: bool
) -> None:
    logits = torch.tensor([[0.3, -0.2, 1.0]], requires_grad=True)
    log_prob = torch.log_softmax(logits, -1)[0, 1].detach() - math.log(ratio)
    loss = clipped_objective(
        logits, torch.tensor([1]), log_prob.view(1), torch.tensor([advantage]), 0.1
    )
    assert loss.shape == (1,)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.sum().backward()
    assert logits.grad is not None
    assert bool(logits.grad.abs().max() > 1e-6) == moves


def test_how_far_a_policy_moved_by_hand() -> None:
    # Probabilities are 1/4 and 3/4; the second action had 1/2, so its ratio is 3/2.
    logits = torch.tensor([[0.0, math.log(3.0)]] * 2)
    acted = torch.tensor([0.5, 0.25]).log()
    change = policy_change(logits, torch.tensor([1, 0]), acted, clip=0.2)
    assert change.approx_kl == pytest.approx((0.5 - math.log(1.5)) / 2)
    assert change.clip_fraction == 0.5
