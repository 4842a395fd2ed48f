"""UMAP's parts by hand, and what a layout of it must keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qpd.analysis.networks.umap_layout import (
    NEIGHBOURS,
    A,
    B,
    fuzzy_edges,
    nearest_neighbours,
    umap_layout,
)

torch.set_num_threads(1)


def clusters(count: int = 40) -> np.ndarray:
    """Three clouds in ten dimensions, far from each other."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(3 * count, 10))
    points[count : 2 * count, 3] += 60.0
    points[2 * count :, 7] -= 60.0
    return points.astype(np.float32)


def test_the_curve_is_the_best_fit_to_the_minimal_distance() -> None:
    """A and B have the least squares over 0 <= d <= 3, so a step aside is worse."""
    distance = np.linspace(0, 3, 300)
    wanted = np.where(distance < 0.1, 1.0, np.exp(0.1 - distance))

    def error(a: float, b: float) -> float:
        return float(((1 / (1 + a * distance ** (2 * b)) - wanted) ** 2).sum())

    best = error(A, B)
    aside = [error(A * x, B * y) for x, y in ((1.01, 1), (0.99, 1), (1, 1.01), (1, 0.99))]
    assert min(aside) > best and best / len(distance) < 1e-3


def test_neighbours_by_hand() -> None:
    points = np.array([[0.0], [1.0], [3.0], [7.0]], np.float32)
    nearest, distances = nearest_neighbours(points)  # of four points, all three others
    assert nearest.tolist() == [[1, 2, 3], [0, 2, 3], [1, 0, 3], [2, 1, 0]]
    assert distances.tolist() == [[1, 3, 7], [1, 2, 6], [2, 3, 4], [4, 6, 7]]


def test_memberships_by_hand() -> None:
    """Neighbours at d, d + s, ... of points that are nobody else's: 1 + x + x^2 = log2(4).

    Hence x = (sqrt(5) - 1) / 2, whatever d and s are.
    """
    rest = [[(i + step) % 6 + 2 for step in (1, 2, 3)] for i in range(6)]
    nearest = np.array([[2, 3, 4], [4, 5, 6], *rest])
    distances = np.array([[1.0, 2.0, 3.0], [5.0, 15.0, 25.0]] + [[1.0, 2.0, 3.0]] * 6)
    heads, tails, weights = fuzzy_edges(nearest, distances)
    x = (np.sqrt(5) - 1) / 2
    assert heads[:6].tolist() == [0, 0, 0, 1, 1, 1] and tails[:6].tolist() == [2, 3, 4, 4, 5, 6]
    np.testing.assert_allclose(weights[:6], [1.0, x, x * x] * 2, rtol=1e-9)


def test_a_pair_of_two_neighbours_joins_both_memberships() -> None:
    nearest = np.array([[1, 2, 3], [2, 0, 3], [1, 0, 3], [1, 2, 0]])
    distances = np.array([[1.0, 2.0, 3.0]] * 4)
    heads, tails, weights = fuzzy_edges(nearest, distances)
    found = dict(zip(zip(heads.tolist(), tails.tolist(), strict=True), weights, strict=True))
    x = (np.sqrt(5) - 1) / 2
    assert set(found) == {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}
    assert found[0, 1] == pytest.approx(1.0)  # 0 is 1's second, but 1 is 0's nearest
    assert found[0, 2] == pytest.approx(x + x - x * x)
    assert found[2, 3] == pytest.approx(x * x + x - x**3)


def test_clouds_stay_apart_and_a_point_keeps_its_neighbours() -> None:
    points = clusters()
    places = umap_layout(points)
    assert places.shape == (120, 2) and places.dtype == np.float32
    near, _ = nearest_neighbours(places)
    assert (near // 40 == np.arange(120)[:, None] // 40).all()
    before, _ = nearest_neighbours(points)
    kept = np.mean([len(set(a) & set(b)) for a, b in zip(before, near, strict=True)])
    assert kept / (NEIGHBOURS - 1) > 0.5  # by chance in a cloud of 40: 14 / 39 = 0.36


def test_a_ring_stays_a_ring() -> None:
    """200 points on a circle in a plane of ten dimensions: the neighbours are those beside it."""
    angles = np.arange(200) * (2 * np.pi / 200)
    turn, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(10, 2)))
    places = umap_layout(np.stack([np.cos(angles), np.sin(angles)], axis=1) @ turn.T)
    near, _ = nearest_neighbours(places)
    away = np.abs(near - np.arange(200)[:, None])
    assert np.mean(np.minimum(away, 200 - away) <= 10) > 0.9


def test_the_seed_alone_decides() -> None:
    points = clusters(10)
    np.testing.assert_array_equal(umap_layout(points, 1), umap_layout(points, 1))
    assert not np.allclose(umap_layout(points, 1), umap_layout(points, 2))


@pytest.mark.parametrize("points", [np.zeros((50, 3)), np.repeat(np.eye(5), 10, axis=0)])
def test_equal_points_have_places(points: np.ndarray) -> None:
    assert np.isfinite(umap_layout(points)).all()
