"""The paper's Fig. 5: UMAP of the last shared layer, coloured by low, medium, high critic value.

One panel per run. Runs with the same teacher are shown the same states, so a student trained with
the auxiliary critic loss (lambda 0.5) can be compared with one trained without it (lambda 1).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from qpd.actions import ActingRule, ActionSpace, Box, Discrete
from qpd.analysis.figure_style import COLUMN_WIDTH, PAGE_WIDTH, as_label, new_figure
from qpd.analysis.networks.played_states import PlayedStates, play_states
from qpd.environments.registry import action_names
from qpd.environments.source import EnvironmentSource
from qpd.runs.run_directory import RunDirectory
from qpd.runs.target import TargetError, load_target
from qpd.student_files.distilled import load_student
from qpd.student_files.origin import student_actions
from qpd.students import Student

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

Critic = Literal["teacher", "student"]
THIRDS = {"low": ("#56B4E9", "o"), "medium": ("#009E73", "s"), "high": ("#D55E00", "^")}
NEIGHBOURS = 10  # nearest neighbours that `neighbours_alike` looks at
UMAP_NEIGHBOURS = 15  # that UMAP places a state beside, itself among them


@dataclass(frozen=True)
class FeatureMap:
    """The data behind the figures.

    `table` has one row per run and state: run, actor_weight (lambda of phase 1), state, x, y,
    value, third (`low`, `medium`, `high` of the run's values), teacher_value, student_value,
    action (the student's best; of several numbers one text).
    `summary` has one row per run: run, actor_weight, critic, states, alike (share of a state's 10
    nearest neighbours in the layer that fall in its third; 1/3 by chance).
    `frames` maps a run to each state's latest frame, uint8 `[states, 84, 84]`; runs on vector
    observations have no entry.
    """

    table: DataFrame
    summary: DataFrame
    frames: dict[str, np.ndarray]


def feature_map(
    runs: Sequence[Path],
    num_states: int = 2000,
    *,
    critic: Critic = "teacher",
    seed: int = 0,
    games: int = 16,
    thinning: int = 16,
) -> FeatureMap:
    """Play with each run's teacher and embed its distilled student's last shared activations.

    The colours are the teacher's values by default: a student that was distilled with lambda 1 has
    a critic head that never learned. `games` and `thinning` are those of `play_states`. Raises
    RunDirectoryError, StudentFileError, TargetError, TeacherError or EnvironmentConfigError, one
    line each.
    """
    import pandas as pd

    # Open everything before playing: a wrong path fails at once, not after minutes of play.
    opened = [RunDirectory.open(path, read_only=True) for path in runs]
    students = [load_student(run.distilled_file) for run in opened]
    played: dict[tuple[str, EnvironmentSource, int | None], PlayedStates] = {}
    tables, summaries, frames = [], [], {}
    for run, student in zip(opened, students, strict=True):
        target = load_target(str(run.path), "teacher", None, "cpu")
        assert target.teacher is not None
        # The file's digest rather than its path: forks and seeds name the same teacher in
        # different ways.
        key = (target.teacher.sha256, target.environment, target.max_frames)
        if key not in played:
            played[key] = play_states(
                target.teacher,
                target.environment,
                num_states,
                seed=seed,
                games=games,
                thinning=thinning,
                max_frames=target.max_frames,
            )
        states = played[key]
        name = str(run.path)
        weight = run.recipe.distill.actor_weight_for(target.teacher.has_critic)
        features, columns = _run_student(student, student_actions(run.distilled_file), states)
        values = columns[f"{critic}_value"]
        if len(values) > 1 and np.ptp(values) == 0.0:
            raise TargetError(
                f"{name}: the {critic} gives all states the same value: there is nothing to colour"
            )
        thirds = value_thirds(values)
        x, y = embed(features, seed).T
        about = {"run": name, "actor_weight": weight}
        places = {"state": np.arange(num_states), "x": x, "y": y, "value": values, "third": thirds}
        tables.append(pd.DataFrame(about | places | columns))
        # In the layer itself, not in the plane: UMAP distorts distances, and the number must not
        # depend on its seed.
        alike = neighbours_alike(features, thirds)
        summaries.append(about | {"critic": critic, "states": num_states, "alike": alike})
        if student.architecture.is_image:
            frames[name] = states.observations[:, -1]
    return FeatureMap(pd.concat(tables, ignore_index=True), pd.DataFrame(summaries), frames)


@torch.no_grad()
def _run_student(
    student: Student, actions: ActionSpace, states: PlayedStates
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return features float32 `[states, width]`, and the table's columns of values and actions."""
    parts = []
    # In batches, which bounds the memory that activations take.
    for rows in torch.from_numpy(states.observations).split(256):
        features = student.features(rows)
        told = student(rows)
        parts.append((features, told.values, told.actor))
    hidden, values, outputs = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
    best = actions.act(outputs, ActingRule("greedy"), np.random.default_rng(0))
    columns = {
        "teacher_value": states.values,
        "student_value": values,
        "action": action_texts(actions, best, states.env_id),
    }
    return hidden, columns


def action_texts(actions: ActionSpace, taken: np.ndarray, env_id: str) -> np.ndarray:
    """Return a button's name or a number for each of `taken` `[states, ...]`; several with `/`."""
    if isinstance(actions, Discrete):
        names = action_names(env_id)
        return taken if names is None else np.array(names)[taken]
    number = "{:.2f}" if isinstance(actions, Box) else "{}"
    return np.array(["/".join(map(number.format, row.reshape(-1))) for row in taken])


def embed(features: np.ndarray, seed: int = 0) -> np.ndarray:
    """Embed `[states, width]` in the plane by UMAP (McInnes et al. 2018): float32 `[states, 2]`."""
    points = torch.from_numpy(features)
    # Not by matrix products: rounding would mix up points that lie close together.
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distances.topk(min(UMAP_NEIGHBOURS, len(points)), largest=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportWarning)  # the variant that needs TensorFlow
        import umap
    # A seed makes UMAP single-threaded, with a warning unless n_jobs says so too. PCA as the start
    # is deterministic and keeps the global layout. Its numba code compiles in every process: some
    # 7 seconds of a core, whatever the number of states, and 12 if it searches neighbours itself.
    mapper = umap.UMAP(
        n_neighbors=UMAP_NEIGHBOURS,
        min_dist=0.1,
        init="pca",
        random_state=seed,
        n_jobs=1,
        precomputed_knn=(nearest.indices.numpy(), nearest.values.numpy()),
    )
    with warnings.catch_warnings():
        # Other points cannot be placed on this map later, and nobody does.
        warnings.filterwarnings("ignore", "precomputed_knn", UserWarning)
        embedded: np.ndarray = mapper.fit_transform(features)
    return embedded


def value_thirds(values: np.ndarray) -> np.ndarray:
    """Return `low`, `medium` or `high` for each of `values` `[states]`: equal thirds by rank."""
    # The argsort of an argsort is the rank. By rank, since values are skewed: thirds of their
    # range would leave one colour nearly empty.
    ranks = values.argsort(kind="stable").argsort(kind="stable")
    return np.array(list(THIRDS))[ranks * len(THIRDS) // len(values)]


def neighbours_alike(features: np.ndarray, thirds: np.ndarray) -> float:
    """Return the share of each state's 10 nearest neighbours that are in its own third.

    Distances are Euclidean; a state is not its own neighbour.
    """
    points = torch.from_numpy(features)
    distances = torch.cdist(points, points).fill_diagonal_(torch.inf)
    nearest = distances.topk(min(NEIGHBOURS, len(points) - 1), largest=False).indices.numpy()
    return float((thirds[nearest] == thirds[:, None]).mean())


def draw_features(features: FeatureMap) -> Figure:
    """Draw one panel per run; call it inside `paper_style()`."""
    runs = list(features.summary.itertuples())
    columns = min(len(runs), 2)
    rows = -(-len(runs) // columns)
    width = COLUMN_WIDTH if columns == 1 else PAGE_WIDTH
    figure = new_figure(width, 2.7 * rows + 0.3)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, run in zip(axes, runs, strict=False):
        draw_embedding(ax, features.table[features.table["run"] == run.run])
        ax.set_title(f"{panel_title(run)}\n{run.alike:.0%} of neighbours in the same third")
    for ax in axes[len(runs) :]:
        ax.set_axis_off()
    handles, labels = axes[0].get_legend_handles_labels()
    critic = features.summary["critic"].iloc[0]
    title = f"{critic}'s value"
    figure.legend(handles, labels, title=title, ncols=3, loc="outside lower center", markerscale=2)
    return figure


def panel_title(run: Any) -> str:
    """Return the run's folder and its lambda; `run` is a row of `FeatureMap.summary`."""
    return rf"{as_label(Path(run.run).name)}, $\lambda$ = {run.actor_weight:g}"


def draw_embedding(ax: Any, table: DataFrame) -> None:
    """Scatter the rows of one run's `FeatureMap.table`, a colour and marker for each third."""
    for third, (colour, marker) in THIRDS.items():
        points = table[table["third"] == third]
        ax.scatter(
            points["x"],
            points["y"],
            s=4,
            c=colour,
            marker=marker,
            linewidths=0,
            alpha=0.7,
            label=third,
            rasterized=True,  # thousands of points would make the SVG slow
        )
    ax.set(xticks=[], yticks=[])  # a UMAP's axes have no unit
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)
