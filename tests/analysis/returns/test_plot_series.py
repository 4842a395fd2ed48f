"""What a series is called, and that two series never look alike."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from qpd.analysis.returns.plot_series import bits_text, precision_name, series_styles, with_series
from qpd.analysis.returns.policy_returns import final_students, policy_returns
from qpd.analysis.runs.run_frame import run_frame
from tests.analysis.made_up_runs import make_run


def named(*runs: Path) -> pd.DataFrame:
    return with_series(final_students(policy_returns(run_frame(runs))))


@pytest.mark.parametrize(
    "bits, name",
    [
        (("32", 32, 32.0), "fp32"),
        (("8", 8, 8.0), "8-bit"),
        (("8", 4, 8.0), "8-bit (activations 4)"),
        (("8/2/8", 2, 2.34), "8/2/8-bit (activations 2), mean 2.3"),
        (("8/2.../8", 8, float("nan")), "8/2.../8-bit (activations 8)"),
    ],
)
def test_precisions(bits: tuple[str, int, float], name: str) -> None:
    row = dict(zip(("layer_bits", "activation_bits", "mean_bits"), bits, strict=True))
    assert bits_text(row) == name and precision_name(row) == name.split(", mean")[0]


def test_names_are_as_long_as_they_must_be(tmp_path: Path) -> None:
    def run(name: str, *changes: str, algo: str = "ppo") -> Path:
        return make_run(tmp_path / name, {"qat": [1.0, 2]}, changes=changes, algo=algo)

    xxs, small = run("xxs"), run("s", "student.size=S")
    assert set(named(xxs, small)["series"]) == {"PPO, 8-bit"}
    assert set(named(xxs, run("a2c", algo="a2c"))["series"]) == {"PPO, 8-bit", "A2C, 8-bit"}
    # Two of one size differ in lambda: of the third, of another size, the name grows too.
    one = run("lambda-1", "distill.actor_weight=1")
    assert sorted(named(xxs, small, one)["series"]) == [
        "PPO, λ 0.5, 8-bit",
        "PPO, λ 0.5, 8-bit",
        "PPO, λ 1, 8-bit",
    ]
    literal = run("literal", "quantize.scheme=dorefa", "quantize.equalization=0")
    assert set(named(xxs, literal)["series"]) == {
        "PPO, λ 0.5, scaled, 8-bit",
        "PPO, λ 0.5, DoReFa as written, 8-bit",
    }
    longer = run("longer", "distill.epochs=99")
    assert set(named(xxs, longer)["series"]) == {"PPO: xxs, 8-bit", "PPO: longer, 8-bit"}


def test_two_teachers_of_one_algorithm_are_told_apart(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / acting, {"teacher": [1.0]}, acting=acting)
        for acting in ("greedy", "sampled")
    ]
    names = {"PPO teacher 707070, greedy", "PPO teacher 707070, sampled"}
    assert set(named(*runs)["series"]) == names == set(series_styles(named(*runs)))


def test_no_two_series_look_alike(tmp_path: Path) -> None:
    returns = {"teacher": [1.0], "teacher_sharpened": [1.0], "distilled": [1.0], "qat": [1.0]}
    runs = [
        make_run(tmp_path / f"{algo}-{bits}", returns, changes=changes, algo=algo)
        for algo in ("ppo", "a2c", "dqn")
        for bits, changes in {
            "8": (),
            "8-4": ("quantize.activation_bits=4",),
            "6": ("quantize.weight_bits=6", "quantize.activation_bits=6"),
            "3": ("quantize.weight_bits=3", "quantize.activation_bits=3"),
            "2": ("quantize.weight_bits=2", "quantize.first_layer_bits=8"),
        }.items()
    ]
    table = named(*runs)
    styles = series_styles(table)
    assert len(styles) == table["series"].nunique() == 3 * (2 + 1 + 5)
    looks = [(style.colour, style.marker, style.filled) for style in styles.values()]
    assert len(set(looks)) == len(looks)
    # One colour for a teacher and its students, and a legend that begins with most bits.
    for algo in ("PPO", "A2C", "DQN"):
        assert len({style.colour for name, style in styles.items() if algo in name}) == 1
    assert [name for name in styles if name.startswith("DQN")][0] == "DQN, fp32"
    assert all("teacher" in name for name in list(styles)[-6:])
