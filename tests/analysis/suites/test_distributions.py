"""Distributions of an agent's layers: numbers by hand, and the command on a real agent."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN

from qpd.analysis.suites.distributions import (
    LayerDistribution,
    distribution_rows,
    distribution_tables,
)
from tests.command_line import call

torch.set_num_threads(1)


def test_numbers_by_hand() -> None:
    # Weights 3, -1, 1, -3: range 6, sigma sqrt(5). Columns: (3, 1) and (-1, -3); with 0 in their
    # ranges both are 3 wide. Of four inputs one is 0; they range over 4 with a sigma of sqrt(2).
    weights = np.array([[3.0, -1.0], [1.0, -3.0]])
    layer = LayerDistribution("linear1", weights, np.array([[0.0, 2.0], [4.0, 2.0]]), {})
    (row,) = distribution_rows("agent", [layer]).to_dict("records")
    assert row["weight_range_per_sigma"] == pytest.approx(6 / 5**0.5)
    assert row["input_range_per_sigma"] == pytest.approx(4 / 2**0.5)
    assert (row["input_zeros"], row["columns_apart"]) == (0.25, 1.0)


def test_the_command_plays_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = DQN("MlpPolicy", "CartPole-v1", buffer_size=10, seed=3, device="cpu")
    with torch.no_grad():  # one input column a hundred times as wide as the others
        agent.policy.q_net.q_net[0].weight[:, 2].mul_(100.0)
    agent.save(tmp_path / "dqn-CartPole-v1.zip")
    code, out, err = call(
        capsys, "analyze", "weights", str(tmp_path / "dqn-CartPole-v1.zip"), "-o",
        str(tmp_path / "out"), "-q", "--json",
    )  # fmt: skip
    assert code == 0, err
    rows = json.loads(out)["weights"]
    assert [row["layer"] for row in rows] == ["linear1", "linear2", "actor"]
    assert 80 < rows[0]["columns_apart"] < 130
    # One range for all leaves the narrow columns nothing; one for each does not care.
    assert rows[0]["sqnr_4_column"] > rows[0]["sqnr_4_tensor"] - 1
    assert rows[1]["input_zeros"] > 0.1  # behind a ReLU
    assert (tmp_path / "out" / "weights_dqn-CartPole-v1.svg").stat().st_size > 1000


def test_each_agent_has_a_table() -> None:
    layer = LayerDistribution("actor", np.eye(2), np.eye(2),
                              {(bits, per): 30.0 for bits in (8, 4)
                               for per in ("tensor", "channel", "column")})  # fmt: skip
    import pandas as pd

    table = pd.concat([distribution_rows(name, [layer]) for name in ("one", "two")])
    shown = distribution_tables(table)
    assert [each.title.partition(":")[0] for each in shown] == ["one", "two"]
    assert shown[0].rows[0][-1] == "30.0"
