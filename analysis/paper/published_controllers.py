"""Numbers of Kresse & Lampert (arXiv 2511.07046), in part from the data behind its figures.

Means over 10 trainings of 1,000 games each, on gymnasium's -v4 tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

from qpd.analysis.selection.rule import Cell

BITS, WIDTHS = (8, 7, 6, 5, 4, 3, 2), (256, 128, 64, 32, 16)
WIDEST, MOST = 256, 8


@dataclass(frozen=True)
class PublishedTask:
    """One task: the float's mean and the edge of parity, Table 1's choice, the means of each step.

    Core bits at width 256 and 8 input bits, widths with that core, input bits with both; then
    Table 3's latency in cycles at 100 MHz, LUTs, flip-flops, block RAMs and DSPs.
    """

    float_mean: float
    edge: float
    chosen: Cell
    cores: tuple[float, ...]
    widths: tuple[float, ...]
    inputs: tuple[float, ...]
    cycles: int
    luts: int
    flip_flops: int
    block_rams: float
    dsps: int

    @property
    def parity(self) -> float:
        """The share of the float's return that counts as parity."""
        return self.edge / self.float_mean

    @property
    def means(self) -> dict[Cell, float]:
        """The mean return of every cell that the rule reads."""
        core, width = self.chosen.core, self.chosen.width
        found = {
            Cell(bits, WIDEST, MOST): mean for bits, mean in zip(BITS, self.cores, strict=True)
        }
        found |= {
            Cell(core, each, MOST): mean for each, mean in zip(WIDTHS, self.widths, strict=True)
        }
        found |= {
            Cell(core, width, bits): mean for bits, mean in zip(BITS, self.inputs, strict=True)
        }
        return found


TASKS = {
    "Ant": PublishedTask(
        5089, 4146, Cell(2, 64, 3), (5316, 5577, 5390, 5639, 5704, 5667, 5097),
        (5097, 5043, 4804, 3696, 2798), (4804, 4673, 4036, 4686, 3928, 4340, 3964),
        230, 2_700, 4_500, 3, 45,
    ),
    "HalfCheetah": PublishedTask(
        11066, 9876, Cell(3, 256, 8), (11010, 11590, 10943, 10858, 10630, 10156, 7158),
        (10156, 9116, 8327, 6790, 5292), (10156, 9632, 9866, 8803, 8560, 7622, 6999),
        24_320, 4_300, 4_600, 15, 11,
    ),
    "Hopper": PublishedTask(
        2710, 1999, Cell(2, 16, 6), (2520, 2463, 2551, 2679, 2485, 2799, 3514),
        (3514, 3172, 2959, 2803, 2521), (2521, 1765, 2126, 1924, 1745, 1257, 1314),
        21, 2_400, 2_000, 0, 45,
    ),
    "Humanoid": PublishedTask(
        6262, 5749, Cell(3, 16, 4), (5643, 4950, 5721, 5672, 5602, 6016, 5530),
        (6016, 5602, 5919, 5879, 5942), (5942, 6533, 5741, 5763, 5761, 5578, 5710),
        1_540, 2_300, 3_100, 1.5, 45,
    ),
    "Walker2d": PublishedTask(
        4977, 4582, Cell(2, 128, 3), (5185, 4954, 5257, 5189, 5413, 5044, 5082),
        (5082, 4968, 4425, 4324, 2225), (4968, 4792, 4987, 4980, 4949, 4623, 4561),
        16_220, 1_900, 1_600, 2, 4,
    ),
}  # fmt: skip
