"""Return against cost (bytes or microseconds), and the Pareto front of the policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.analysis.figure_style import NEUTRAL, error_lengths
from qpd.analysis.returns.environment_panels import panel_figure
from qpd.analysis.returns.plot_series import SeriesStyle, with_series
from qpd.analysis.returns.policy_returns import TEACHERS, final_students
from qpd.bench.device_record import NATURE_CNN, BenchRow, DeviceRecord
from qpd.bench.models import is_of_grid

_LABEL_WIDTH, _MARK_WIDTH = 0.035, 0.012  # as shares of the page
_PLACES = ("size", "parameters")  # students of custom widths differ in the latter alone
# Parameters of the layers that all of SB3's CnnPolicies share: the benchmark's teacher is one.
NATURE_CNN_PARAMETERS = 1_684_128

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame, Series


def pareto_front(costs: np.ndarray, returns: np.ndarray) -> np.ndarray:
    """Return which points are on the front, bool `[points]`; `costs` and `returns` are `[points]`.

    A point is on it unless another costs no more, returns no less and is better in one of the two.
    """
    costs, returns = np.asarray(costs, dtype=float), np.asarray(returns, dtype=float)
    no_worse = (costs[None] <= costs[:, None]) & (returns[None] >= returns[:, None])
    better = (costs[None] < costs[:, None]) | (returns[None] > returns[:, None])
    return np.asarray(~(no_worse & better).any(axis=1))


def pareto_bytes(table: DataFrame) -> DataFrame:
    """Return the policies of `policy_returns` whose bytes are known, with their cost.

    Columns: those of `with_series`, `cost` (bytes), `panel` (the environment) and `on_front`, which
    is decided within each environment.
    """
    known = final_students(table)
    known = known[known["size_bytes"].notna()]
    shown = with_series(known, _PLACES)
    return _with_front(shown.assign(cost=shown["size_bytes"], panel=shown["env_id"]))


def pareto_latency(table: DataFrame, devices: Sequence[DeviceRecord]) -> DataFrame:
    """Return a row per policy of `policy_returns`, measured device, runtime and thread count.

    A benchmark's row belongs to a policy if it has as many bits (the fewest of any layer) and the
    policy's size, or is named after its run; the teacher's row belongs to teachers of its size.
    Columns are those of `pareto_bytes`; `cost` is the median of one forward pass in microseconds,
    `panel` names environment and device.
    """
    import pandas as pd

    shown = with_series(final_students(table), _PLACES)
    rows: list[dict[str, Any]] = []
    for _, policy in shown.iterrows():
        for device in devices:
            for bench in device.rows:
                # Skipped, wrong and failed rows have no times.
                if bench.median_us is None or not _is_of(bench, policy):
                    continue
                measured = {
                    "device": device.device,
                    "runtime": bench.runtime,
                    "threads": bench.threads,
                    "cost": bench.median_us,
                    "panel": f"{policy['env_id']}, {device.device}",
                }
                rows.append(dict(policy) | measured)
    columns = [*shown.columns, "device", "runtime", "threads", "cost", "panel"]
    return _with_front(pd.DataFrame(rows, columns=columns))


def draw_pareto(rows: DataFrame, axes: Axes, styles: dict[str, SeriesStyle]) -> None:
    """Draw one panel of `pareto_bytes` or `pareto_latency`, the front as steps through its points.

    Of several runtimes the fastest is drawn. Marks that would hide each other are moved apart
    sideways, a little; the steps keep to the exact costs.
    """
    # Sorted by cost first, so that the cheapest row of each policy is the one that stays.
    rows = rows.sort_values("cost").drop_duplicates(["series", "size", "parameters", "runs"])
    front = rows[rows["on_front"]]
    # The last step goes on to the right edge: paying more buys no more there.
    end = 2.0 * rows["cost"].max()
    start = rows["cost"].min() / 1.5
    steps = [np.append(front["cost"], end), np.append(front["mean"], front["mean"].max())]
    axes.step(*steps, where="post", color=NEUTRAL, linewidth=0.8, zorder=0)
    rows = rows.assign(
        x=_apart(rows["cost"].to_numpy(dtype=float), np.log(end / start) * _panels(axes))
    )
    for name, mine in rows.groupby("series", sort=False):
        style = styles[str(name)].line() | {"linestyle": "", "capsize": 2, "label": str(name)}
        around = error_lengths(mine["mean"], mine["mean_low"], mine["mean_high"])
        axes.errorbar(mine["x"], mine["mean"], around, elinewidth=0.9, **style)
    _cost_axis(axes, start, end)
    _label_students(rows[rows["on_front"] & ~rows["policy"].isin(TEACHERS)], rows, axes)
    axes.set_xlabel("µs per forward pass" if "runtime" in rows else "bytes")
    axes.set_ylabel("return")


def _panels(axes: Axes) -> int:
    """Return how many panels share the page's width: in each, marks take as much more of it."""
    place = axes.get_subplotspec()
    return 1 if place is None else int(place.get_gridspec().ncols)


def _apart(costs: np.ndarray, span: float) -> np.ndarray:
    """Return sorted `costs` with those that lie nearly on each other spread over a log axis."""
    logs, spread = np.log(costs), costs.copy()
    cluster = np.cumsum(np.diff(logs, prepend=logs[:1]) > 1.2 * _MARK_WIDTH * span)
    for number in np.unique(cluster):
        near = np.flatnonzero(cluster == number)
        if len(near) > 1:
            turns = np.arange(len(near)) - (len(near) - 1) / 2
            spread[near] = np.exp(logs[near].mean() + _MARK_WIDTH * span * turns)
    return spread


def _label_students(students: DataFrame, rows: DataFrame, axes: Axes) -> None:
    """Name the front's students above their intervals, aslant; close ones share a label."""
    if students.empty:
        return
    names = students["size"].where(students["size"] != "custom", students["experiment"])
    students = students.assign(label=names).sort_values("mean")
    low, high = axes.get_ylim()
    # Room for the longest label above the highest interval.
    longest = students["label"].map(len).max()
    axes.set_ylim(low, high + min(0.45, 0.15 + 0.02 * longest) * (high - low))
    left, right = np.log(axes.get_xlim())
    width = _LABEL_WIDTH * _panels(axes)
    place = (np.log(students["x"]) - left) / (right - left)
    # A gap wider than a label starts a new cluster. On the front cost rises with return, so the
    # order by mean is that by cost.
    cluster = (place.diff() > width).cumsum()
    for _, near in students.groupby(cluster):
        text, best = ", ".join(dict.fromkeys(near["label"])), near.iloc[-1]
        # Above whatever else stands there, bars included.
        here = (np.log(rows["x"] / best["x"])).abs() < width / 2 * (right - left)
        top = rows.loc[here, "mean_high"].max()
        axes.annotate(
            text, (best["x"], top), (-2, 4), textcoords="offset points", rotation=35,
            rotation_mode="anchor", va="bottom", fontsize=6,
        )  # fmt: skip


def _cost_axis(axes: Axes, low: float, high: float) -> None:
    """Make a logarithmic axis with a few labels such as 500, 20k and 1M."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.set_xlim(low, high)
    subs = (1.0,) if high / low > 300 else (1.0, 3.0) if high / low > 30 else (1.0, 2.0, 5.0)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter(NullFormatter())


def pareto_left_out(
    table: DataFrame, by_bytes: DataFrame, by_latency: DataFrame | None
) -> dict[str, str]:
    """Return why policies of `policy_returns` are missing from the figures, by their runs' names.

    `by_latency` is None if no device was given.
    """
    reasons: dict[str, str] = {}
    for _, row in table.iterrows():
        name = f"{row['experiment']} ({row['policy']})"
        runs = set(row["runs"])
        if not _has(final_students(table), row["policy"], runs):
            reasons[name] = "not drawn, as phase 3 went on from it"
        elif not _has(by_bytes, row["policy"], runs):
            reasons[name] = "not in pareto_bytes, as its file was not kept"
        elif by_latency is not None and not _has(by_latency, row["policy"], runs):
            reasons[name] = "not in pareto_latency, as no device measured it or its size and bits"
    return reasons


def _has(table: DataFrame, policy: str, runs: set[str]) -> bool:
    mine = table[table["policy"] == policy]
    return any(not runs.isdisjoint(others) for others in mine["runs"])


def pareto_figure(table: DataFrame) -> Figure:
    """Draw `pareto_bytes(...)` or `pareto_latency(...)`, one panel per environment and device."""
    return panel_figure(table, draw_pareto, by="panel")


def _with_front(table: DataFrame) -> DataFrame:
    on_front = table["cost"].astype(bool)
    for _, rows in table.groupby("panel"):
        on_front[rows.index] = pareto_front(rows["cost"].to_numpy(), rows["mean"].to_numpy())
    return table.assign(on_front=on_front).sort_values(["panel", "cost"], ignore_index=True)


def _is_of(bench: BenchRow, policy: Series) -> bool:
    # A NatureCNN is as fast whatever it learned; a teacher of vectors is far smaller.
    if policy["policy"] in TEACHERS:
        name = f"teacher {policy['teacher']} {policy['env_id']}"
        if bench.model in (name, f"{name} {policy['teacher_sha256'][:8]}"):
            return True
        is_nature_cnn = bench.model == "teacher" or bench.size == NATURE_CNN
        return is_nature_cnn and policy["parameters"] > NATURE_CNN_PARAMETERS
    # Both are the fewest bits of any layer.
    if bench.weight_bits != policy["weight_bits"]:
        return False
    if bench.model in policy["names"]:
        return True
    return bench.size == policy["size"] and is_of_grid(bench.size, policy["parameters"])
