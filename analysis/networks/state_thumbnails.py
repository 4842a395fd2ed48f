"""Thumbnails of typical states around a UMAP, each with a line to its point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.analysis.figure_style import NEUTRAL, PAGE_WIDTH, new_figure
from qpd.analysis.networks.feature_umap import THIRDS, FeatureMap, draw_embedding, panel_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

_ROW_HEIGHT = 0.95  # inches


def typical_states(places: np.ndarray, count: int, seed: int = 0) -> list[int]:
    """Return the rows of `places` `[states, 2]` nearest to `count` k-means centres, sorted."""
    from sklearn.cluster import KMeans

    # A state nearest to a centre, as the centre itself is a point between states that nobody
    # played.
    centres = KMeans(count, n_init=4, random_state=seed).fit(places).cluster_centers_
    distances = np.linalg.norm(places[:, None] - centres[None], axis=2)
    return sorted({int(row) for row in distances.argmin(0)})


def draw_thumbnails(features: FeatureMap, clusters: int = 8, seed: int = 0) -> Figure | None:
    """Draw the latest frame of a typical state of each cluster, runs below each other.

    Returns None where no run observes frames. Call it inside `paper_style()`.
    """
    runs = [run for run in features.summary.itertuples() if run.run in features.frames]
    if not runs:
        return None
    height = _ROW_HEIGHT * -(-clusters // 2) + 0.35
    figure = new_figure(PAGE_WIDTH, height * len(runs) + 0.25)
    axes = figure.subplots(len(runs), squeeze=False).ravel()
    for ax, run in zip(axes, runs, strict=True):
        table = features.table[features.table["run"] == run.run].reset_index(drop=True)
        draw_embedding(ax, table)
        ax.set_title(panel_title(run))
        places = table[["x", "y"]].to_numpy()
        _draw_around(ax, table, features.frames[run.run], typical_states(places, clusters, seed))
    handles, labels = axes[0].get_legend_handles_labels()
    title = f"{features.summary['critic'].iloc[0]}'s value"
    figure.legend(handles, labels, title=title, ncols=3, loc="outside lower center", markerscale=2)
    return figure


def _draw_around(ax: Any, table: DataFrame, frames: np.ndarray, rows: list[int]) -> None:
    """Draw half of the frames left of the points and half right, ordered by height."""
    # By side and then by height, the lines to the points hardly cross.
    by_x = sorted(rows, key=lambda row: table["x"][row])
    half = len(by_x) // 2
    low, high = table["x"].min(), table["x"].max()
    ax.set_xlim(low - 0.75 * (high - low), high + 0.75 * (high - low))
    for side, members in ((0.09, by_x[:half]), (0.91, by_x[half:])):
        members.sort(key=lambda row: table["y"][row])
        heights = (np.arange(len(members)) + 0.5) / len(members)
        for row, height in zip(members, heights, strict=True):
            _draw_frame(ax, table.iloc[row], frames[row], (side, height))


def _draw_frame(ax: Any, state: Any, frame: np.ndarray, place: tuple[float, float]) -> None:
    """Draw one frame at `place` (fractions of the axes), with its value and action below."""
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    colour = THIRDS[state["third"]][0]
    box = AnnotationBbox(
        OffsetImage(np.stack([frame] * 3, axis=2), zoom=0.62, interpolation="nearest"),
        (state["x"], state["y"]),
        xybox=place,
        boxcoords="axes fraction",
        pad=0.1,
        bboxprops={"edgecolor": colour, "linewidth": 1.2},
        arrowprops={"arrowstyle": "-", "color": NEUTRAL, "linewidth": 0.6},
    )
    ax.add_artist(box)
    ax.plot(state["x"], state["y"], "o", ms=3.5, mfc="white", mec="black", mew=0.8, zorder=5)
    ax.annotate(
        f"{state['value']:.2f}, {state['action']}",
        place,
        xycoords="axes fraction",
        xytext=(0, -29),
        textcoords="offset points",
        ha="center",
        va="top",
        fontsize=6,
    )
