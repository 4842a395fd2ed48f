"""Pareto fronts, and which benchmark belongs to which policy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpd.analysis.figure_style import paper_style
from qpd.analysis.returns.pareto import (
    pareto_bytes,
    pareto_figure,
    pareto_front,
    pareto_latency,
    pareto_left_out,
)
from qpd.analysis.returns.policy_returns import policy_returns
from qpd.analysis.returns.return_rows import pareto_tables
from qpd.analysis.runs.run_frame import run_frame
from qpd.bench.device_record import DeviceRecord, read_device_record
from tests.analysis.made_up_runs import REFERENCE

RUNS = ("quickstart", "breakout-ppo-xxs", "breakout-ppo-s", "breakout-ppo-xxs-4bit")
DEVICE = REFERENCE / "devices" / "epyc-zen4-2-cores.json"
POINTS = st.lists(st.tuples(st.integers(1, 9), st.integers(-5, 5)), min_size=1, max_size=20)


@pytest.fixture(scope="module")
def returns() -> pd.DataFrame:
    runs = [REFERENCE / name for name in (*RUNS, "classic-ppo-cartpole")]
    return policy_returns(run_frame(runs))


def test_a_front_by_hand() -> None:
    costs = np.array([1.0, 2, 2, 3, 4, 1])
    values = np.array([5.0, 7, 6, 7, 9, 5])
    # (3, 7) costs more than (2, 7) for nothing; of two equal points both are on it.
    assert pareto_front(costs, values).tolist() == [True, True, False, False, True, True]


@settings(deadline=None)
@given(POINTS)
def test_off_the_front_is_what_something_on_it_beats(points: list[tuple[int, int]]) -> None:
    costs, values = np.array(points, dtype=float).T
    front = pareto_front(costs, values)
    assert front[np.lexsort((-values, costs))[0]] and front[np.lexsort((costs, -values))[0]]
    for place in np.flatnonzero(~front):
        beaten = (costs[front] <= costs[place]) & (values[front] >= values[place])
        assert beaten.any()


def test_bytes_of_the_reference_runs(returns: pd.DataFrame) -> None:
    table = pareto_bytes(returns)
    breakout = table[table["panel"] == "BreakoutNoFrameskip-v4"]
    front = breakout[breakout["on_front"]]
    assert list(front["cost"]) == [19_832, 37_680, 37_688, 114_208]
    assert not breakout[breakout["policy"] == "teacher"]["on_front"].any()
    assert set(table["panel"]) == {"BreakoutNoFrameskip-v4", "CartPole-v1"}


def test_latency_takes_the_row_of_the_same_size_and_bits(returns: pd.DataFrame) -> None:
    record = read_device_record(DEVICE)
    table = pareto_latency(returns, [record])
    assert set(table["panel"]) == {f"BreakoutNoFrameskip-v4, {record.device}"}
    measured = {(row.runtime, row.size, row.weight_bits): row.median_us for row in record.rows}
    students = table[table["size"] != "teacher"]
    for _, row in students.iterrows():
        assert row["cost"] == measured[row["runtime"], row["size"], row["weight_bits"]]
    # No 4-bit student was measured, nor one of CartPole; the teacher in two runtimes.
    assert set(students["weight_bits"]) == {8, 32}
    teacher = table[table["policy"] == "teacher"]
    assert sorted(teacher["runtime"]) == ["torch", "torch-compile"]
    assert list(table[table["on_front"]]["size"]) == ["XXS", "S"]
    # An XXS student of larger pictures is another network.
    larger = returns.assign(parameters=returns["parameters"] * 1.2)
    shown = pareto_latency(larger, [record])
    assert set(shown["size"]) == {"teacher"}


def test_a_benchmark_named_after_a_run_belongs_to_it(returns: pd.DataFrame) -> None:
    record = read_device_record(DEVICE)
    row = next(row for row in record.rows if row.runtime == "c")
    changed = {"model": "classic-ppo-cartpole", "size": None, "median_us": 0.5}
    rows = [row.model_copy(update=changed), row.model_copy(update=changed | {"weight_bits": 4})]
    table = pareto_latency(returns, [DeviceRecord(**record.model_dump() | {"rows": rows})])
    assert list(zip(table["experiment"], table["weight_bits"], table["cost"], strict=True)) == [
        ("classic-ppo-cartpole", 8, 0.5)
    ]
    assert pareto_latency(returns, []).empty


def test_a_teachers_row_belongs_to_that_agent_and_a_nature_cnn_to_all(
    returns: pd.DataFrame,
) -> None:
    record = read_device_record(DEVICE)
    row = next(row for row in record.rows if row.model == "teacher")
    cartpole = row.model_copy(update={"model": "teacher ppo CartPole-v1", "median_us": 60.0})
    breakout = {"model": "teacher dqn BreakoutNoFrameskip-v4", "size": "NatureCNN"}
    rows = [cartpole, row.model_copy(update=breakout | {"median_us": 900.0})]
    table = pareto_latency(returns, [DeviceRecord(**record.model_dump() | {"rows": rows})])
    assert set(table["policy"]) == {"teacher", "teacher_sharpened"}
    pairs = zip(table["env_id"], table["cost"], strict=True)
    assert set(pairs) == {("CartPole-v1", 60.0), ("BreakoutNoFrameskip-v4", 900.0)}


def test_the_figures(returns: pd.DataFrame) -> None:
    with paper_style():
        by_bytes = pareto_figure(pareto_bytes(returns))
        by_time = pareto_figure(pareto_latency(returns, [read_device_record(DEVICE)]))
    assert [axes.get_xlabel() for axes in by_bytes.axes] == ["bytes", "bytes"]
    (axes,) = by_time.axes
    assert axes.get_xlabel() == "µs per forward pass" and axes.get_xscale() == "log"
    drawn = {box.get_label(): box[0].get_xdata(orig=False) for box in axes.containers}
    # The fastest runtime, moved aside a little for the sharpened teacher, which costs as much.
    (plain,), (sharpened,) = drawn["PPO teacher"], drawn["PPO teacher, sharpened"]
    assert plain != sharpened and plain == pytest.approx(563.037, rel=0.1)
    assert (plain * sharpened) ** 0.5 == pytest.approx(563.037)
    assert [text.get_text() for text in axes.texts] == ["XXS, S"]  # 0.7 µs apart


def test_students_with_widths_of_their_own_are_all_drawn() -> None:
    runs = [REFERENCE / name for name in ("breakout-ppo-2kb", "breakout-ppo-6kb")]
    with paper_style():
        figure = pareto_figure(pareto_bytes(policy_returns(run_frame(runs))))
    (axes,) = figure.axes
    drawn = [float(cost) for box in axes.containers for cost in box[0].get_xdata(orig=False)]
    assert sorted(drawn) == [3_300, 6_400]
    # The front alone is named: the smaller one plays as well.
    assert [text.get_text() for text in axes.texts] == ["breakout-ppo-2kb"]


def test_no_mark_hides_another_and_labels_stand_above_the_bars() -> None:
    # Two 8-bit students of 37,680 and 37,688 bytes, both on the front.
    runs = [REFERENCE / name for name in ("quickstart", "breakout-ppo-xxs")]
    table = pareto_bytes(policy_returns(run_frame(runs)))
    with paper_style():
        (axes,) = pareto_figure(table).axes
    drawn = sorted(
        float(cost)
        for box in axes.containers
        if str(box.get_label()).endswith("8-bit")
        for cost in box[0].get_xdata(orig=False)
    )
    assert drawn[1] / drawn[0] > 1.05 and (drawn[0] * drawn[1]) ** 0.5 == pytest.approx(
        37_684, abs=1
    )
    students = table[table["on_front"] & (table["size"] == "XXS")]
    (label,) = axes.texts
    assert label.xy[1] >= students["mean_high"].max()


def test_what_is_left_out_is_named(returns: pd.DataFrame) -> None:
    by_bytes = pareto_bytes(returns)
    by_latency = pareto_latency(returns, [read_device_record(DEVICE)])
    reasons = pareto_left_out(returns, by_bytes, by_latency)
    assert "no device measured it" in reasons["classic-ppo-cartpole (qat)"]
    assert reasons["classic-ppo-cartpole (ptq)"] == "not drawn, as phase 3 went on from it"
    without = by_bytes[by_bytes["experiment"] != "breakout-ppo-s"]
    reasons = pareto_left_out(returns, without, None)
    assert "file was not kept" in reasons["breakout-ppo-s (qat)"]
    assert not any("latency" in reason for reason in reasons.values())


def test_what_a_terminal_shows(returns: pd.DataFrame) -> None:
    (shown,) = pareto_tables(pareto_latency(returns, [read_device_record(DEVICE)]))
    first = dict(zip(shown.header, shown.rows[0], strict=True))
    assert (first["runtime"], first["µs"]) == ("c-simd", "7.5")
    names = [line[0] for line in shown.rows if line[-1] == "yes"]
    assert names == ["breakout-ppo-xxs", "breakout-ppo-s"]
    breakout, _ = pareto_tables(pareto_bytes(returns))
    assert breakout.header[5] == "bytes" and breakout.rows[0][5] == "19,832"
