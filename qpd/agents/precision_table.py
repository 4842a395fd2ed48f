"""One table of all agents of a suite at all precisions, with paired differences."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qpd.agents.results import AgentResult, Cell
from qpd.agents.suite import Suite, run_suite
from qpd.evaluation.games import bootstrap_estimate, bootstrap_interval
from qpd.evaluation.holm import ERROR_RATE, holm
from qpd.evaluation.studentized import two_sided_p
from qpd.files.atomic import to_plain, write_json, write_text
from qpd.runs.progress import Progress

_NEAR_ZERO = 0.1  # of R_fp32 - R_random: nearer to 0, a share of R_fp32 means nothing
HEADER = ["agent", "precision", "weights", "arithmetic", "return", "E %", "lost %",
          "difference [95%]", "bytes", "actions"]  # fmt: skip


@dataclass(frozen=True)
class PrecisionRow:
    """An agent at one precision, beside itself in fp32.

    `error_percent` is E = 100 (R_fp32 - R) / R_fp32 of mean returns, None where R_fp32 is
    negative, or near 0: below a tenth of its distance from R_random;
    `lost_percent` the same over R_fp32 - R_random, None where random actions do as well.
    `difference` is the mean of R - R_fp32 over games from the same start, `low` and `high` its 95%
    interval, `p` the two-sided p-value of no difference, `p_holm` corrected for all rows. Of what
    could not be measured only `why_not` is known.
    """

    agent: str
    environment: str
    precision: str
    scheme: str = ""
    per: str = ""
    arithmetic: str = ""
    episodes: int = 0
    return_fp32: float | None = None
    return_quantized: float | None = None
    low_quantized: float | None = None
    high_quantized: float | None = None
    return_random: float | None = None
    error_percent: float | None = None
    lost_percent: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    bytes_fp32: int | None = None
    bytes_quantized: int | None = None
    action_flips: float | None = None
    action_error: float | None = None
    why_not: str | None = None

    @property
    def is_significant(self) -> bool:
        """Tell whether the difference stays after the correction."""
        return self.p_holm is not None and self.p_holm < ERROR_RATE


@dataclass(frozen=True)
class PrecisionTable:
    """All rows of a suite, in its order, and the noise of every layer."""

    rows: tuple[PrecisionRow, ...]
    layers: tuple[dict[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain: dict[str, Any] = to_plain({
            "rows": [asdict(row) | {"significant": row.is_significant} for row in self.rows],
            "layers": list(self.layers),
        })  # fmt: skip
        return plain

    def text_rows(self) -> list[list[str]]:
        """Return the rows as the terminal shows them, under `HEADER`."""
        found: list[list[str]] = []
        told: set[str] = set()
        for row in self.rows:
            if row.agent not in told and row.return_fp32 is not None:
                found.append(_fp32_text(row))
                told.add(row.agent)
            found.append(_row_text(row))
        return found

    def reasons(self) -> list[str]:
        """Return a line for each row that could not be measured."""
        return [_reason(row) for row in self.rows if row.why_not is not None]

    def caption(self) -> str:
        """Return what the columns mean."""
        measured = [row for row in self.rows if row.p is not None]
        if not measured:
            return ""
        games = "1 game" if measured[0].episodes == 1 else f"{measured[0].episodes} games"
        return (
            f"{games} each, from the same starts. E = 100 (R_fp32 - R) / "
            "R_fp32, a dash where that is negative or near 0; lost: 100 (R_fp32 - R) / "
            "(R_fp32 - R_random). Difference: mean of R - "
            f"R_fp32 over pairs; * where it is not 0 at {ERROR_RATE:.0%} for all {len(measured)} "
            "together (Holm). Actions: share of states with another best action, or mean error as "
            "a share of the range"
        )


def measure(suite: Suite, folder: Path, progress: Progress) -> PrecisionTable:
    """Play what is missing of a suite in `folder`, and write its table there.

    Errors are those of `run_suite`.
    """
    table = precision_table(run_suite(suite, folder, progress))
    write_table(table, folder)
    return table


def precision_table(results: Sequence[AgentResult]) -> PrecisionTable:
    """Return the table of what `run_suite` returned."""
    rows = [row for result in results for row in _rows(result)]
    corrected = iter(holm([row.p for row in rows if row.p is not None]))
    rows = [
        row if row.p is None else PrecisionRow(**{**asdict(row), "p_holm": next(corrected)})
        for row in rows
    ]
    layers = [
        {
            "agent": result.name,
            "precision": cell.precision,
            "scheme": cell.scheme,
            "per": cell.per,
            **{("layer" if key == "name" else key): value for key, value in asdict(layer).items()},
        }
        for result in results
        for cell in (result.fp32, *result.cells)
        for layer in cell.layers
    ]
    return PrecisionTable(tuple(rows), tuple(layers))


def write_table(table: PrecisionTable, folder: Path) -> None:
    """Write table.json, table.csv and layers.csv."""
    write_json(folder / "table.json", table.to_json())
    rows = [asdict(row) | {"significant": row.is_significant} for row in table.rows]
    write_text(folder / "table.csv", _csv(rows))
    write_text(folder / "layers.csv", _csv(table.layers))


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _rows(result: AgentResult) -> list[PrecisionRow]:
    if result.why_not is not None:
        return [PrecisionRow(result.source, "", "", why_not=result.why_not)]
    return [_row(result, cell) for cell in result.cells]


def _row(result: AgentResult, cell: Cell) -> PrecisionRow:
    about = (result.name, result.env_id, cell.precision, cell.scheme, cell.per)
    if cell.why_not is not None:
        return PrecisionRow(*about, why_not=cell.why_not)
    own, quantized = (np.array(each.played.returns) for each in (result.fp32, cell))
    random = float(np.mean(result.random.returns))
    mine, theirs = float(own.mean()), float(quantized.mean())
    low, high, p = _paired(quantized - own)
    ends = bootstrap_interval(quantized)
    return PrecisionRow(
        *about,
        cell.arithmetic,
        len(own),
        mine,
        theirs,
        *ends,
        random,
        100.0 * (mine - theirs) / mine if mine > _NEAR_ZERO * abs(mine - random) else None,
        100.0 * (mine - theirs) / (mine - random) if mine > random else None,
        theirs - mine,
        low,
        high,
        p,
        None,
        result.fp32.num_bytes,
        cell.num_bytes,
        cell.action_flips,
        cell.action_error,
    )


def _paired(differences: np.ndarray) -> tuple[float, float, float]:
    """Return the interval of the mean difference, and the two-sided p-value of none."""
    low, high = bootstrap_interval(differences)
    if len(differences) < 2:  # of one pair nothing can be said
        return low, high, 1.0
    return low, high, two_sided_p(bootstrap_estimate(differences), len(differences))


def _fp32_text(row: PrecisionRow) -> list[str]:
    assert row.return_fp32 is not None and row.bytes_fp32 is not None
    mean, size = number_cell(row.return_fp32), f"{row.bytes_fp32:,}"
    return [row.agent, "fp32", "", "float", mean, "", "", "", size, ""]


def _row_text(row: PrecisionRow) -> list[str]:
    if row.return_quantized is None or row.difference is None:
        return [row.agent, row.precision, weights_cell(row), "not measured", *[""] * 6]
    assert row.low is not None and row.high is not None
    interval = f"[{number_cell(row.low)}, {number_cell(row.high)}]"
    difference = f"{number_cell(row.difference, '+')} {interval if row.episodes > 1 else '-'}"
    changed = row.action_flips if row.action_error is None else row.action_error
    return [
        row.agent,
        row.precision,
        weights_cell(row),
        row.arithmetic,
        number_cell(row.return_quantized),
        percent_cell(row.error_percent),
        percent_cell(row.lost_percent),
        difference + ("*" if row.is_significant else ""),
        f"{row.bytes_quantized:,}",
        "" if changed is None else f"{changed:.1%}",
    ]


def _reason(row: PrecisionRow) -> str:
    place = " ".join(part for part in (row.agent, row.precision) if part)
    text = str(row.why_not)
    return text if text.startswith(place) else f"{place}: {text}"


def weights_cell(row: object) -> str:
    """Return scheme and granularity of a row; empty where weights have neither."""
    scheme, per = getattr(row, "scheme", ""), getattr(row, "per", "")
    return f"{scheme}, {per}" if scheme else ""


def number_cell(value: float, sign: str = "") -> str:
    """Return a return with one decimal, from 1,000 on with none."""
    return f"{value:{sign},.{0 if abs(value) >= 1000 else 1}f}"


def percent_cell(value: float | None) -> str:
    """Return a percentage with one decimal; a dash for None or NaN."""
    if value is None or math.isnan(value):
        return "-"
    return f"{round(value, 1) + 0.0:.1f}"  # no -0.0
