"""A step's gradients, whose derivatives by the outputs are written down: Eq. 2's by autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from qpd.actions import Discrete
from qpd.losses.objective import Objective
from qpd.recipe.training_phases import DistillSettings
from qpd.replay.sample import ReplaySample
from qpd.training.mixed_precision import MixedPrecision
from qpd.training.step import backward

torch.set_num_threads(1)

BATCH, FEATURES, ACTIONS = 12, 6, 5


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.actor, self.critic = nn.Linear(FEATURES, ACTIONS), nn.Linear(FEATURES, 1)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(observations), self.critic(observations).squeeze(-1)


def sample() -> ReplaySample:
    generator = torch.Generator().manual_seed(1)
    none = torch.zeros(0)
    observations = torch.randn(BATCH, FEATURES, generator=generator)
    logits = 4 * torch.randn(BATCH, ACTIONS, generator=generator)
    values = 2 * torch.randn(BATCH, generator=generator)
    return ReplaySample(observations, logits, values, none, none, none)


@pytest.mark.parametrize("loss", ["forward_kl", "reverse_kl"])
@pytest.mark.parametrize("actor_weight", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("student_temperature", [1.0, 2.5])
def test_they_are_those_of_the_total(
    loss: str, actor_weight: float, student_temperature: float
) -> None:
    objective = Objective(Discrete(ACTIONS), loss, actor_weight, 3.0, student_temperature)
    module, whole = TwoHeads(), sample()
    actor, critic = (each.mean() for each in objective.divergences(module(whole.inputs), whole))
    total = objective.total(actor, critic)
    total.backward()
    expected = [parameter.grad for parameter in module.parameters()]

    def check(found: Tensor) -> None:
        torch.testing.assert_close(found, torch.stack([total, actor, critic]).detach())
        for parameter, wanted in zip(module.parameters(), expected, strict=True):
            if wanted is None or not wanted.any():
                assert parameter.grad is None or not parameter.grad.any()
            else:
                torch.testing.assert_close(parameter.grad, wanted)
        module.zero_grad()

    module.zero_grad()
    mixed = MixedPrecision(module, DistillSettings(), None)
    check(backward(mixed, whole, objective, torch.float32))
