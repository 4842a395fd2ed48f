"""Rules of selection on the numbers behind Kresse and Lampert's Table 1 (arXiv 2511.07046)."""

from __future__ import annotations

import numpy as np
import pytest

from qpd.analysis.paper.published_controllers import TASKS
from qpd.analysis.selection.rule import RULES, Cell, choose, edge_of, frequencies

# Where everything larger must be at parity, too: one that fails ends a step.
MONOTONE = {
    "Ant": (2, 64, 7), "HalfCheetah": (3, 256, 8), "Hopper": (2, 16, 8), "Humanoid": None,
    "Walker2d": (2, 128, 3),
}  # fmt: skip


def cells_of(task: str) -> dict[Cell, bool]:
    return {cell: mean >= TASKS[task].edge for cell, mean in TASKS[task].means.items()}


@pytest.mark.parametrize("task", TASKS)
def test_the_papers_choice_follows_from_its_returns(task: str) -> None:
    steps = choose(cells_of(task), RULES["paper"])
    assert steps[-1].chosen == TASKS[task].chosen
    assert [len(step.cells) for step in steps] == [7, 5, 7]
    # Largest first, as failures in between are what the rules differ in.
    assert [cell.core for cell in steps[0].cells] == list(range(8, 1, -1))


@pytest.mark.parametrize("task", TASKS)
def test_without_gaps_fewer_bits_are_refused(task: str) -> None:
    steps = choose(cells_of(task), RULES["monotone"])
    chosen = MONOTONE[task]
    assert steps[-1].chosen == (None if chosen is None else Cell(*chosen))
    assert len(steps) == (1 if chosen is None else 3)


def test_the_edge_is_one_deviation_or_a_share_below_the_mean() -> None:
    floats = np.array([1.0, 2.0, 3.0])
    assert edge_of(floats, None) == pytest.approx(1.0)  # 2 - sqrt((1 + 0 + 1) / 2)
    assert edge_of(floats, 0.9) == pytest.approx(1.8)
    assert edge_of(-floats, 0.9) == pytest.approx(-2.2)  # 10% worse, where returns are costs


def test_how_often_other_seeds_would_choose_the_same() -> None:
    floats = {0: 10.0, 1: 10.0}
    scores = {
        Cell(8, 16, 8): {0: 12.0, 1: 12.0},  # always at parity
        Cell(2, 16, 8): {0: 8.0, 1: 12.0},  # its mean is at least 10 in three draws of four
    }
    passes = {cell: sum(each.values()) >= 20.0 for cell, each in scores.items()}
    steps = choose(passes, RULES["paper"])
    found = frequencies(steps, scores, floats, RULES["paper"])
    assert steps[0].chosen == Cell(2, 16, 8)
    assert found[0] == pytest.approx(0.75, abs=0.02)
    assert found[1:] == (1.0, 1.0) or found[1:] == pytest.approx((0.75, 0.75), abs=0.02)
    one = {cell: {0: each[0]} for cell, each in scores.items()}
    assert np.isnan(frequencies(steps, one, floats, RULES["paper"])).all()


def test_seeds_that_all_have_are_drawn_for_all_together() -> None:
    floats = {seed: 1000.0 * (seed + 1) for seed in range(5)}
    cell = Cell(8, 16, 8)
    above = {cell: {seed: 1.01 * mean for seed, mean in floats.items()}}
    steps = choose({cell: True}, RULES["paper"])
    # Above its own float at every seed, so above it in every draw of seeds; not in draws of others.
    assert frequencies(steps, above, floats, RULES["paper"], share=1.0) == (1.0, 1.0, 1.0)
    others = {cell: {seed + 5: mean for seed, mean in above[cell].items()}}
    assert frequencies(steps, others, floats, RULES["paper"], share=1.0)[0] < 0.7


def test_nothing_at_parity_ends_the_choice() -> None:
    steps = choose({Cell(8, 16, 8): False, Cell(4, 16, 8): False}, RULES["paper"])
    assert len(steps) == 1 and steps[0].chosen is None
    with pytest.raises(ValueError, match="no cells"):
        choose({}, RULES["paper"])
