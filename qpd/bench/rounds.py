"""Turns, round by round, so that whatever else the machine does affects all contestants alike."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

from qpd.bench.contestant import Contestant, ContestantError, MissingError, WrongAnswerError
from qpd.bench.device_record import BenchRow


def take_turns(contestants: Sequence[Contestant], rounds: int, seconds: float) -> None:
    """Time every contestant that still runs for `seconds`, `rounds` times in turn."""
    for _ in range(rounds):
        # Those that failed earlier keep their row, with the reason, and take no more turns.
        for contestant in contestants:
            if contestant.runner is None:
                continue
            try:
                contestant.turns.append(contestant.runner.turn(seconds))
            except ContestantError as error:
                contestant.give_up(error)


def forwards_per_second(contestant: Contestant, rounds: int) -> float | None:
    """Return 1 / the median over the last `rounds` turns of their medians; None if it failed."""
    if contestant.error is not None or not contestant.turns:
        return None
    # The last turns only: a teacher has turns beside every model, and each ratio takes its own.
    return 1e6 / median(turn.median_us for turn in contestant.turns[-rounds:])


def bench_row(contestant: Contestant, baseline: float | None = None) -> BenchRow:
    """Make the contestant's row; `baseline` is the teacher's passes per second, if any."""
    rate = forwards_per_second(contestant, len(contestant.turns))
    turns = contestant.turns if rate else []
    error = contestant.error
    return BenchRow(
        runtime=contestant.runtime,
        model=contestant.model,
        size=contestant.size,
        weight_bits=contestant.weight_bits,
        threads=contestant.threads,
        status=_status(error),
        reason=None if error is None else str(error),
        kernels=contestant.kernels,
        median_us=1e6 / rate if rate else None,
        p99_us=median(turn.p99_us for turn in turns) if turns else None,
        forwards_per_second=rate,
        ratio=rate / baseline if rate and baseline else None,
        peak_rss_bytes=max(turn.peak_rss_bytes for turn in turns) if turns else None,
        file_bytes=contestant.file_bytes,
        check=contestant.check,
        round_medians_us=[turn.median_us for turn in turns],
        teacher=contestant.teacher,
    )


def _status(
    error: ContestantError | None,
) -> Literal["measured", "skipped", "wrong", "failed"]:
    if error is None:
        return "measured"
    if isinstance(error, MissingError):
        return "skipped"
    return "wrong" if isinstance(error, WrongAnswerError) else "failed"
