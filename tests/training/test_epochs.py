"""What an epoch does, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qpd.actions import Discrete
from qpd.recipe.training_phases import DistillSettings
from qpd.training.epochs import Trainee, _end_epoch, _train_epoch
from qpd.training.plan import PhasePlan


def never() -> Any:
    raise AssertionError("nothing is played")


def trainee_of(settings: DistillSettings, **plan: Any) -> Any:
    made = PhasePlan(
        "distill", settings, Discrete(2), 0.5, 3.0, 1.0, plan.pop("every", 1), never,
        plan.pop("validate", never), "divergence", **plan,
    )  # fmt: skip
    group: dict[str, float] = {"lr_factor": 3.0}
    state = SimpleNamespace(
        epoch=0, lr_scale=0.5, scaling=None, add_time=lambda *_: None, keep_if_best=lambda *_: None,
        optimizer=SimpleNamespace(param_groups=[group]),
    )  # fmt: skip
    observer = SimpleNamespace(epoch_done=lambda report: None, batch_done=lambda *_: None)
    return Trainee(made, state, observer)  # type: ignore[arg-type]


def test_a_smaller_last_batch_counts_by_its_states_and_rates_have_their_factors() -> None:
    """Losses 1 of four states and 6 of one: 10 in all, a mean of 2."""
    trainee = trainee_of(DistillSettings(lr=0.1, lr_schedule="constant"))
    losses = iter([torch.full((3,), 1.0), torch.full((3,), 6.0)])

    class Updates:
        device, seconds_drawing = torch.device("cpu"), 0.0

        def __call__(self, rows: torch.Tensor) -> list[torch.Tensor]:
            return [next(losses)]

    (sums,), count = _train_epoch({0: trainee}, Updates(), [torch.zeros(4), torch.zeros(1)])
    assert (sums.tolist(), count) == ([10.0, 10.0, 10.0], 5)
    # The rate, times the head's factor of 3, halved by a rollback.
    assert trainee.state.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 3 * 0.5)


def test_units_are_recycled_early_and_the_last_epoch_is_validated() -> None:
    validated, recycled = [], []

    def validate() -> Any:
        validated.append(trainee.state.epoch)
        return SimpleNamespace(games=None, divergence=0.0)

    trainee = trainee_of(
        DistillSettings(epochs=5),
        every=3,
        validate=validate,
        after_early_epoch=lambda: recycled.append(trainee.state.epoch),
    )
    for _ in range(5):
        _end_epoch(trainee, torch.zeros(3), 1.0, None)
    assert recycled == [1, 2]
    assert validated == [3, 5]
