"""Training curves from monitor files, against numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpd.analysis.figure_style import error_lengths, paper_style
from qpd.analysis.returns.training_curve import draw_training, training_curve
from qpd.errors.user_error import TargetError

Games = list[tuple[float, int, float]]  # return, length, seconds since the file's start


def monitor(folder: Path, name: str, began: float, games: Games) -> None:
    lines = [f'#{{"t_start": {began}, "env_id": "x"}}', "r,l,t"]
    lines += [f"{r},{length},{t}" for r, length, t in games]
    (folder / f"{name}.monitor.csv").write_text("\n".join(lines) + "\n")


def test_the_zoos_files_are_merged_in_the_order_in_which_games_ended(tmp_path: Path) -> None:
    monitor(tmp_path, "0", 100.0, [(1, 10, 1.0), (3, 10, 3.0)])
    monitor(tmp_path, "1", 100.5, [(2, 20, 1.0), (4, 20, 9.0)])
    curve = training_curve(tmp_path)
    assert curve is not None and curve.resumed_at == ()
    assert curve.games["return"].tolist() == [1, 2, 3, 4]
    assert curve.games["steps"].tolist() == [10, 30, 40, 60]


def test_play_after_the_checkpoint_that_a_training_went_on_from_is_left_out(tmp_path: Path) -> None:
    monitor(tmp_path, "0", 0.0, [(1, 1500, 1.0), (2, 500, 2.0), (9, 700, 3.0)])
    monitor(tmp_path, "2000", 50.0, [(3, 400, 1.0), (5, 800, 2.0)])
    curve = training_curve(tmp_path)
    assert curve is not None and curve.resumed_at == (2000,)
    assert curve.games["return"].tolist() == [1, 2, 3, 5]
    assert curve.games["steps"].tolist() == [1500, 2000, 2400, 3200]
    earlier = training_curve(tmp_path, num_timesteps=2500)  # of an older checkpoint
    assert earlier is not None and earlier.games["steps"].tolist() == [1500, 2000, 2400]


def test_a_checkpoint_from_before_a_resumption_has_a_shorter_curve(tmp_path: Path) -> None:
    monitor(tmp_path, "0", 0.0, [(1, 1500, 1.0), (2, 500, 2.0)])
    monitor(tmp_path, "2000", 50.0, [(3, 400, 1.0)])
    curve = training_curve(tmp_path, num_timesteps=1700)
    assert curve is not None and curve.games["steps"].tolist() == [1500]
    assert curve.resumed_at == ()


def test_the_zoo_counts_emulator_frames_of_atari_games(tmp_path: Path) -> None:
    for name, unit in (("zoo", ""), ("ours", ', "unit": "agent steps"')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.monitor.csv").write_text(
            f'#{{"t_start": 0, "env_id": "BreakoutNoFrameskip-v4"{unit}}}\nr,l,t\n5,400,1\n'
        )
    zoo, ours = training_curve(tmp_path / "zoo"), training_curve(tmp_path / "ours")
    assert zoo is not None and zoo.games["steps"].tolist() == [100]
    assert ours is not None and ours.games["steps"].tolist() == [400]


def test_spans_hold_the_games_that_ended_in_them(tmp_path: Path) -> None:
    games: Games = [(float(n), 10, float(n)) for n in range(200)]  # to 2,000 steps, 2 a span
    monitor(tmp_path, "0", 0.0, games)
    curve = training_curve(tmp_path)
    assert curve is not None
    table = curve.binned()
    assert table["steps"].tolist() == [20 * n for n in range(1, 101)]
    assert table["games"].tolist() == [2] * 100
    assert table["mean"].tolist() == [2 * n + 0.5 for n in range(100)]
    assert table["low"].iloc[0] == pytest.approx(0.1)
    assert table["high"].iloc[0] == pytest.approx(0.9)
    with paper_style():
        figure = draw_training(curve, (200.0, 190.0, 210.0))
    (axes,) = figure.axes
    assert axes.get_xlabel() == "agent steps (millions)" and axes.get_ylabel() == "return"


def test_without_monitor_files_there_is_no_curve(tmp_path: Path) -> None:
    assert training_curve(tmp_path) is None


@pytest.mark.parametrize("text", ["", "r,l,t\n", '#{"t_start": 1}\nr,l\n1,2\n', "#[]\nr,l,t\n"])
def test_another_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "0.monitor.csv").write_text(text)
    with pytest.raises(TargetError, match="0.monitor.csv: is not a monitor file"):
        training_curve(tmp_path)


def test_equal_games_have_an_interval_of_no_length(tmp_path: Path) -> None:
    """The mean of 200 times 0.961 is 0.9610000000000002, beyond the interval's end."""
    monitor(tmp_path, "0", 0.0, [(1, 10, 1.0), (3, 10, 3.0)])
    curve = training_curve(tmp_path)
    assert curve is not None
    with paper_style():
        draw_training(curve, (0.9610000000000002, 0.961, 0.961))
    lengths = error_lengths([1.0, 0.9610000000000002], [0.5, 0.961], [1.25, 0.961])
    assert lengths[:, 0].tolist() == [0.5, 0.25] and (lengths[:, 1] >= 0).all()
