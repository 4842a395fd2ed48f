"""QuaRL's Table 2: returns in fp32, fp16 and 8 bits, and what rounding costs each algorithm."""

from __future__ import annotations

import numpy as np
import pandas as pd

from qpd.agents.precision_table import number_cell, percent_cell, weights_cell
from qpd.analysis.returns.return_rows import ShownTable
from qpd.analysis.suites.loss_predictors import NO_REPLAY, REPLAY
from qpd.evaluation.games import bootstrap_interval
from qpd.teachers.archive.algorithm import OFF_POLICY_ALGORITHMS

HEADER = ["agent", "precision", "weights", "fp32", "return", "E %", "lost %", "difference [95%]",
          "games"]  # fmt: skip
MEANS = ["algorithm", "precision", "weights", "agents", "mean E %", "mean |E| %", "of",
         "mean lost % [95%]"]  # fmt: skip


def relative_errors(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the table, those of an algorithm together."""
    columns = ["algo", "environment", "agent", "precision", "scheme", "per", "bits",
               "activation_bits", "arithmetic", "episodes", "return_fp32", "return_quantized",
               "return_random", "error_percent", "lost_percent", "difference", "low", "high",
               "p_holm"]  # fmt: skip
    order = ["algo", "environment", "agent", "bits"]
    return frame.sort_values(order, ascending=[True, True, True, False])[columns]


def mean_errors(frame: pd.DataFrame) -> pd.DataFrame:
    """Return means over the agents of each algorithm, of both kinds and of all, by precision.

    `mean_error` is the paper's mean of signed E, `mean_absolute` that of |E|, both over `num_e`
    agents for which E means something; `mean_lost` with its 95% interval over all `agents`. The
    kinds, where there are both, are those that replay transitions and the others. An agent counts
    once in each.
    """
    rows = []
    frame = frame[frame["counted"]]
    replays = frame["algo"].isin(OFF_POLICY_ALGORITHMS)
    kinds = frame.assign(algo=replays.map({True: REPLAY, False: NO_REPLAY}))
    several = [kinds] if replays.nunique() > 1 else []
    keys = ["algo", "precision", "scheme", "per", "bits"]
    for group in (frame, *several, frame.assign(algo="all")):
        for key, mine in group.groupby(keys, dropna=False, sort=True):
            errors = mine["error_percent"].dropna()
            lost = mine["lost_percent"].dropna().to_numpy(float)
            low, high = bootstrap_interval(lost) if len(lost) > 1 else (np.nan, np.nan)
            rows.append(
                {
                    **dict(zip(keys, key, strict=True)),
                    "agents": len(mine),
                    "num_e": len(errors),
                    "mean_error": errors.mean(),
                    "mean_absolute": errors.abs().mean(),
                    "mean_lost": lost.mean() if len(lost) else np.nan,
                    "low": low,
                    "high": high,
                }
            )
    order = ["bits", "precision", "scheme", "per"]
    return pd.DataFrame(rows).sort_values(order, ascending=[False, True, True, True], kind="stable")


def errors_tables(table: pd.DataFrame, means: pd.DataFrame) -> list[ShownTable]:
    """Return both as text."""
    rows = [
        [
            row.agent,
            row.precision,
            weights_cell(row),
            number_cell(row.return_fp32),
            number_cell(row.return_quantized),
            percent_cell(row.error_percent),
            percent_cell(row.lost_percent),
            f"{number_cell(row.difference, '+')} [{number_cell(row.low)}, {number_cell(row.high)}]"
            + ("*" if row.p_holm < 0.05 else ""),
            str(row.episodes),
        ]
        for row in table.itertuples()
    ]
    shown = [
        [
            row.algo,
            row.precision,
            weights_cell(row),
            str(row.agents),
            percent_cell(row.mean_error),
            percent_cell(row.mean_absolute),
            str(row.num_e),
            f"{percent_cell(row.mean_lost)} [{percent_cell(row.low)}, {percent_cell(row.high)}]",
        ]
        for row in means.itertuples()
    ]
    return [
        ShownTable("returns and relative errors (QuaRL, Table 2)", HEADER, rows),
        ShownTable("by algorithm", MEANS, shown),
    ]


NOTES = [
    "E = 100 (R_fp32 - R) / R_fp32, a dash where R_fp32 is negative or near 0; lost: "
    "100 (R_fp32 - R) / (R_fp32 - R_random)",
    "difference: mean over paired games; * where it is not 0 at 5% for all rows together (Holm)",
    "by algorithm: signed errors cancel, so the mean of |E| stands beside; `of` counts its agents; "
    "an agent of several suites counts once, with most games",
]
