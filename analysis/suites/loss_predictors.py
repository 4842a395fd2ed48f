"""Which number known without playing predicts the loss: weight range, SQNR, or changed actions?

QuaRL says that wider weights lose more. Width is no property of a policy: scale a ReLU layer up and
the next one down, and it changes, while the relative error does not. So rank correlations over
agents (Spearman) of three candidates with the share of R_fp32 - R_random that is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from qpd.analysis.figure_style import PAGE_WIDTH, new_figure, say_below, series_look
from qpd.analysis.returns.return_rows import ShownTable
from qpd.teachers.archive.algorithm import OFF_POLICY_ALGORITHMS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CANDIDATES = {
    "widest_range_per_sigma": "range / sigma, widest layer",
    "worst_sqnr_db": "SQNR of the worst layer, dB",
    "changed_actions": "actions changed",
}
REPLAY, NO_REPLAY = "replay", "on-policy and search"  # kinds of agents
_LEAST_AGENTS, _RESAMPLES = 5, 2000
_DRAWN = -20, 120  # percent


def loss_predictors(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rank correlation of each candidate with what is lost, by precision.

    A 95% percentile interval of 2,000 resamples of agents; a row for all agents, and one for each
    group that replays transitions (DQN, QR-DQN, DDPG, TD3, SAC, TQC) or does not.
    """
    frame = with_changed_actions(frame[frame["counted"]])
    replays = frame["algo"].isin(OFF_POLICY_ALGORITHMS)
    rows = []
    keys = ["precision", "scheme", "per"]
    for key, mine in frame.groupby(keys, dropna=False, sort=False):
        for group, part in (
            ("all", mine),
            (REPLAY, mine[replays[mine.index]]),
            (NO_REPLAY, mine[~replays[mine.index]]),
        ):
            for column in CANDIDATES:
                known = part[[column, "lost_percent"]].dropna()
                if len(known) < _LEAST_AGENTS:
                    continue
                value, low, high = _spearman(known[column].to_numpy(float),
                                             known["lost_percent"].to_numpy(float))  # fmt: skip
                rows.append(
                    {
                        **dict(zip(keys, key, strict=True)),
                        "agents": group,
                        "candidate": column,
                        "num_agents": len(known),
                        "spearman": value,
                        "low": low,
                        "high": high,
                    }
                )
    columns = [*keys, "agents", "candidate", "num_agents", "spearman", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def with_changed_actions(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with one number for flips of best actions and errors of continuous ones."""
    return frame.assign(changed_actions=frame["action_flips"].fillna(frame["action_error"]))


def predictors_table(table: pd.DataFrame) -> ShownTable:
    """Return the correlations as text."""
    rows = [
        [
            " ".join(part for part in (row.precision, row.scheme, row.per) if part),
            row.agents,
            CANDIDATES[row.candidate],
            str(row.num_agents),
            f"{row.spearman:+.2f} [{row.low:+.2f}, {row.high:+.2f}]",
        ]
        for row in table.itertuples()
    ]
    header = ["quantized", "agents", "candidate", "of", "rank correlation with the loss [95%]"]
    return ShownTable("what predicts the loss", header, rows)


def predictors_figure(frame: pd.DataFrame) -> Figure:
    """Draw what is lost over each candidate, a panel each; colours are algorithms."""
    frame = with_changed_actions(frame)
    figure = new_figure(PAGE_WIDTH, 2.5)
    axes = figure.subplots(1, len(CANDIDATES), sharey=True)
    for axis, (column, label) in zip(axes, CANDIDATES.items(), strict=True):
        for place, (algo, mine) in enumerate(frame.groupby("algo")):
            look = series_look(place)
            axis.scatter(mine[column], mine["lost_percent"].clip(*_DRAWN), s=7, label=algo,
                         color=look["color"], marker=look["marker"], linewidths=0)  # fmt: skip
        axis.set_xlabel(label)
    axes[0].set_ylabel("lost, % of R$_{fp32}$ - R$_{random}$")
    if beyond := int((~frame["lost_percent"].dropna().between(*_DRAWN)).sum()):
        least, most = _DRAWN
        say_below(figure, f"{beyond} outside {least} to {most}% are drawn at the nearest end")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return figure


def _spearman(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float]:
    value = _rank_correlation(first, second)
    if np.isnan(value):
        return value, value, value
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(_RESAMPLES):
        chosen = rng.integers(len(first), size=len(first))
        draws.append(_rank_correlation(first[chosen], second[chosen]))
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return value, float(low), float(high)


def _rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    ranks = [pd.Series(each).rank().to_numpy() for each in (first, second)]
    if any(np.ptp(each) == 0 for each in ranks):
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])
