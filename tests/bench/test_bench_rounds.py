"""Who is timed when, and what becomes of the times."""

from __future__ import annotations

import pytest

from qpd.bench.contestant import (
    Contestant,
    ContestantError,
    MissingError,
    WrongAnswerError,
)
from qpd.bench.rounds import bench_row, forwards_per_second, take_turns
from qpd.bench.timed_calls import TimedTurn


class Scripted:
    """Takes the times it is told to; None: it dies."""

    def __init__(self, name: str, log: list[str], medians: list[float | None]) -> None:
        self.name, self.log, self.medians = name, log, iter(medians)
        self.is_closed = False

    def turn(self, seconds: float) -> TimedTurn:
        self.log.append(self.name)
        median_us = next(self.medians)
        if median_us is None:
            raise ContestantError("the worker was killed by signal 11")
        return TimedTurn(10, median_us, 2 * median_us, int(median_us) * 1000)

    def close(self) -> None:
        self.is_closed = True


def contestant(name: str, log: list[str], medians: list[float | None]) -> Contestant:
    return Contestant("torch", name, None, 32, 1, Scripted(name, log, medians))


def test_contestants_take_turns_and_one_that_dies_is_not_waited_for() -> None:
    log: list[str] = []
    a, b = contestant("a", log, [1.0, 5.0, 2.0]), contestant("b", log, [3.0, None])
    runner = b.runner
    take_turns([a, b], rounds=3, seconds=0.1)
    assert log == ["a", "b", "a", "b", "a"]
    assert isinstance(runner, Scripted) and runner.is_closed and b.runner is None
    assert forwards_per_second(a, 3) == pytest.approx(1e6 / 2.0)  # the median of 1, 5, 2
    assert forwards_per_second(b, 3) is None
    row = bench_row(b, 100.0)
    assert (row.status, row.reason) == ("failed", "the worker was killed by signal 11")
    assert row.forwards_per_second is None and row.ratio is None


def test_a_row_has_medians_of_rounds_and_the_largest_memory() -> None:
    a = contestant("a", [], [4.0, 8.0, 5.0])
    take_turns([a], rounds=3, seconds=0.1)
    row = bench_row(a, baseline=50_000.0)
    assert (row.median_us, row.p99_us, row.peak_rss_bytes) == (5.0, 10.0, 8000)
    assert row.ratio == pytest.approx(4.0)  # 200,000 passes a second
    assert row.round_medians_us == [4.0, 8.0, 5.0]
    # Beside a later student only the last rounds count.
    assert forwards_per_second(a, 2) == pytest.approx(1e6 / 6.5)


@pytest.mark.parametrize(
    "error, status", [(MissingError("x"), "skipped"), (WrongAnswerError("x"), "wrong")]
)
def test_the_status_tells_why_nothing_was_measured(error: ContestantError, status: str) -> None:
    a = contestant("a", [], [])
    a.give_up(error)
    take_turns([a], rounds=2, seconds=0.1)
    assert (bench_row(a).status, bench_row(a).reason) == (status, "x")
