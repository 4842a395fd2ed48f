"""The paper's numbers that its text or tables state; Table 1 is in `analysis.paper_fps`.

A claim without a number here is one that the paper makes of a figure, or of a number that this
project does not hold: it is shown as "not stated". `source` is the table, the figure that shows the
quantity, or "text".
"""

from __future__ import annotations

from dataclasses import dataclass

PAPER_RUNS, PAPER_EPOCHS = 5, 600  # runs of each recipe; passes over 540,000 transitions a phase
TEACHER_EPISODES = 200
TEACHER_RETURNS = {"ppo": 339.0, "a2c": 248.0, "dqn": 373.0}  # text; 200 episodes each
RANDOM_RETURN = 1.4  # text

# Table 3: parameters without critic head, 4 actions.
PARAMETERS = {
    "XXS": 35_796, "XS": 61_044, "S": 111_540, "M": 424_276, "L": 882_084, "XL": 1_686_180,
    "XXL": 3_335_364,
}  # fmt: skip


@dataclass(frozen=True)
class PaperNumber:
    """A ratio of two mean returns, from `low` to `high`; `text` is how the paper puts it.

    Both are None where no number is stated.
    """

    text: str
    source: str
    low: float | None = None
    high: float | None = None


CRITIC_GAIN = PaperNumber("+7%", "Figure 4", 1.07, 1.07)
ACTOR_TEMPERATURE = PaperNumber("not stated", "Figures 2 and 3")
FLOAT_ABOVE_TEACHER = PaperNumber("+9% to +90%", "Figures 6 and 7", 1.09, 1.90)
LARGE_RETURN = PaperNumber("above 400", "Figure 6", 1.0)
STEP_S_TO_XS = PaperNumber("-9% to -13%", "Figure 6", 0.87, 0.91)
STEP_XS_TO_XXS = PaperNumber("-8% (DQN: -2%)", "Figure 6", 0.92, 0.98)
QUANTIZED_SMALL = PaperNumber("not stated", "Figures 6 and 7")
SMALL_INTEGERS = PaperNumber("better (no number)", "text")
SMALL_INTEGERS_BYTES = -0.28  # text: bytes of an 8-bit S student against an fp32 XXS one
HALF_A_PERCENT = PaperNumber("no loss at 0.5% of the bytes", "abstract", 1.0)
PHASE_3_ALONE = PaperNumber("1.66; random play 1.4", "text, Figures 9 and 10")
