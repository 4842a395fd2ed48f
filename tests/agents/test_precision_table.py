"""The table of a suite: its formulas by hand, and what is not defined."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from qpd.agents.precision_table import precision_table, write_table
from qpd.agents.results import AgentResult, Cell, LayerNoise, Played


def played(*returns: float) -> Played:
    return Played(returns, tuple(1 for _ in returns))


def result(fp32: Played, random: Played, *cells: Cell) -> AgentResult:
    layers = (LayerNoise("actor", 5.0, None, 7),)
    own = Cell("fp32", num_bytes=400, layers=layers, played=fp32)
    return AgentResult("agent.zip", "ppo-Game-v0", "ppo", "Game-v0", own, random, cells)


def w8(*returns: float) -> Cell:
    return Cell("W8", "affine", "column", "float", 110, 0.25, None, (), played(*returns))


def test_errors_by_hand() -> None:
    """E = 100 (200 - 150) / 200 = 25; of random: 100 (200 - 150) / (200 - 100) = 50."""
    found = precision_table([result(played(150, 250), played(100, 100), w8(110, 190))])
    (row,) = found.rows
    assert (row.return_fp32, row.return_quantized, row.return_random) == (200, 150, 100)
    assert (row.error_percent, row.lost_percent) == (25.0, 50.0)
    assert row.difference == -50.0  # mean of 110 - 150 and 190 - 250
    assert (row.bytes_fp32, row.bytes_quantized, row.action_flips) == (400, 110, 0.25)


def test_a_share_of_a_negative_return_is_not_told() -> None:
    """Pendulum: E of -150 and -200 would be 100 (-150 + 200) / -150 = -33, as if it had gained."""
    (row,) = precision_table([result(played(-150), played(-1200), w8(-200))]).rows
    assert row.error_percent is None and row.lost_percent == pytest.approx(100 * 50 / 1050)
    # Near 0: a tenth of the 50 to random play and no more.
    (row,) = precision_table([result(played(5), played(-45), w8(4))]).rows
    assert row.error_percent is None
    (row,) = precision_table([result(played(6), played(-44), w8(3))]).rows
    assert row.error_percent == 50.0


def test_pairs_tell_more_than_two_means() -> None:
    """Games differ by hundreds, pairs by 1 and a little: clear of 0 all the same."""
    rng = np.random.default_rng(0)
    own = rng.normal(0, 300, 50)
    mine = own - 1 + rng.normal(0, 0.1, 50)
    found = precision_table([result(played(*own), played(*own - 900), w8(*mine))])
    (row,) = found.rows
    assert row.low is not None and row.high is not None
    assert -1.1 < row.low < -1 < row.high < -0.9
    assert row.is_significant
    assert found.text_rows()[1][7].endswith("*")


def test_marks_are_corrected_for_all_rows() -> None:
    """One row of p near 0.02 is a find alone, and none among twenty that are as likely."""
    rng = np.random.default_rng(3)
    own, noise = rng.normal(0, 300, 40), rng.normal(0, 1, 40)
    noise = (noise - noise.mean()) / noise.std(ddof=1) * np.sqrt(40)  # a standard error of 1
    cell = w8(*(own - 2.4 + noise))  # 2.4 of them
    alone = precision_table([result(played(*own), played(*own - 1e4), cell)]).rows[0]
    assert alone.p is not None and 0.005 < alone.p < 0.05 and alone.is_significant
    among = precision_table([result(played(*own), played(*own - 1e4), *[cell] * 20)]).rows
    assert among[0].p == alone.p and not any(row.is_significant for row in among)


def test_what_divides_by_nothing_is_not_told(tmp_path: Path) -> None:
    found = precision_table([result(played(-5, 5), played(0, 0), w8(1, 1))])
    (row,) = found.rows
    assert (row.error_percent, row.lost_percent) == (None, None)
    assert found.text_rows()[1][5:7] == ["-", "-"]
    write_table(found, tmp_path)
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert rows[0]["error_percent"] == "" and float(rows[0]["return_quantized"]) == 1.0
    told = json.loads((tmp_path / "table.json").read_text())
    assert told["rows"][0]["error_percent"] is None and told["rows"][0]["significant"] is False
    layers = list(csv.DictReader((tmp_path / "layers.csv").read_text().splitlines()))
    assert layers[0]["layer"] == "actor" and layers[0]["distinct_values"] == "7"


def test_failures_have_rows_and_reasons() -> None:
    bad = Cell("fp16", why_not="a weight is beyond 65,504")
    found = precision_table(
        [
            result(played(1, 2), played(0, 0), bad, w8(1, 2)),
            AgentResult("x.zip", why_not="x.zip: no"),
        ]
    )
    assert [row.why_not is None for row in found.rows] == [False, True, False]
    assert found.reasons() == ["ppo-Game-v0 fp16: a weight is beyond 65,504", "x.zip: no"]
    assert all(len(row) == 10 for row in found.text_rows())


@pytest.mark.parametrize("difference", [0.0, 3.0])
def test_three_equal_differences_prove_little(difference: float) -> None:
    """By the sign test: three coins fall alike in one case of four."""
    own = (10.0, 20.0, 30.0)
    mine = tuple(value + difference for value in own)
    (row,) = precision_table([result(played(*own), played(0, 0, 0), w8(*mine))]).rows
    assert (row.low, row.high) == (difference, difference)
    assert row.p == (1.0 if difference == 0.0 else 0.25)
