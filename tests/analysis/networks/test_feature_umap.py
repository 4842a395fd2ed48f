"""UMAP of the last shared layer on real runs, a few states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.offsetbox import AnnotationBbox

from qpd.analysis.figure_style import paper_style
from qpd.analysis.networks.feature_umap import (
    FeatureMap,
    draw_features,
    embed,
    feature_map,
    neighbours_alike,
    value_thirds,
)
from qpd.analysis.networks.state_thumbnails import draw_thumbnails, typical_states
from qpd.student_files.distilled import StudentFileError, load_student

torch.set_num_threads(1)

RUNS = Path(__file__).parents[3] / "runs-reference"
BOTH = [RUNS / "quickstart", RUNS / "breakout-ppo-s"]
COUNT = 60


@pytest.fixture(scope="module")
def features() -> FeatureMap:
    return feature_map(BOTH, COUNT, seed=3)


def test_thirds_by_hand() -> None:
    values = np.array([0.5, -2.0, 9.0, 0.6, 7.0, -1.0])
    expected = ["medium", "low", "high", "medium", "high", "low"]
    assert value_thirds(values).tolist() == expected
    # Equal values still make thirds of equal size.
    assert sorted(value_thirds(np.zeros(6))) == ["high"] * 2 + ["low"] * 2 + ["medium"] * 2


def test_neighbours_by_hand() -> None:
    # Two clusters of 12 far apart: all 10 neighbours are in the own one.
    points = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    points[12:] += 100.0
    apart = np.array(["low"] * 12 + ["high"] * 12)
    assert neighbours_alike(points, apart) == 1.0
    # Of 11 states all others are neighbours: one of another third agrees with none, the rest
    # with 9 of 10: 10 * 0.9 / 11.
    alike = neighbours_alike(points[:11], np.array(["high"] + ["low"] * 10))
    assert alike == pytest.approx(9 / 11)


@pytest.mark.slow
def test_a_map_keeps_clouds_apart_and_its_seed_decides() -> None:
    points = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    points[20:40, 1] += 50.0
    points[40:, 3] -= 50.0
    places = embed(points)
    assert places.shape == (60, 2)
    assert neighbours_alike(places, np.repeat(["low", "medium", "high"], 20)) == 1.0
    np.testing.assert_array_equal(places, embed(points))
    assert not np.allclose(places, embed(points, seed=1))


def test_both_runs_are_shown_the_same_states(features: FeatureMap) -> None:
    table = features.table
    first, second = (table[table["run"] == str(run)].reset_index(drop=True) for run in BOTH)
    assert len(first) == len(second) == COUNT
    np.testing.assert_array_equal(first["teacher_value"], second["teacher_value"])
    assert not np.allclose(first["x"], second["x"])
    assert first["third"].value_counts().to_dict() == {"low": 20, "medium": 20, "high": 20}
    low, high = (first.loc[first["third"] == third, "value"] for third in ("low", "high"))
    assert low.max() < high.min()
    assert set(first["action"]) <= {"NOOP", "FIRE", "RIGHT", "LEFT"}
    assert features.summary["actor_weight"].tolist() == [0.5, 1.0]
    assert np.isfinite(table[["x", "y"]].to_numpy()).all()


def test_the_students_answers_are_its_own(features: FeatureMap) -> None:
    # lambda 0.5 learned the teacher's critic; lambda 1 never did.
    correlation = [
        rows["teacher_value"].corr(rows["student_value"])
        for _, rows in features.table.groupby("run", sort=False)
    ]
    assert correlation[0] > 0.9 > correlation[1]


def test_figures(features: FeatureMap) -> None:
    with paper_style():
        figure, thumbnails = draw_features(features), draw_thumbnails(features, clusters=4)
    titles = [ax.get_title() for ax in figure.axes]
    assert titles[0].startswith("quickstart, $\\lambda$ = 0.5\n")
    assert titles[1].startswith("breakout-ppo-s, $\\lambda$ = 1\n")
    assert [sum(len(c.get_offsets()) for c in ax.collections) for ax in figure.axes] == [COUNT] * 2
    assert thumbnails is not None
    for ax, run in zip(thumbnails.axes, BOTH, strict=True):
        boxes = [artist for artist in ax.get_children() if isinstance(artist, AnnotationBbox)]
        assert len(boxes) == 4
        # Each frame is that of the state its line leads to.
        rows = features.table[features.table["run"] == str(run)].reset_index(drop=True)
        for box in boxes:
            row = rows.index[(rows["x"] == box.xy[0]) & (rows["y"] == box.xy[1])][0]
            shown = box.offsetbox.get_data()[..., 0]
            np.testing.assert_array_equal(shown, features.frames[str(run)][row])


def test_typical_states_are_near_the_middle_of_their_cluster() -> None:
    corners = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    ring = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    places = (corners[:, None] + ring[None]).reshape(-1, 2)
    assert typical_states(places, 3) == [0, 5, 10]


def test_a_run_without_its_distilled_student() -> None:
    with pytest.raises(StudentFileError, match="distilled.safetensors: no such file"):
        feature_map([RUNS / "breakout-ppo-xxs"], COUNT)


def test_the_layer_is_the_last_shared_one() -> None:
    student = load_student(BOTH[0] / "distilled.safetensors")
    frames = torch.zeros(2, 4, 84, 84, dtype=torch.uint8)
    hidden = student.features(frames)
    expected = hidden @ student.actor.weight.T + student.actor.bias
    torch.testing.assert_close(student(frames).actor, expected)
