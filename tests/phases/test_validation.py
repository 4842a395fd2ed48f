"""The divergence of a student that acts, on the states of its own validation games."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from qpd.environments.policy import FunctionPolicy, network_policy
from qpd.evaluation import states_of_games
from qpd.phases.preparation import prepare
from qpd.phases.validation import Validation
from qpd.runs.progress import SilentProgress
from tests.tiny_run import recipe_of


@pytest.fixture
def validate(teacher_zip: Path):
    recipe = recipe_of(teacher_zip, student={"size": "mlp-16", "sharpness": 2.0})
    prepared = prepare(recipe, "cpu")
    made = Validation(recipe, prepared, SilentProgress())
    yield made, prepared.teacher
    made.close()


def test_a_student_as_sharp_as_it_should_be_diverges_by_nothing(validate) -> None:
    """At a sharpness of 2 its logits are twice the teacher's."""
    made, teacher = validate
    assert made(network_policy(teacher, teacher.actions, 2.0), 3.0).divergence == pytest.approx(
        0.0, abs=1e-6
    )
    assert made(network_policy(teacher, teacher.actions, 1.0), 3.0).divergence > 1e-3


def test_it_is_the_mean_over_games_of_the_mean_over_a_games_states(validate) -> None:
    made, teacher = validate
    met: list[np.ndarray] = []

    def uniform(observations: np.ndarray) -> np.ndarray:
        met.append(observations.copy())
        return np.zeros((len(observations), 2), np.float32)

    found = made(FunctionPolicy(uniform, teacher.actions), 3.0)
    # Few enough games that every state is in the sample: KL(p || 1/2) = log 2 - H(p), where p is
    # Eq. 1's label, at a temperature of 3.
    states = np.concatenate(met)
    lengths = found.games.lengths
    assert lengths.max() * len(lengths) < states_of_games.HELD_OUT_STATES
    assert len(set(lengths.tolist())) > 1
    p = torch.softmax(teacher(torch.from_numpy(states)).labels / 3.0, 1)
    each = np.log(2.0) + (p * p.log()).sum(1).numpy()
    # All games run side by side, so that those of a step are those that last longer.
    game = np.concatenate([np.flatnonzero(lengths > step) for step in range(lengths.max())])
    by_hand = np.mean([each[game == number].mean() for number in range(len(lengths))])
    assert found.divergence == pytest.approx(float(by_hand), rel=1e-4)
    assert found.divergence != pytest.approx(float(each.mean()), rel=1e-4)


def test_a_larger_sample_is_uniform_and_changes_no_game(
    validate, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, teacher = validate
    whole = made(network_policy(teacher, teacher.actions, 1.0), 3.0)
    monkeypatch.setattr(states_of_games, "HELD_OUT_STATES", 32)
    part = made(network_policy(teacher, teacher.actions, 1.0), 3.0)
    assert np.array_equal(part.games.returns, whole.games.returns)
    assert part.divergence == pytest.approx(whole.divergence, rel=0.6)
    assert (
        part.divergence == made(network_policy(teacher, teacher.actions, 1.0), 3.0).divergence
    )  # the same every time
