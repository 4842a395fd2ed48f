"""Return by size: the order of sizes, what is drawn where, and a panel for each environment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from qpd.analysis.figure_style import new_figure, paper_style
from qpd.analysis.returns.plot_series import series_styles
from qpd.analysis.returns.policy_returns import policy_returns
from qpd.analysis.returns.return_by_size import (
    draw_returns_by_size,
    returns_by_size,
    returns_figure,
)
from qpd.analysis.runs.run_frame import run_frame
from tests.analysis.made_up_runs import make_run


@pytest.fixture
def table(tmp_path: Path) -> pd.DataFrame:
    """Sizes S and XXS of a PPO teacher at Breakout, an MLP of a DQN's elsewhere."""
    runs = []
    for size, best in (("S", 60.0), ("XXS", 40.0)):
        returns = {"teacher": [39.0, 41], "distilled": [best, best], "qat": [best - 8, best - 8]}
        runs.append(make_run(tmp_path / size, returns, changes=[f"student.size={size}"]))
    returns = {"teacher": [-90.0], "distilled": [-80.0], "qat": [-85.0]}
    other = {"algo": "dqn", "env_id": "Acrobot-v1"}
    runs.append(make_run(tmp_path / "m", returns, changes=["student.size=mlp-8"], **other))
    return returns_by_size(policy_returns(run_frame(runs)))


def test_sizes_are_in_the_grids_order_and_teachers_last(table: pd.DataFrame) -> None:
    breakout = table[table["env_id"].str.startswith("Breakout")]
    assert list(dict.fromkeys(breakout["size"])) == ["XXS", "S", "teacher"]


def test_what_is_drawn(table: pd.DataFrame) -> None:
    breakout = table[table["env_id"].str.startswith("Breakout")]
    with paper_style():
        for value, scale in (("mean", 1), ("relative", 100 / 40)):
            axes = new_figure().subplots()
            draw_returns_by_size(breakout, axes, series_styles(table), value)
            drawn = {box.get_label(): box[0].get_ydata(orig=False) for box in axes.containers}
            np.testing.assert_allclose(drawn["PPO, fp32"], [40 * scale, 60 * scale])
            np.testing.assert_allclose(drawn["PPO, 8-bit"], [32 * scale, 52 * scale])
            assert ("PPO teacher" in drawn) == (value == "mean")
            ticks = [text.get_text() for text in axes.get_xticklabels()]
            assert ticks == ["XXS", "S"] + (["teacher"] if value == "mean" else [])
            assert axes.get_ylim()[0] == 0
            # Where two stand at one size, neither hides the other.
            x = {box.get_label(): box[0].get_xdata(orig=False) for box in axes.containers}
            assert (np.abs(x["PPO, fp32"] - x["PPO, 8-bit"]) > 0.2).all()


def test_a_panel_for_each_environment(table: pd.DataFrame) -> None:
    with paper_style():
        figure = returns_figure(table)
        assert [axes.get_title() for axes in figure.axes] == [
            "Acrobot-v1",
            "BreakoutNoFrameskip-v4",
        ]
        legend = [text.get_text() for text in figure.legends[0].get_texts()]
        assert sorted(legend) == sorted(set(table["series"]))
        assert figure.axes[0].get_ylim()[1] < 0  # an axis of returns below 0 stays there
        # The share of a negative return means nothing: no panel.
        relative = returns_figure(table, "relative")
        assert [axes.get_title() for axes in relative.axes] == ["BreakoutNoFrameskip-v4"]
