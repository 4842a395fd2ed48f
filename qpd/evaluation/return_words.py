"""How a mean return is written: its interval and the number of games, of which one has none."""

from __future__ import annotations

from collections.abc import Sequence


def interval_text(interval: Sequence[float], episodes: int) -> str:
    """Return `[low, high]`, and `[-]` of one game: it does not tell how far others are from it."""
    low, high = interval
    return "[-]" if episodes < 2 else f"[{low:,.1f}, {high:,.1f}]"


def interval_words(interval: Sequence[float], episodes: int) -> str:
    """Return interval and number of games as a clause, such as `95% interval 1.0 to 2.0, 9 ...`."""
    if episodes < 2:
        return "one full game, which tells of no other"
    low, high = interval
    return f"95% interval {low:,.1f} to {high:,.1f}, {games_text(episodes)}"


def games_text(episodes: int) -> str:
    """Return `1 full game` or `200 full games`."""
    return f"{episodes:,} full game{'s' * (episodes != 1)}"
