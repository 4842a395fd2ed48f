"""A checkpoint of a training phase holds all of its state."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import torch

from qpd.actions import Discrete
from qpd.recipe.training_phases import DistillSettings, FinetuneSettings, RewardSettings
from qpd.replay.play_stream import Rollout
from qpd.students import Student, architecture_for
from qpd.training.epochs import _batches
from qpd.training.optimizer import make_optimizer
from qpd.training.plan import PhasePlan
from qpd.training.selection import Score
from qpd.training.state import PhaseState


def fresh() -> PhaseState:
    student = Student(architecture_for("mlp-8", (3,), 2), 0)
    return PhaseState(student, make_optimizer(student, DistillSettings()), np.random.default_rng(0))


def test_every_field_of_a_phase_is_restored() -> None:
    state = fresh()
    for parameter in state.module.parameters():
        parameter.grad = torch.ones_like(parameter)
    state.optimizer.step()
    state.best = {k: v.detach() + 1 for k, v in state.module.state_dict().items()}
    state.epoch, state.best_epoch, state.stale, state.rollbacks = 7, 4, 3, 2
    state.best_score, state.floor = Score(5.0, 4.0, 6.0, 0.25), 4.5
    state.lr_scale, state.head_factor, state.recent_losses = 0.25, 9.0, [3.0, 2.0]
    state.add_time("train", 1.5)
    state.shuffle.random(5)
    tensors, plain = state.state_dict()
    other = fresh()
    other.load_state_dict(tensors, json.loads(json.dumps(plain)))
    for name in ("epoch", "best_epoch", "stale", "rollbacks", "best_score", "floor", "lr_scale",
                 "head_factor", "recent_losses", "seconds"):  # fmt: skip
        assert getattr(other, name) == getattr(state, name), name
    assert other.shuffle.random() == state.shuffle.random()
    for ours, theirs in (
        (state.module.state_dict(), other.module.state_dict()),
        (state.best, other.best),
        *zip(state.optimizer.state.values(), other.optimizer.state.values(), strict=True),
    ):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[key]) for key, value in ours.items())


def test_a_rollout_is_passed_over_as_often_as_the_recipe_says() -> None:
    def never():
        raise AssertionError("nothing is played")

    def shuffled(size, rng, count, rows):
        return torch.from_numpy(rng.permutation(rows)).split(size)

    reward = RewardSettings(passes=3)
    plan = PhasePlan(
        "finetune", FinetuneSettings(batch_size=4), Discrete(2), 0.5, 3.0, 3.0, 1, never, never,
        "return", reward,
    )  # fmt: skip

    class Memory:
        def __len__(self):
            return 100

    memory = Memory()
    memory.shuffled = shuffled
    state = SimpleNamespace(shuffle=np.random.default_rng(0))
    batches = _batches(plan, state, memory, Rollout(np.arange(50, 60), np.empty(0)))
    assert [len(batch) for batch in batches] == [4, 4, 2] * 3
    for number in range(3):  # each time all of the rollout, in an order of its own
        drawn = torch.cat(batches[3 * number : 3 * number + 3])
        assert sorted(drawn.tolist()) == list(range(50, 60))
    assert torch.cat(batches[:3]).tolist() != torch.cat(batches[3:6]).tolist()
