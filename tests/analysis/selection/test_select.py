"""`qpd select` on trainings and on students, made for real and briefly."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import qpd
from qpd.recipe.train_schema import override_train_recipe
from qpd.runs.training_run import TrainingRun
from tests.analysis.continuous_run import continuous_run
from tests.analysis.made_up_runs import REFERENCE
from tests.command_line import call
from tests.phases.small_trainings import FAST_SETTINGS, SMALL

pytestmark = pytest.mark.filterwarnings("default")  # the zoo's own dependencies warn
BRIEF: dict[str, Any] = {"train.timesteps": 100, "learning_starts": 50, "gradient_steps": 1}
CONTROLLERS: dict[str, dict[str, Any]] = {
    "core-8": {"quantization.core_bits": 8},
    "core-3": {"quantization.core_bits": 3},
    "twin": {"quantization.core_bits": 8, "quantization.delay": 1.0},
}
RETURNS = {"core-8": -200.0, "core-3": -230.0, "twin": -210.0}


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two controllers and the float twin, with made-up games of two seeds."""
    folder = tmp_path_factory.mktemp("runs")
    for name, settings in CONTROLLERS.items():
        for seed in range(2):
            made = qpd.train(
                "sac", "Pendulum-v1", overrides=FAST_SETTINGS | BRIEF | settings,
                output=folder / f"{name}-{seed}", **{**SMALL, "seed": seed},
            )  # fmt: skip
            games = [RETURNS[name] + 10 * seed + game for game in (-1.0, 1.0)]
            with TrainingRun.create(made.path, made.recipe) as run:
                run.record_evaluation(
                    "teacher" if name == "twin" else "qat",
                    {"mean": sum(games) / 2, "interval": games, "episodes": 2, "returns": games,
                     "acting": "greedy", "seed": 0},
                )  # fmt: skip
    return folder


def test_the_fewest_bits_at_parity(
    trainings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "select", trainings, "--json", "-o", tmp_path / "t")
    assert code == 0, err
    found = json.loads(out)
    # The twin: -210 and -200, so that parity begins at -205 - sqrt(50) = -212.07.
    assert all(row["edge"] == pytest.approx(-212.0710678) for row in found["choices"])
    assert [(row["rule"], row["step"], row["chosen"]) for row in found["choices"]] == [
        ("paper", "core", 8), ("paper", "width", 16), ("paper", "inputs", 8),
        ("monotone", "core", 8), ("monotone", "width", 16), ("monotone", "inputs", 8),
    ]  # fmt: skip
    parity = {(row["core"], row["at_parity"], row["mean"], row["seeds"]) for row in found["cells"]}
    assert parity == {(8, True, -195.0, 2), (3, False, -225.0, 2)}
    # Pendulum's returns are below 0, and a share of them means nothing.
    assert {path.name for path in (tmp_path / "t").iterdir()} == {"cells.csv", "choices.csv"}
    # A tenth of the return may be lost: 3 bits are enough.
    code, out, _ = call(capsys, "select", trainings, "--share", "0.9", "--json")
    assert code == 0 and json.loads(out)["choices"][0]["chosen"] == 3
    code, out, _ = call(capsys, "select", trainings)
    assert code == 0 and "core bits" in out
    assert out.startswith(
        "Pendulum-v1, trained (SAC, 100 steps): the float of width 16 returns -205.0 (2 seeds); "
        "parity from -212.1 on, one deviation over seeds below it\n"
    )
    assert "no figure" in out


def test_seeds_of_unlike_recipes_are_told(
    trainings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trainings, tmp_path / "runs")
    changed = ["quantization.grid=full", "learning_rate=0.003", "train.checkpoint_every=50"]
    for name in ("core-3-1", "twin-1"):
        shutil.rmtree(tmp_path / "runs" / name)
        made = TrainingRun.open(trainings / name)
        recipe = override_train_recipe(made.recipe, changed)
        with TrainingRun.create(tmp_path / "runs" / name, recipe) as run:
            run.set_phase(**made.phase.model_dump())
            for policy, games in made.manifest.evaluations.items():
                run.record_evaluation(policy, dict(games))
            if made.quantized_file.is_file():
                shutil.copy(made.quantized_file, run.quantized_file)
    code, out, err = call(capsys, "select", tmp_path / "runs")
    assert code == 0, err
    notes = [line for line in (out + err).splitlines() if "counts as a seed" in line]
    rate = "train.hyperparameters.learning_rate"
    assert len(notes) == 2  # a float twin has no grid
    assert f"of core 3, width 16, input 8, but quantization.grid, {rate} is not" in notes[0]
    assert f"of floats of width 16, but {rate} is not" in notes[1]


def test_a_controller_without_its_integers_is_no_float(
    trainings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trainings / "core-3-0", tmp_path / "few")
    (tmp_path / "few" / "quantized.safetensors").unlink()
    # Beside the floats, 3 bits' games would make parity easier.
    code, out, err = call(capsys, "select", trainings, tmp_path / "few", "--json")
    assert code == 0, err
    assert all(row["edge"] == pytest.approx(-212.0710678) for row in json.loads(out)["choices"])
    _, out, err = call(capsys, "select", trainings, tmp_path / "few")
    assert "few: is a controller whose integers are not there; left out" in out + err


def test_a_training_too_short_for_integers_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ("--timesteps", 50, "--bits", "core=3", "--set", "net_arch=[16,16]")
    code, out, err = call(capsys, "train", "sac", "Pendulum-v1", *short, "-o", tmp_path / "short")
    assert code == 0 and "nothing was learned in few bits" in err and "make a student" not in out, (
        out + err
    )
    shutil.move(tmp_path / "short" / "Pendulum-v1.zip", tmp_path)
    code, out, _ = call(capsys, "show", tmp_path / "short", "--json")
    found = json.loads(out)
    assert code == 0 and found["lacks_integers"] is True and found["agent"] is None


def test_students_of_a_run_are_cells_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = continuous_run(tmp_path, quantize={"weight_bits": 8})
    for policy in ("qat", "distilled"):
        assert call(capsys, "evaluate", run, "--policy", policy)[0] == 0
    code, out, err = call(capsys, "select", run, "--share", "0.5", "--json")
    assert code == 0, err
    (cell,) = {
        (row["core"], row["width"], row["inputs"], row["seeds"]) for row in json.loads(out)["cells"]
    }
    assert cell[0] == 8 and cell[2:] == (8, 1)
    # One float student has no deviation over seeds.
    code, _, err = call(capsys, "select", run)
    assert code == 2 and "--share" in err


def test_what_cannot_be_compared_is_one_line(
    trainings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trainings / "core-3-0", tmp_path / "again")
    for paths, said in (
        ([trainings, tmp_path / "again"], "again: is core 3, width 16, input 8 of seed 0, as"),
        ([trainings / "core-3-0"], "no float policy was evaluated"),
        ([trainings / "twin-0"], "no controller was evaluated: only floats were"),
    ):
        code, _, err = call(capsys, "select", *paths)
        assert code == 2 and said in err and "Traceback" not in err, err


def test_a_grid_without_its_widest_network_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__).parents[3] / "runs-reference" / "controllers" / "hopper"
    cells = [folder / name for name in ("core-2-width-256-input-2", "core-2-width-128-input-8")]
    code, _, said = call(capsys, "select", *cells, "--share", "0.5")
    assert code == 2
    assert "no run has width 256, inputs 8, outputs 8, where the choice begins" in said


def test_students_of_two_schemes_are_two_routes(capsys: pytest.CaptureFixture[str]) -> None:
    kept = REFERENCE / "controllers-narrow"
    both = [kept / f"hopper-16-core-2-input-6-{weights}" for weights in ("narrow", "odd")]
    code, out, err = call(capsys, "select", *both, "--share", "0.5")
    assert code == 2 and not out
    assert "students of TQC (narrow weights); Hopper-v4, students of TQC: select for one" in err
    for run, mean in zip(both, (1021.1, 994.2), strict=True):
        code, out, err = call(capsys, "select", run, "--share", "0.5", "--json")
        assert code == 0, err
        ((core, found),) = {(row["core"], row["mean"]) for row in json.loads(out)["cells"]}
        assert core == 2 and found == pytest.approx(mean, abs=0.05)
