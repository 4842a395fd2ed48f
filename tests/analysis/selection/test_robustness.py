"""`qpd analyze robustness`, and the claim about noise, from games that `qpd evaluate` printed."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qpd.analysis.paper.controller_evidence import ControllerEvidence
from qpd.analysis.paper.integer_controllers import judge
from qpd.analysis.returns.mean_bootstrap import mean_of_ratios_estimate
from qpd.analysis.selection.measured_cells import MeasuredCells, Route, measured_routes
from qpd.analysis.selection.robustness import (
    noisy_pairs,
    ratio_over_noise,
    read_noisy_games,
    robustness,
)
from qpd.analysis.selection.rule import Cell
from tests.command_line import call

REFERENCE = Path(__file__).parents[3] / "runs-reference"
CARTPOLE = REFERENCE / "classic-ppo-cartpole"


def games_file(
    folder: Path,
    target: str,
    policy: str,
    levels: dict[float, float],
    env_id: str = "Hopper-v4",
    deviations: list[float] | None = None,
    quantized: bool = False,
    seed: int = 0,
) -> Path:
    """Write 40 games about each mean in `levels`, as `qpd evaluate --noise --json` prints them."""
    spread = np.linspace(-1.0, 1.0, 40)
    noise = [
        {"sigma": sigma, "return": {"returns": (mean * (1 + 0.1 * spread)).tolist(), "seed": seed}}
        for sigma, mean in levels.items()
    ]
    content: dict[str, Any] = {"target": target, "policy": policy, "env_id": env_id, "noise": noise}
    if deviations is not None:  # None as in files of earlier versions
        content |= {"deviations": deviations, "quantized": quantized}
    file = folder / f"{target}-{policy}.json"
    file.write_text(json.dumps(content))
    return file


def test_what_is_kept_and_what_of_the_floats(tmp_path: Path) -> None:
    files = [
        games_file(tmp_path, "few", "distilled", {0.0: 1000, 0.1: 500}),
        games_file(tmp_path, "few", "qat", {0.0: 800, 0.1: 600}),
        games_file(tmp_path, "agent", "teacher", {0.0: 2000, 0.1: 300}),
    ]
    table = robustness(read_noisy_games(files)).set_index(["target", "policy", "noise"])
    assert table.loc[("few", "qat", 0.1), "kept"] == pytest.approx(0.75)
    assert table.loc[("few", "qat", 0.1), "ratio"] == pytest.approx(1.2)
    assert table.loc[("few", "qat", 0.0), "ratio"] == pytest.approx(0.8)
    assert table.loc[("few", "distilled", 0.1), "kept"] == pytest.approx(0.5)
    assert np.isnan(table.loc[("agent", "teacher", 0.1), "ratio"])
    low, high = table.loc[("few", "qat", 0.1), ["ratio_low", "ratio_high"]]
    assert low < 1.2 < high and high - low < 0.2


def test_students_in_integers_have_few_bits_after_phase_2_too(tmp_path: Path) -> None:
    files = [
        games_file(tmp_path, "few", policy, {0.1: 500}) for policy in ("distilled", "ptq", "qat")
    ]
    pairs = noisy_pairs(read_noisy_games(files))
    assert [(few.policy, its.policy) for few, its, _ in pairs] == [
        ("ptq", "distilled"), ("qat", "distilled"),
    ]  # fmt: skip


def test_what_is_kept_is_told_game_by_game(tmp_path: Path) -> None:
    # Games differ threefold, and each keeps 0.90 of itself: so does the policy, for sure.
    file = games_file(tmp_path, "one", "qat", {0.0: 1000, 0.1: 900})
    table = robustness(read_noisy_games([file])).set_index("noise")
    kept = table.loc[0.1, ["kept_low", "kept", "kept_high"]].tolist()
    assert kept == pytest.approx([0.9, 0.9, 0.9])


def test_a_controller_without_a_student_is_compared_with_its_twin(tmp_path: Path) -> None:
    files = [
        games_file(tmp_path, "twin", "teacher", {0.0: 900, 0.3: 400}),
        games_file(tmp_path, "trained", "qat", {0.0: 900, 0.3: 500, 0.5: 100}),
        games_file(tmp_path, "elsewhere", "qat", {0.0: 900, 0.3: 500}, "Ant-v4"),
    ]
    pairs = noisy_pairs(read_noisy_games(files))
    ((played, twin, ((few, its),)),) = pairs
    assert (str(played), str(twin)) == ("trained, qat", "twin, teacher")
    assert few.mean() == pytest.approx(500) and its.mean() == pytest.approx(400)


@pytest.mark.parametrize(
    ("few", "twin", "is_told"),
    [([1.0, 2.0], [1.0, 2.0], False), ([1.0, 2.0], [1.0, 2.5], True), (None, None, True)],
)
def test_noise_that_is_not_equal_is_told(
    tmp_path: Path,
    few: list[float] | None,
    twin: list[float] | None,
    is_told: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    levels = {0.0: 900.0, 0.3: 800.0}
    files = [
        games_file(tmp_path, "twin", "teacher", levels, deviations=twin),
        games_file(tmp_path, "few", "qat", levels, deviations=few),
    ]
    code, out, _ = call(capsys, "analyze", "robustness", *files)
    assert code == 0 and ("twin, teacher and few, qat: each noise" in out) == is_told
    assert "other games" not in out
    claims = judge(ControllerEvidence([], [], read_noisy_games(files)))
    (claim,) = [each for each in claims if "noise" in each.text]
    assert ("noise in units of each one's own play" in claim.evidence) == is_told


def test_a_trained_controller_is_no_float_and_other_games_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = [1.0, 2.0]
    files = [
        games_file(tmp_path, "int3", "teacher", {0.3: 600.0}, deviations=one, quantized=True),
        games_file(tmp_path, "twin", "teacher", {0.3: 400.0}, deviations=one, seed=5),
    ]
    ((few, twin, _),) = noisy_pairs(read_noisy_games(files))
    assert (few.target, twin.target) == ("int3", "twin")
    table = robustness(read_noisy_games(files)).set_index("target")
    assert table.loc["int3", "ratio"] == pytest.approx(1.5) and np.isnan(table.loc["twin", "ratio"])
    code, out, _ = call(capsys, "analyze", "robustness", *files)
    assert code == 0 and "int3, teacher and twin, teacher: other games, of seeds 0 and 5" in out
    code, _, err = call(capsys, "analyze", "robustness", tmp_path / "none.json")
    assert code == 2 and "none.json: no such file" in err


@pytest.mark.parametrize("shared", [0.0, 30.0])
def test_games_that_levels_share_are_resampled_together(shared: float) -> None:
    # Each level's mean is 100 and 200; what a game has at all levels does not average out.
    rng = np.random.default_rng(0)
    levels, count = 6, 200
    few, base = (
        mean + shared * rng.normal(size=count) + 10.0 * rng.normal(size=(levels, count))
        for mean in (100.0, 200.0)
    )
    pairs = [(few[None, level], base[None, level]) for level in range(levels)]
    found = ratio_over_noise(pairs)
    assert found is not None
    assert found.value == pytest.approx(np.mean(few.mean(1) / base.mean(1)))
    # By hand: the variance of the mean over levels, of each side.
    variance = (shared**2 + 10.0**2 / levels) / count
    expected = (variance / 200.0**2 + variance * 100.0**2 / 200.0**4) ** 0.5
    assert found.error == pytest.approx(expected, rel=0.15)
    low, high = found.interval()
    assert high - low == pytest.approx(2 * 1.97 * found.error, rel=0.1)
    apart = mean_of_ratios_estimate(pairs)
    assert apart is not None
    if shared:
        assert found.error > 1.8 * apart.error  # as if levels were independent
    else:
        assert found.error == pytest.approx(apart.error, rel=0.15)


def test_levels_of_unlike_games_or_a_base_near_0_have_no_ratio() -> None:
    few, base = np.full((1, 20), 3.0), np.linspace(1.0, 2.0, 20)[None]
    assert ratio_over_noise([(few, base), (few[:, :10], base)]) is None
    assert ratio_over_noise([(few, base - 1.5)]) is None


@pytest.mark.parametrize(
    ("mean", "verdict"), [(600.0, "held"), (200.0, "did not hold"), (370.0, "not decided")]
)
def test_the_claim_about_noise(tmp_path: Path, mean: float, verdict: str) -> None:
    files = [
        games_file(tmp_path, "few", "distilled", {0.0: 900, 0.1: 500}),
        games_file(tmp_path, "few", "qat", {0.0: 900, 0.1: mean}),
    ]
    # Hopper's parity in the paper is 0.74 of the float's return.
    noisy = read_noisy_games(files)
    claims = judge(ControllerEvidence([MeasuredCells(Route("Hopper-v4"))], [], noisy))
    (claim,) = [each for each in claims if "noise" in each.text]
    assert str(claim.verdict) == verdict


def test_the_command_reads_what_evaluate_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--noise", "0,3", "--episodes", "8", "--seed", "1", "--json")
    files = []
    for policy in ("distilled", "qat"):
        code, out, _ = call(capsys, "evaluate", CARTPOLE, "--policy", policy, *options)
        assert code == 0
        files.append(tmp_path / f"{policy}.json")
        files[-1].write_text(out)
    code, out, _ = call(capsys, "analyze", "robustness", *files, "-o", tmp_path / "figures")
    assert code == 0 and "classic-ppo-cartpole, qat" in out and "of the float's" in out
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {"robustness.png", "robustness.svg", "robustness.csv"}


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", '{"target": 1, "policy": "qat", "env_id": "A", "noise": []}',
     '{"target": "a", "policy": "qat", "env_id": "A", "noise": [{"sigma": 0}]}',
     '{"target": "a", "policy": "qat", "env_id": "A", '
     '"noise": [{"sigma": 0, "return": {"returns": [1]}}]}'],
)  # fmt: skip
def test_other_files_are_one_line(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "games.json"
    file.write_text(content)
    code, _, err = call(capsys, "analyze", "robustness", file)
    assert code == 2 and len(err.strip().splitlines()) == 1 and "holds no games" in err
    code, _, err = call(capsys, "analyze", "paper", CARTPOLE, "--noise", file)
    assert code == 2 and "--noise: belongs to --paper integer-controllers" in err


def test_the_claim_about_learning_compares_areas_of_trainings() -> None:
    found = MeasuredCells(Route("Hopper-v4"))
    chosen = Cell(2, 16, 6)  # the paper's of Hopper
    for seed in range(5):
        found.floats[256][seed] = np.array([1.0])
        for key, mean in ((256, 600.0 + seed), (chosen, 620.0 - seed), (Cell(8, 256, 8), 1.0)):
            found.curves[key][seed] = np.array([[0.0, 1000.0], [0.0, 2.0 * mean]])
    claims = judge(ControllerEvidence([found]))
    (claim,) = [each for each in claims if "learn as fast" in each.text]
    assert str(claim.verdict) == "held" and "1.03 [1.0" in claim.evidence
    assert "5 and 5 seeds" in claim.evidence


def test_the_area_below_a_curve() -> None:
    folder = REFERENCE / "controllers" / "trained"
    (route,) = measured_routes([folder / "hopper-16-2-6-s0", folder / "hopper-twin-256-s0"])
    for key, name in ((256, "hopper-twin-256-s0"), (Cell(2, 16, 6), "hopper-16-2-6-s0")):
        rows = list(csv.DictReader((folder / name / "metrics.csv").read_text().splitlines()))
        points = [(int(row["timesteps"]), float(row["episode_return"])) for row in rows
                  if row["episode_return"]]  # fmt: skip
        area = sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in itertools.pairwise(points))
        assert route.learning[key][0] == pytest.approx([area / (points[-1][0] - points[0][0])])


def test_a_trainings_float_is_its_twin_of_the_same_seed(tmp_path: Path) -> None:
    one, levels = [1.0, 2.0], {0.3: 500.0}
    files = [
        games_file(tmp_path, "old-s1", "teacher", levels, deviations=[9.0, 9.0]),
        games_file(tmp_path, "student-s1", "teacher", levels, deviations=one),  # it lent its agent
        games_file(tmp_path, "student-s1", "qat", levels, deviations=one),
        games_file(tmp_path, "float-s0", "teacher", levels, deviations=one),
        games_file(tmp_path, "float-s1", "teacher", levels, deviations=one),
        games_file(tmp_path, "int-s1", "teacher", levels, deviations=one, quantized=True),
    ]
    pairs = noisy_pairs(read_noisy_games(files))
    assert {few.target: its.target for few, its, _ in pairs}["int-s1"] == "float-s1"
