"""A teacher's training curve: returns of the games played while it learned.

Read from the `*.monitor.csv` files that Stable-Baselines3's Monitor and `qpd train` write.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qpd.analysis.figure_style import (
    COLOURS,
    error_lengths,
    new_figure,
    paper_style,
    save_tables,
    say_below,
)
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TargetError
from qpd.files.bounded_read import read_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

_NAME = re.compile(r"(\d+)\.monitor\.csv")
# The zoo puts Monitor below its frame-skip wrapper: a game's length is in emulator frames.
_MAX_MONITOR_BYTES = 256 << 20  # ten million games
_FRAME_SKIP = 4
# The RL Zoo numbers its files by environment; QPD once did by the step that it resumed from, which
# is at least this many.
_LEAST_STEPS = 1000
_BINS = 100


@dataclass(frozen=True)
class TrainingCurve:
    """Games in the order they ended, one row each: steps (agent steps so far), return, length.

    `resumed_at` are the steps at which an interrupted training was resumed, of files that are named
    by them.
    """

    games: DataFrame
    resumed_at: tuple[int, ...]

    def binned(self) -> DataFrame:
        """Bin the games into at most 100 equal spans: steps (the end), mean, low, high, games.

        `low` and `high` are the 10th and 90th percentile of the games, not an interval of the mean.
        """
        import numpy as np
        import pandas as pd

        steps = self.games["steps"].to_numpy()
        edges = np.linspace(0, steps.max(), _BINS + 1)
        place = np.clip(np.searchsorted(edges, steps, side="left"), 1, _BINS)
        grouped = self.games.groupby(edges[place].round().astype(int))["return"]
        table = pd.DataFrame(
            {
                "mean": grouped.mean(),
                "low": grouped.quantile(0.1),
                "high": grouped.quantile(0.9),
                "games": grouped.size(),
            }
        )
        return table.rename_axis("steps").reset_index()


def training_curve(folder: Path, num_timesteps: int | None = None) -> TrainingCurve | None:
    """Read the training curve from an RL Zoo folder, up to `num_timesteps` agent steps.

    Games played after the checkpoint from which an interrupted training was resumed are left out.
    Returns None if the folder has no monitor files. Raises TargetError for one that cannot be read.
    """
    import pandas as pd

    starts: dict[int, list[DataFrame]] = {}
    for path in sorted(folder.glob("*.monitor.csv")):
        match = _NAME.fullmatch(path.name)
        number = int(match[1]) if match else 0
        starts.setdefault(number if number >= _LEAST_STEPS else 0, []).append(_read(path))
    begins = sorted(n for n in starts if num_timesteps is None or n < num_timesteps)
    if not begins:
        return None
    parts = []
    for begin, end in zip(begins, [*begins[1:], num_timesteps], strict=True):
        games = pd.concat(starts[begin]).sort_values("ended", kind="stable")
        # Monitor files record no steps. Lengths in the order games ended add up to them, but for
        # the games that had not ended yet.
        games["steps"] = begin + games["length"].cumsum()
        # Up to where the next part resumed: later games were played again.
        parts.append(games if end is None else games[games["steps"] <= end])
    games = pd.concat(parts, ignore_index=True)[["steps", "return", "length"]]
    return TrainingCurve(games, tuple(begins[1:])) if len(games) else None


def _read(path: Path) -> DataFrame:
    """Read a monitor file: columns return, length (agent steps), ended (seconds since 1970)."""
    import pandas as pd

    try:
        file = io.StringIO(read_file(path, _MAX_MONITOR_BYTES).decode("utf-8"))
        header = json.loads(file.readline().removeprefix("#"))
        began = float(header["t_start"])
        table = pd.read_csv(file)
        table = table[["r", "l", "t"]].apply(pd.to_numeric)
        if "NoFrameskip" in str(header.get("env_id")) and header.get("unit") != "agent steps":
            # `qpd train` writes agent steps already, and says so in the header.
            table["l"] //= _FRAME_SKIP
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TargetError(
            f"{path}: is not a monitor file of Stable-Baselines3 ({error})",
            ErrorCode.TEACHER_SETTINGS,
        ) from error
    table = table.rename(columns={"r": "return", "l": "length", "t": "ended"})
    return table.assign(ended=table["ended"] + began)


def draw_training(curve: TrainingCurve, final: tuple[float, float, float] | None) -> Figure:
    """Draw mean return against steps, with its 10th to 90th percentile; inside `paper_style()`.

    `final` is the finished agent's return with its interval: mean, low, high.
    """
    figure = new_figure(height=2.2)
    ax = figure.subplots()
    table = curve.binned()
    millions = table["steps"] / 1e6
    ax.fill_between(millions, table["low"], table["high"], color=COLOURS[0], alpha=0.2, linewidth=0)
    ax.plot(millions, table["mean"], color=COLOURS[0], label="while training")
    if final is not None:
        mean, low, high = final
        error = error_lengths(mean, low, high)
        ax.errorbar([millions.iloc[-1]], [mean], error, color=COLOURS[1], marker="s", capsize=2,
                    linestyle="none", label="afterwards, 95% interval")  # fmt: skip
    ax.set(xlabel="agent steps (millions)", ylabel="return")
    ax.legend(loc="upper left")
    say_below(figure, "band: 10th to 90th percentile of games")
    return figure


def write_training_curve(
    folder: Path, curve: TrainingCurve, final: tuple[float, float, float] | None
) -> None:
    """Write training.png, the figure of `draw_training`, and training.csv, its spans."""
    with paper_style():
        figure = draw_training(curve, final)
        figure.savefig(
            folder / "training.png",
            metadata={"Software": None},
            bbox_inches="tight",
            pad_inches=0.05,
        )
    save_tables({"training": curve.binned()}, folder)
