"""The numbers that the paper states in its text or tables, but for Table 1.

Table 1 is in `qpd.analysis.speed.fps_table`. A claim that the paper makes by a figure alone, or by
a number that this project does not hold, has no number here and is shown as "not stated". `source`
is the table, the figure that shows the quantity, or "text".
"""

from __future__ import annotations

from dataclasses import dataclass

PAPER_RUNS = 5  # of each recipe
PAPER_SAMPLES = 324_000_000  # a phase: 600 passes over 540,000 transitions
TEACHER_RETURNS = {"ppo": 339.0, "a2c": 248.0, "dqn": 373.0}  # text; 200 episodes each

RANDOM_RETURN = 1.4  # text; Breakout played at random

# Table 3: parameters without critic head, 4 actions.
PARAMETERS = {
    "XXS": 35_796, "XS": 61_044, "S": 111_540, "M": 424_276, "L": 882_084, "XL": 1_686_180,
    "XXL": 3_335_364,
}  # fmt: skip


@dataclass(frozen=True)
class PaperNumber:
    """A ratio of two mean returns, from `low` to `high`, and in words.

    `high` is None if only a lower end is stated; both are None if no ratio is.
    """

    text: str
    source: str
    low: float | None = None
    high: float | None = None


CRITIC_GAIN = PaperNumber("1.07", "Figure 4", 1.07, 1.07)
CRITIC_GAIN_8_BIT = PaperNumber("not stated", "Figure 4")
ACTOR_TEMPERATURE = PaperNumber("not stated", "Figures 2 and 3")
FLOAT_ABOVE_TEACHER = PaperNumber("1.09 to 1.90", "Figures 6 and 7", 1.09, 1.90)
LARGE_RETURN = PaperNumber("above 400", "Figure 6", 1.0)
STEP_S_TO_XS = PaperNumber("0.87 to 0.91", "Figure 6", 0.87, 0.91)
# Of actor-critics; of DQN it is 0.98.
STEP_XS_TO_XXS = PaperNumber("0.92", "Figure 6", 0.92, 0.92)
QUANTIZED_SMALL = PaperNumber("not stated", "Figures 6 and 7")
SMALL_INTEGERS = PaperNumber("above 1", "text")
SMALL_INTEGERS_BYTES = -0.28  # text: bytes of an 8-bit S student against an fp32 XXS one
HALF_A_PERCENT = PaperNumber("no loss, 0.5% of bytes", "abstract", 1.0)
PHASE_3_ALONE = PaperNumber("1.66; at random 1.4", "Figures 9 and 10")
PHASE_3_ALONE_SCALED = PaperNumber("not stated", "text")
