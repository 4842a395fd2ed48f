"""Single calls, timed: which calls are made, and what is told of their times."""

from __future__ import annotations

from qpd.bench.timed_calls import WARM_UP, summarize, time_calls


def test_a_hundredth_of_the_calls_took_longer_than_p99() -> None:
    microseconds = [1000 * n for n in range(200, 0, -1)]
    # sorted 1..200: half are below 101; 199 and 200, a hundredth, are above 198
    assert summarize(microseconds)[:3] == (200, 101.0, 198.0)


def test_one_slow_call_in_few_is_the_p99() -> None:
    assert summarize([1000, 9000, 1000, 1000])[:3] == (4, 1.0, 9.0)


def test_every_input_has_its_turn_and_a_slow_call_is_still_made_ten_times() -> None:
    seen: list[str] = []
    turn = time_calls(seen.append, ["a", "b", "c"], seconds=0.0)
    assert turn.calls == 10 and len(seen) == WARM_UP + 10
    assert seen[WARM_UP:] == ["a", "b", "c"] * 3 + ["a"]
