"""What a recipe says of rates, clipping, lengths and rewards, by hand."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

from qpd.actions import Discrete
from qpd.recipe.training_phases import DistillSettings, FinetuneSettings, RewardSettings
from qpd.replay.sample import ReplaySample
from qpd.training.epochs import _batches
from qpd.training.optimizer import learning_rate, make_optimizer
from qpd.training.plan import PhasePlan
from qpd.training.step import TrainStep, phase_losses


def never():
    raise AssertionError("nothing is played")


def plan_of(settings, reward=None) -> PhasePlan:
    return PhasePlan(
        "distill", settings, Discrete(2), 0.5, 3.0, 1.0, 1, never, never, "divergence", reward
    )


@pytest.mark.parametrize(
    ("schedule", "shares"),
    # Of the way done: 0, 1/4, 1/2 and 1; (1 + cos(pi / 4)) / 2 = 0.853553.
    [
        ("constant", [1.0, 1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.75, 0.5, 0.0]),
        ("cosine", [1.0, 0.853553, 0.5, 0.0]),
    ],
)
def test_learning_rates_by_hand(schedule: str, shares: list[float]) -> None:
    settings = DistillSettings(lr=0.02, lr_schedule=schedule)
    found = [learning_rate(settings, done) / 0.02 for done in (0.0, 0.25, 0.5, 1.0)]
    assert found == pytest.approx(shares, abs=1e-6)


def test_gradients_are_clipped_to_their_norm() -> None:
    """SGD's first step at rate 1 is the gradient: its norm over all parameters is 0.01."""

    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.actor, self.critic = torch.nn.Linear(3, 2), torch.nn.Linear(3, 1)

        def forward(self, x):
            return self.actor(x), self.critic(x).squeeze(-1)

    module = Heads()
    before = [each.detach().clone() for each in module.parameters()]
    settings = DistillSettings(lr=1.0, optimizer="sgd", max_grad_norm=0.01, precision="fp32")
    step = TrainStep(plan_of(settings), module, make_optimizer(module, settings))
    none = torch.zeros(0)
    seen, labels = torch.ones(4, 3), torch.tensor([[9.0, -9.0]]).repeat(4, 1)
    step(ReplaySample(seen, labels, torch.full((4,), 5.0), none, none, none))
    moved = [a - b for a, b in zip(module.parameters(), before, strict=True)]
    assert torch.cat([m.detach().flatten() for m in moved]).norm().item() == pytest.approx(
        0.01, rel=1e-3
    )


@pytest.mark.parametrize(("asked", "drawn"), [(None, 100), (30, 30), (1000, 100)])
def test_an_epoch_draws_what_the_recipe_says(asked: int | None, drawn: int) -> None:
    class Held:
        def __len__(self) -> int:
            return 100

        def shuffled(self, size, rng, count, rows):
            return torch.arange(100)[:count].split(size)

    settings = DistillSettings(samples_per_epoch=asked, batch_size=16)
    state = types.SimpleNamespace(shuffle=np.random.default_rng(0))
    batches = _batches(plan_of(settings), state, Held(), None)
    assert sum(map(len, batches)) == drawn and len(batches[0]) == 16


def test_the_reward_term_by_hand() -> None:
    """Two states; ratios 1 (log 1/2 of equal logits), advantages 3 and -1: -mean = -1."""
    outputs = (torch.zeros(2, 2), torch.zeros(2))
    sample = ReplaySample(
        torch.zeros(2, 3),
        torch.zeros(2, 2),
        torch.tensor([1.0, 1.0]),  # Huber 1/2
        torch.tensor([0, 1]),
        torch.full((2,), 0.5).log(),
        torch.tensor([3.0, -1.0]),
    )
    plan = plan_of(FinetuneSettings(), RewardSettings(imitation=0.25))
    total, actor, critic = phase_losses(outputs, sample, plan)
    assert (float(actor), float(critic)) == pytest.approx((0.0, 0.5))
    assert float(total) == pytest.approx(0.25 * 0.5 - 1.0)
