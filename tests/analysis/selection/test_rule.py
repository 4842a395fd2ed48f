"""Rules of selection on the numbers behind Kresse and Lampert's Table 1 (arXiv 2511.07046)."""

from __future__ import annotations

import numpy as np
import pytest

from qpd.analysis.selection.rule import RULES, Cell, choose, edge_of, frequencies

BITS, WIDTHS = (8, 7, 6, 5, 4, 3, 2), (256, 128, 64, 32, 16)
# By task: the edge of parity, Table 1's choice, and the means of each step: core bits at width 256
# and 8 input bits, widths with that core, input bits with both.
TASKS = {
    "Ant": (4146, (2, 64, 3), [5316, 5577, 5390, 5639, 5704, 5667, 5097],
            [5097, 5043, 4804, 3696, 2798], [4804, 4673, 4036, 4686, 3928, 4340, 3964]),
    "HalfCheetah": (9876, (3, 256, 8), [11010, 11590, 10943, 10858, 10630, 10156, 7158],
                    [10156, 9116, 8327, 6790, 5292], [10156, 9632, 9866, 8803, 8560, 7622, 6999]),
    "Hopper": (1999, (2, 16, 6), [2520, 2463, 2551, 2679, 2485, 2799, 3514],
               [3514, 3172, 2959, 2803, 2521], [2521, 1765, 2126, 1924, 1745, 1257, 1314]),
    "Humanoid": (5749, (3, 16, 4), [5643, 4950, 5721, 5672, 5602, 6016, 5530],
                 [6016, 5602, 5919, 5879, 5942], [5942, 6533, 5741, 5763, 5761, 5578, 5710]),
    "Walker2d": (4582, (2, 128, 3), [5185, 4954, 5257, 5189, 5413, 5044, 5082],
                 [5082, 4968, 4425, 4324, 2225], [4968, 4792, 4987, 4980, 4949, 4623, 4561]),
}  # fmt: skip
# Where everything larger must be at parity, too: one that fails ends a step.
MONOTONE = {
    "Ant": (2, 64, 7), "HalfCheetah": (3, 256, 8), "Hopper": (2, 16, 8), "Humanoid": None,
    "Walker2d": (2, 128, 3),
}  # fmt: skip


def cells_of(task: str) -> dict[Cell, bool]:
    edge, (core, width, _), cores, widths, inputs = TASKS[task]
    means = {Cell(bits, 256, 8): mean for bits, mean in zip(BITS, cores, strict=True)}
    means |= {Cell(core, each, 8): mean for each, mean in zip(WIDTHS, widths, strict=True)}
    means |= {Cell(core, width, bits): mean for bits, mean in zip(BITS, inputs, strict=True)}
    return {cell: mean >= edge for cell, mean in means.items()}


@pytest.mark.parametrize("task", TASKS)
def test_the_papers_choice_follows_from_its_returns(task: str) -> None:
    steps = choose(cells_of(task), RULES["paper"])
    assert steps[-1].chosen == Cell(*TASKS[task][1])
    assert [len(step.cells) for step in steps] == [7, 5, 7]
    # Largest first, as failures in between are what the rules differ in.
    assert [cell.core for cell in steps[0].cells] == list(BITS)


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
    floats = np.array([10.0, 10.0])
    scores = {
        Cell(8, 16, 8): np.array([12.0, 12.0]),  # always at parity
        Cell(2, 16, 8): np.array([8.0, 12.0]),  # its mean is at least 10 in three draws of four
    }
    passes = {cell: bool(each.mean() >= 10.0) for cell, each in scores.items()}
    steps = choose(passes, RULES["paper"])
    found = frequencies(steps, scores, floats, RULES["paper"])
    assert steps[0].chosen == Cell(2, 16, 8)
    assert found[0] == pytest.approx(0.75, abs=0.02)
    assert found[1:] == (1.0, 1.0) or found[1:] == pytest.approx((0.75, 0.75), abs=0.02)
    one = {cell: each[:1] for cell, each in scores.items()}
    assert np.isnan(frequencies(steps, one, floats, RULES["paper"])).all()


def test_nothing_at_parity_ends_the_choice() -> None:
    steps = choose({Cell(8, 16, 8): False, Cell(4, 16, 8): False}, RULES["paper"])
    assert len(steps) == 1 and steps[0].chosen is None
    with pytest.raises(ValueError, match="no cells"):
        choose({}, RULES["paper"])
