"""What the phases hand on of a recipe: settings that no whole run would tell apart."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qpd.numerics.random_seeds import seed_for
from qpd.phases import distill, evaluate, finetune, quantize, validation
from qpd.phases.preparation import prepare
from qpd.phases.student_run import open_student
from qpd.phases.whole_run import run_all_phases
from qpd.replay.sample import ReplaySample
from qpd.runs.run_directory import RunDirectory
from qpd.students import Student, architecture_for
from tests.tiny_run import Follower, Interrupt, recipe_of, work


def test_input_ranges_reach_5_percent_beyond_what_was_seen() -> None:
    seen = (torch.tensor([0.0, -1.0]), torch.tensor([1.0, 3.0]))
    low, high = distill.input_range(types.SimpleNamespace(observation_range=lambda: seen))
    torch.testing.assert_close(low, torch.tensor([-0.05, -1.2]))
    torch.testing.assert_close(high, torch.tensor([1.05, 3.2]))


def test_phase_2_calibrates_as_the_recipe_says(
    teacher_zip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, Any] = {}
    samples = []

    def calibrate(simulation: Any, observations: torch.Tensor, percentile: float) -> None:
        said.update(percentile=percentile, count=len(observations))
        samples.append(observations.clone())
        said["low"] = simulation.student.input_low.clone()

    monkeypatch.setattr(quantize, "equalize", lambda n, o, strength: said.update(strength=strength))
    monkeypatch.setattr(quantize, "calibrate", calibrate)
    moved = (torch.full((4,), -7.0), torch.full((4,), 7.0))
    monkeypatch.setattr(quantize, "input_range", lambda memory: moved)
    settings = {"calibration_percentile": 99.5, "equalization": 0.25, "calibration_samples": 100}
    short = {"distill": {"epochs": 1}, "finetune": {"epochs": 0}}
    recipe = recipe_of(teacher_zip, quantize=settings, **short)
    work(tmp_path / "run", recipe, Follower())
    assert said["percentile"] == 99.5 and said["strength"] == 0.25 and said["count"] == 100
    # Phase 1 began with the teacher's play alone: the range is that of the memory now.
    assert torch.equal(said["low"], moved[0])


def plan_and_state(path: Path, recipe: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Return what phase 3 begins with."""
    found: list[Any] = []

    def stop(members: Any, play: Any, progress: Any) -> None:
        found.extend(members[0][1:])
        raise Interrupt

    monkeypatch.setattr(finetune, "run_phase", stop)
    with pytest.raises(Interrupt):
        work(path, recipe, Follower())
    return found[0], found[1]


def test_phase_3_must_beat_what_it_begins_with(
    teacher_zip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(teacher_zip, student={"sharpness": 2.0}, distill={"epochs": 1})
    plan, state = plan_and_state(tmp_path / "run", recipe, monkeypatch)
    assert state.best_score is not None and state.best_epoch == 0
    assert all(torch.equal(state.best[k], v) for k, v in state.module.state_dict().items())
    assert plan.select == "divergence"
    # Eq. 1's temperature is in the head already, with the sharpness.
    assert (plan.teacher_temperature, plan.student_temperature) == (3.0, 6.0)
    with torch.no_grad():
        state.module.activation_ranges.fill_(-1.0)
    plan.after_update()
    assert (state.module.activation_ranges > 0).all()


def test_with_rewards_the_highest_return_is_chosen(
    teacher_zip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(
        teacher_zip, distill={"epochs": 1}, finetune={"epochs": 1, "reward": {"rollout": 64}}
    )
    assert recipe.evaluation.select == "divergence"
    assert plan_and_state(tmp_path / "run", recipe, monkeypatch)[0].select == "return"


def test_validation_and_evaluation_play_other_games(
    teacher_zip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs are chosen by games that are not reported."""
    seeds: dict[str, set[int]] = {"validation": set(), "evaluation": set()}
    for module, name in ((validation, "validation"), (evaluate, "evaluation")):
        real = module.evaluate

        def spy(policy, env, count, rule, seed, *on, real=real, name=name):
            seeds[name].add(seed)
            return real(policy, env, count, rule, seed, *on)

        monkeypatch.setattr(module, "evaluate", spy)
    short = {"distill": {"epochs": 1}, "finetune": {"epochs": 1}}
    run_all_phases(recipe_of(teacher_zip, **short), tmp_path / "run", Follower())
    assert seeds == {name: {seed_for(3, name)} for name in seeds}


def test_the_calibration_sample_is_drawn_by_the_seed(teacher_zip: Path) -> None:
    none = torch.zeros(0)
    memory: Any = types.SimpleNamespace(
        transition_rows=lambda: np.arange(1000),
        gather=lambda rows: ReplaySample(rows, none, none, none, none, none),
    )
    recipe = recipe_of(teacher_zip)
    drawn = [
        quantize._calibration_sample(recipe.model_copy(update={"seed": seed}), memory)
        for seed in (1, 1, 2)
    ]
    assert len(drawn[0]) == 128 and torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])


def test_the_critic_begins_at_the_teachers_values() -> None:
    network = Student(architecture_for("mlp-8", (2,), 2), 0)
    before = network.critic.weight.detach().clone()
    seen = (torch.zeros(2), torch.ones(2))
    memory = types.SimpleNamespace(observation_range=lambda: seen, value_moments=lambda: (5.0, 2.0))
    distill._fit_ranges(network, types.SimpleNamespace(memory=memory))
    assert network.critic.bias.tolist() == [5.0]
    torch.testing.assert_close(network.critic.weight.detach(), 2.0 * before)
    torch.testing.assert_close(network.input_high, torch.full((2,), 1.05))


def test_the_teacher_is_evaluated_at_the_students_sharpness_too(
    teacher_zip: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(teacher_zip, student={"sharpness": 2.0})
    with RunDirectory.create(tmp_path / "run", recipe) as run:
        with open_student(run, prepare(recipe, "cpu"), Follower()) as (student, _):
            found = [(each.name, each.rule.sharpness) for each in evaluate._entrants(student)]
    assert found == [("teacher", 1.0), ("teacher_sharpened", 2.0)]
