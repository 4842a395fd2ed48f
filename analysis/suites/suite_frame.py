"""Suites as one frame: a row for each agent and precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from qpd.agents.errors import AgentQuantizationError
from qpd.agents.precision_table import precision_table
from qpd.agents.results import AgentResult
from qpd.agents.stored_suite import read_suites
from qpd.errors.codes import ErrorCode


def suite_results(folders: Sequence[Path]) -> list[AgentResult]:
    """Return the agents of suites. Raises AgentQuantizationError, also where none has played."""
    results = read_suites(folders)
    if folders and not any(cell.why_not is None for one in results for cell in one.cells):
        names = ", ".join(map(str, folders))
        raise AgentQuantizationError(
            f"{names}: no agent has played in few bits yet; `qpd quantize` goes on with a suite",
            ErrorCode.NOTHING_MEASURED,
        )
    return results


def suite_frame(results: Sequence[AgentResult]) -> pd.DataFrame:
    """Return the rows of `PrecisionRow`, with `algo`, weight and activation bits, and noise.

    `error_percent` is NaN where there is none. `bits` is 16 of fp16; `activation_bits` is None
    of weights alone. `worst_sqnr_db` and `widest_range_per_sigma` are of the worst layer. Of an
    agent that several suites played, one row of a precision is `counted` where agents are the unit,
    that of the most games.
    """
    rows = []
    table = precision_table(results)
    by_name = {result.name: result for result in results}
    noise = pd.DataFrame(table.layers)
    for row in table.rows:
        if row.return_quantized is None:
            continue
        result = by_name[row.agent]
        mine = noise[
            (noise["agent"] == row.agent)
            & (noise["precision"] == row.precision)
            & (noise["scheme"] == row.scheme)
            & (noise["per"] == row.per)
        ]
        fp32 = noise[(noise["agent"] == row.agent) & (noise["precision"] == "fp32")]
        weight_bits, activation_bits = _bits(row.precision)
        rows.append(
            {
                **asdict(row),
                "algo": result.algo,
                "identity": result.identity or result.name,
                "bits": weight_bits,
                "activation_bits": activation_bits,
                "error_percent": np.nan if row.error_percent is None else row.error_percent,
                "worst_sqnr_db": mine["sqnr_db"].min() if len(mine) else np.nan,
                "widest_range_per_sigma": fp32["range_per_sigma"].max() if len(fp32) else np.nan,
            }
        )
    frame = pd.DataFrame(rows)
    if frame.empty:
        return frame
    same = ["identity", "precision", "scheme", "per"]
    most = frame.sort_values("episodes", ascending=False, kind="stable").drop_duplicates(same)
    return frame.assign(counted=frame.index.isin(most.index)).drop(columns="identity")


def _bits(precision: str) -> tuple[int, int | None]:
    """Return the bits of `fp16`, `W8` and `W8A8`."""
    if precision == "fp16":
        return 16, None
    weights, _, activations = precision.removeprefix("W").partition("A")
    return int(weights), int(activations) if activations else None
