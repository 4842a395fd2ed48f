"""What a phase does when training goes wrong."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from qpd.actions import Discrete
from qpd.recipe.training_phases import DistillSettings
from qpd.runs.run_directory import RunDirectory
from qpd.student_files.distilled import load_student
from qpd.students import Student, architecture_for
from qpd.training.epochs import TrainingError
from qpd.training.health import StateCopy, diagnose_epoch
from qpd.training.optimizer import make_optimizer
from qpd.training.state import PhaseState
from tests.tiny_run import Follower, Interrupt, recipe_of, work

torch.set_num_threads(1)

GOOD = torch.tensor([0.2, 0.1, 0.1])


class TwoHeads(nn.Module):
    """Logits [batch, 2] and values [batch], linear in the observation."""

    def __init__(self, weight: list[list[float]], bias: list[float]) -> None:
        super().__init__()
        self.actor = nn.Linear(2, 2)
        self.actor.weight.data = torch.tensor(weight)
        self.actor.bias.data = torch.tensor(bias)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.actor(observations), observations[:, 0]


def healthy() -> TwoHeads:
    return TwoHeads([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])


STATES = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.25]])


def diagnosed(
    losses: torch.Tensor,
    recent: list[float],
    module: nn.Module,
    observations: torch.Tensor,
    actions: Discrete,
    now: float = 1.0,
    before: float = 0.1,
) -> str | None:
    """Say what is wrong with an epoch whose states had a loss of 0.1 `before` it, and 1 `now`."""
    return diagnose_epoch(
        losses, recent, module, observations, actions, lambda: now, lambda: before
    )


def test_new_states_are_no_divergence() -> None:
    jumped = torch.tensor([2.0, 1.0, 1.0]), [0.1, 0.19, 0.11], healthy(), STATES, Discrete(2)
    assert diagnosed(*jumped) is not None
    # What the memory holds now was as hard before the epoch, or harder.
    assert diagnosed(*jumped, now=1.9, before=1.8) is None
    assert diagnosed(*jumped, now=0.5, before=2.0) is None


def test_rounding_is_no_divergence() -> None:
    """Losses of a student that has learned all there is, such as constants."""
    for total, recent in ((2e-6, [1e-7]), (-4.7e-8, [-4.7e-8]), (1e-9, [0.0])):
        losses = torch.tensor([total, total, 0.0])
        assert diagnosed(losses, recent, healthy(), STATES, Discrete(2)) is None
    assert diagnosed(torch.tensor([2e-4, 2e-4, 0.0]), [1e-7], healthy(), STATES, Discrete(2))


def test_a_good_epoch_is_no_trouble() -> None:
    assert diagnosed(GOOD, [], healthy(), STATES, Discrete(2)) is None
    # Ten times the largest of the last losses is allowed, more is a spike.
    assert (
        diagnosed(torch.tensor([1.9, 1.0, 0.9]), [0.1, 0.19], healthy(), STATES, Discrete(2))
        is None
    )


def test_where_there_is_nothing_to_tell_apart_nothing_is_dead() -> None:
    alike = TwoHeads([[1.0, 1.0], [1.0, 1.0]], [3.0, 3.0])
    assert diagnosed(GOOD, [], alike, STATES, Discrete(2)) is not None
    # One state several times, such as the last batch of a game with few.
    assert diagnosed(GOOD, [], healthy(), STATES[:1].repeat(3, 1), Discrete(2)) is None

    class OneAction(TwoHeads):
        def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return super().forward(observations)[0][:, :1], observations[:, 0]

    one = OneAction([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
    assert diagnosed(GOOD, [], one, STATES, Discrete(1)) is None


@pytest.mark.parametrize(
    ("losses", "recent", "module", "reason"),
    [
        ([float("nan"), float("nan"), 0.5], [], healthy(), "no longer finite (actor nan, critic"),
        ([float("inf"), 0.5, float("inf")], [], healthy(), "no longer finite (actor 0.5, critic i"),
        ([2.0, 1.0, 1.0], [0.1, 0.19, 0.11], healthy(), "has jumped from 0.11 to 2"),
        (
            [0.2, 0.1, 0.1],
            [],
            TwoHeads([[float("nan"), 0.0], [0.0, 1.0]], [0.0, 0.0]),
            "weights are no longer finite (actor.weight)",
        ),
        (
            [0.2, 0.1, 0.1],
            [],
            TwoHeads([[1.0, 1.0], [1.0, 1.0]], [3.0, 3.0]),
            "answers every state alike",
        ),
        (
            [0.2, 0.1, 0.1],
            [],
            TwoHeads([[0.0, 0.0], [0.0, 0.0]], [1.0, -1.0]),
            "answers every state alike",
        ),
    ],
)
def test_trouble_is_named(
    losses: list[float], recent: list[float], module: nn.Module, reason: str
) -> None:
    found = diagnosed(torch.tensor(losses), recent, module, STATES, Discrete(2))
    assert found is not None and reason in found


def test_one_state_alone_cannot_show_that_all_are_answered_alike() -> None:
    constant = TwoHeads([[0.0, 0.0], [0.0, 0.0]], [1.0, -1.0])
    assert diagnosed(GOOD, [], constant, STATES[:1], Discrete(2)) is None


def diverging(teacher_zip: Path, rollbacks: int) -> object:
    """SGD at a learning rate of 4: the loss grows beyond all bounds; at 0.5 it does not."""
    return recipe_of(
        teacher_zip,
        distill={"optimizer": "sgd", "lr": 4.0, "lr_schedule": "constant", "rollbacks": rollbacks},
        finetune={"epochs": 0},
    )


def test_a_diverging_phase_goes_back_and_ends_well(teacher_zip: Path, tmp_path: Path) -> None:
    follower = work(tmp_path / "run", diverging(teacher_zip, 20), Follower())
    undone = [note for note in follower.notes if "is undone" in note]
    assert undone and "the learning rate is halved, to 2" in undone[0]
    with RunDirectory.open(tmp_path / "run", read_only=True) as run:
        assert run.phase("distill").metrics["rollbacks"] == len(undone)
    student = load_student(tmp_path / "run" / "distilled.safetensors")
    assert all(parameter.isfinite().all() for parameter in student.parameters())
    with (tmp_path / "run" / "metrics.csv").open() as file:
        rates = [float(row["lr"]) for row in csv.DictReader(file)]
    assert rates[-1] == pytest.approx(4.0 / 2 ** len(undone))


def test_a_phase_that_may_not_go_back_ends_in_one_line(teacher_zip: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError) as caught:
        work(tmp_path / "run", diverging(teacher_zip, 0), Follower())
    text = str(caught.value)
    assert "\n" not in text and text.startswith("distill: epoch ")
    assert "after 0 rollbacks" in text and "distill.lr (now 4)" in text
    assert not (tmp_path / "run" / "distilled.safetensors").exists()


def test_an_interrupted_phase_remembers_its_rollbacks(teacher_zip: Path, tmp_path: Path) -> None:
    recipe = diverging(teacher_zip, 20)
    whole = work(tmp_path / "whole", recipe, Follower())
    late = Follower(lambda event, name, epoch: event == "batch" and epoch == 4)
    with pytest.raises(Interrupt):
        work(tmp_path / "run", recipe, late)
    after = work(tmp_path / "run", recipe, Follower())
    assert [r.loss for r in after.reports] == [r.loss for r in whole.reports][4:]
    names = ("distilled.safetensors", "ptq.safetensors")
    for name in names:
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def learn(state: PhaseState, gradient: float) -> None:
    for parameter in state.module.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    state.optimizer.step()


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "rmsprop", "sgd"])
def test_a_rollback_takes_the_optimizers_moments_back_too(optimizer: str) -> None:
    """Moments that are no longer finite would spoil every epoch after it."""
    student = Student(architecture_for("mlp-8", (3,), 2), 0)
    settings = DistillSettings(optimizer=optimizer)
    state = PhaseState(student, make_optimizer(student, settings), np.random.default_rng(0))
    learn(state, 1.0)
    before = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    copy = StateCopy.of(state)
    learn(state, float("nan"))
    assert not student.actor.weight.isfinite().all()
    copy.restore(state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in student.state_dict().items())
    assert (state.lr_scale, state.rollbacks) == (0.5, 1)
    learn(state, 1.0)
    assert all(parameter.isfinite().all() for parameter in student.parameters())
