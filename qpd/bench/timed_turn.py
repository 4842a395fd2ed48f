"""What a turn of a benchmark measured."""

from __future__ import annotations

from typing import NamedTuple


class TimedTurn(NamedTuple):
    """Times of single calls in microseconds; a hundredth of the calls took longer than p99."""

    calls: int
    median_us: float
    p99_us: float
    peak_rss_bytes: int
