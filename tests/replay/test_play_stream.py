"""What a play stream makes of a rollout, and the arithmetic of its teacher."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from qpd.environments.transition import StepOutcome, TransitionBatch
from qpd.phases.preparation import prepare
from qpd.recipe.training_phases import RewardSettings
from qpd.replay import play_stream
from qpd.replay.play_stream import PlayStream
from tests.tiny_run import recipe_of


def step(reward: float) -> TransitionBatch:
    """One step of a game that ends, of which the critic says 0."""
    one = np.ones(1)
    outcome = StepOutcome(one, one, one * reward, one > 0, one < 0, one * reward)
    zero = np.zeros(1, np.int64)
    return TransitionBatch(np.zeros((1, 3)), zero, zero, torch.zeros(1, 2), torch.zeros(1), outcome)


@pytest.mark.parametrize(
    ("is_atari", "wanted"),
    # Signs 1, -1, 0: mean 0, deviation 0.8165. Rewards 4, -2, 0: mean 2/3, deviation 2.4944.
    [(True, [1.2247, -1.2247, 0.0]), (False, [1.3363, -1.0690, -0.2673])],
)
def test_advantages_are_normalised_and_ataris_rewards_are_signs(
    is_atari: bool, wanted: list[float]
) -> None:
    stream: Any = PlayStream.__new__(PlayStream)
    noted: list[np.ndarray] = []
    rows = iter([np.array([7]), np.array([8]), np.array([9])])
    stream.env = SimpleNamespace(num_envs=1, spec=SimpleNamespace(is_atari=is_atari))
    stream.memory = SimpleNamespace(
        add=lambda batch: next(rows), set_advantages=lambda rows, found: noted.extend([rows, found])
    )
    stream._play = lambda *_: iter([step(4.0), step(-2.0), step(0.0)])
    rollout = stream.rollout(None, RewardSettings())
    assert noted[0].tolist() == rollout.rows.tolist() == [7, 8, 9]
    assert noted[1].tolist() == pytest.approx(wanted, abs=1e-4)
    assert rollout.game_returns.tolist() == [4.0, -2.0, 0.0]


@pytest.mark.parametrize(
    ("agent", "algo", "wanted"), [("dqn", "dqn", "fp32"), ("teacher", "ppo", "auto")]
)
def test_q_values_are_played_in_float32(
    agent: str,
    algo: str,
    wanted: str,
    request: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever the processor has bfloat16."""
    asked = []
    monkeypatch.setattr(
        play_stream,
        "compute_precision",
        lambda precision, _: asked.append(precision) or torch.float32,
    )
    recipe = recipe_of(request.getfixturevalue(f"{agent}_zip"), teacher={"algo": algo})
    prepared = prepare(recipe, "cpu")
    stream = PlayStream(recipe, prepared.teacher, prepared.environment, tmp_path / "frames")
    stream.close()
    assert asked == [wanted]
