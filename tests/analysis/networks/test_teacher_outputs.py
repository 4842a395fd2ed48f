"""Teachers' outputs before and after softmax."""

from __future__ import annotations

from math import log
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from stable_baselines3 import DQN, PPO

from qpd.analysis.figure_style import paper_style
from qpd.analysis.networks.teacher_outputs import draw_outputs, softmax_sharpness, teacher_outputs
from qpd.runs.target import TargetError

torch.set_num_threads(1)


def test_sharpness_by_hand() -> None:
    # softmax([0, ln 3]) = [1/4, 3/4]; at tau 1/2 the odds are 1 : 9.
    outputs = np.array([[0.0, log(3.0)], [5.0, 5.0]], np.float32)
    best, entropy = softmax_sharpness(outputs, 1.0)
    np.testing.assert_allclose(best, [0.75, 0.5], rtol=1e-6)
    expected = -(0.25 * log(0.25) + 0.75 * log(0.75)) / log(2.0)
    np.testing.assert_allclose(entropy, [expected, 1.0], rtol=1e-6)
    np.testing.assert_allclose(softmax_sharpness(outputs, 0.5)[0], [0.9, 0.5], rtol=1e-6)


@given(
    arrays(np.float32, (3, 4), elements=st.floats(-1e3, 1e3, width=32)),
    st.floats(0.01, 100.0),
    st.floats(1.0, 10.0),
)
def test_a_higher_temperature_is_flatter(
    outputs: np.ndarray, temperature: float, factor: float
) -> None:
    best, entropy = softmax_sharpness(outputs, temperature)
    flat_best, flat_entropy = softmax_sharpness(outputs, temperature * factor)
    assert (flat_best <= best + 1e-9).all() and (flat_entropy >= entropy - 1e-9).all()
    assert (entropy >= -1e-9).all() and (entropy <= 1.0 + 1e-9).all()


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("teachers")
    made = []
    for name, kind, settings in (("ppo", PPO, {"n_steps": 8, "batch_size": 8}), ("dqn", DQN, {})):
        path = folder / f"{name}-CartPole-v1.zip"
        kind("MlpPolicy", "CartPole-v1", seed=0, device="cpu", **settings).save(path)
        made.append(str(path))
    return made


def test_tables_and_figure(agents: list[str]) -> None:
    found = teacher_outputs(agents, 60, (0.1, 1.0, 5.0))
    assert len(found.outputs) == 2 * 60 * 2
    assert len(found.softmax) == 2 * 60 * 3
    assert list(found.outputs["algo"].unique()) == ["ppo", "dqn"]
    flatter = found.softmax.groupby(["teacher", "temperature"])["entropy"].mean().unstack()
    assert (flatter[0.1] < flatter[1.0]).all() and (flatter[1.0] < flatter[5.0]).all()
    with paper_style():
        figure = draw_outputs(found)
    axes = figure.axes
    assert [ax.get_xlabel() for ax in axes[::3]] == ["logit", "Q-value"]
    assert [ax.get_title(loc="left").split(":")[0] for ax in axes[::3]] == ["PPO", "DQN"]
    assert [len(ax.lines) for ax in axes[1::3]] == [3, 3]


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_a_temperature_must_be_positive(temperature: float, agents: list[str]) -> None:
    with pytest.raises(TargetError, match="needs a tau above 0"):
        teacher_outputs(agents, 60, (1.0, temperature))


def test_an_agent_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file or folder"):
        teacher_outputs([str(tmp_path / "none.zip")], 60)
