"""The command line: one JSON object on stdout, one line and exit code 2 for the user's errors."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from stable_baselines3 import PPO

from qpd import __version__
from qpd.runs.run_directory import RunDirectory
from tests.command_line import call

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

torch.set_num_threads(1)

ROOT = Path(__file__).parents[2]
CI_RECIPE = ROOT / "recipes" / "ci.yaml"


@pytest.fixture(scope="module")
def cartpole_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("teacher") / "ppo-CartPole-v1.zip"
    PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, seed=0, device="cpu").save(path)
    return path


def one_error_line(result: tuple[int, str, str]) -> str:
    """Exit code 2, nothing on stdout, one line on stderr, no run directory."""
    code, out, err = result
    assert (code, out) == (2, ""), err
    lines = err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), err
    assert not Path("runs").exists()
    return lines[0]


def test_a_tiny_run_prints_one_json_object(tmp_path: Path) -> None:
    overrides = [
        "environment.num_envs=4",
        "environment.max_frames=200",
        "replay.capacity=256",
        "distill.epochs=1",
        "quantize.calibration_samples=64",
        "quantize.weight_bits=4",
        "evaluation.episodes=2",
        "evaluation.validation_episodes=1",
    ]
    command = [sys.executable, "-m", "qpd.cli", "run", str(CI_RECIPE), "-o", str(tmp_path / "run")]
    command += ["--json", "--seed", "5", "--device", "cpu"]
    command += [part for override in overrides for part in ("--set", override)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    summary = json.loads(done.stdout)  # fails on anything before or after the object
    assert done.stdout.count("\n") == 1
    assert set(summary["phases"].values()) == {"done"}
    assert (summary["name"], summary["recipe"], summary["seed"]) == ("run", "ci", 5)
    assert set(summary["seconds"]) == {"collect", "gather", "train", "validate", "evaluate"}
    assert min(summary["seconds"].values()) > 0
    policies = summary["policies"]
    assert {"teacher", "distilled", "ptq", "qat"} <= set(policies)
    assert policies["teacher"]["num_parameters"] == 1_686_693
    assert policies["distilled"]["num_parameters"] == 35_796
    for name in ("teacher", "distilled", "ptq", "qat"):
        returns = policies[name]["return"]
        assert returns["episodes"] == len(returns["returns"]) == 2
        assert all(length <= 50 for length in returns["lengths"])  # 200 frames
        low, high = returns["interval"]
        assert low <= returns["mean"] <= high
    # 4 bits: an eighth of the float student's bytes, and what the header and the biases add.
    written = (tmp_path / "run" / "quantized.safetensors").stat().st_size
    assert policies["qat"]["size_bytes"] == written < 35_796 / 2 + 4096
    assert not (tmp_path / "run" / "checkpoint").exists()
    recipe = RunDirectory.open(tmp_path / "run", read_only=True).recipe
    assert (recipe.seed, recipe.quantize.weight_bits, recipe.replay.capacity) == (5, 4, 256)


def test_a_student_that_phase_3_kept_is_played_once(
    cartpole_zip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "run",
        "discrete/ppo-cartpole",
        "--teacher",
        str(cartpole_zip),
        "-o",
        "run",
        "--json",
    ]
    for override in (
        "environment.num_envs=4",
        "environment.max_frames=60",
        "replay.capacity=64",
        "distill.epochs=1",
        "finetune.epochs=0",
        "evaluation.episodes=3",
        "evaluation.validation_episodes=1",
    ):
        command += ["--set", override]
    code, out, err = call(capsys, *command)
    assert code == 0, err
    policies = json.loads(out)["policies"]
    kept, before = policies["qat"]["return"], policies["ptq"]["return"]
    assert kept == {**before, "seconds": 0.0}
    assert "qat: phase 3 kept phase 2's student" in err


def test_a_small_run_in_steps_and_again(
    cartpole_zip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--teacher", str(cartpole_zip), "-o", "run", "--json"]
    for override in (
        "environment.num_envs=4",
        "replay.capacity=64",
        "distill.epochs=1",
        "finetune.epochs=1",
        "evaluation.episodes=2",
        "evaluation.validation_episodes=2",
        "save.tensorboard=false",
    ):
        common += ["--set", override]
    code, out, err = call(capsys, "distill", "discrete/ppo-cartpole", *common)
    assert code == 0, err
    assert json.loads(out)["phases"]["distill"] == "done"
    code, _, err = call(capsys, "finetune", "run")
    assert code == 2 and "finetune needs a finished quantize" in err
    code, _, err = call(capsys, "quantize", "run", "--set", "distill.lr=1e-3")
    assert code == 2 and "changes quantize.*, finetune.*, evaluation.* only" in err
    code, out, err = call(capsys, "quantize", "run", "--set", "quantize.weight_bits=3", "--json")
    assert code == 0, err
    assert json.loads(out)["policies"]["ptq"]["weight_bits"] == 3
    code, _, err = call(capsys, "quantize", "run", "--set", "quantize.weight_bits=4")
    assert code == 2 and "begun with other settings (quantize.weight_bits: was 3, now 4)" in err
    code, out, err = call(capsys, "finetune", "run", "--json")
    assert code == 0, err
    assert json.loads(out)["phases"]["finetune"] == "done"
    code, out, err = call(capsys, "finetune", "run")
    assert code == 0 and "already done in run, nothing to do" in err
    assert "finetuned (QAT)" in out
    code, _, err = call(capsys, "distill", "discrete/ppo-cartpole", *common, "--seed", "7")
    assert code == 2 and "was made with another recipe" in err and "seed" in err


def test_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "recipes", "--json")
    assert (code, err) == (0, "")
    listed = json.loads(out)["recipes"]
    names = [recipe["name"] for recipe in listed]
    assert len(names) == len(set(names)) >= 25
    assert {"ci", "quickstart", "paper/ppo-s", "discrete/ppo-cartpole"} <= set(names)
    assert all(recipe["description"] for recipe in listed)
    code, out, _ = call(capsys, "recipes")
    assert code == 0 and all(name in out for name in names)


def test_a_recipe_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "recipes", "quickstart")
    assert (code, out, err) == (0, (ROOT / "recipes/quickstart.yaml").read_text(), "")
    code, out, _ = call(capsys, "recipes", "breakout/ppo-s")
    assert code == 0 and "\nbase: breakout/base\n" in out
    assert "did you mean quickstart?" in call(capsys, "recipes", "quikstart")[2]


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--version")
    assert (code, out) == (0, f"qpd {__version__}\n")


def test_a_wrong_key_names_file_key_and_nearest_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("student: {size: XXS}\ndistill: {epohcs: 3}\n")
    line = one_error_line(call(capsys, "run", str(file)))
    assert "mine.yaml" in line and "distill.epohcs" in line and "epochs" in line


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("distill.leaning_rate=1", ["distill.leaning_rate"]),
        ("distil.lr=1", ["distil", "distill"]),
        ("distill.lr=-1", ["distill.lr", "-1"]),
        ("student.size=XS2", ["student.size", "XS2"]),
        ("nonsense", ["nonsense"]),
    ],
)
def test_wrong_overrides(
    override: str, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = one_error_line(call(capsys, "run", str(CI_RECIPE), "--set", override))
    assert all(part in line for part in parts), line


def test_an_unknown_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    line = one_error_line(call(capsys, "run", "paper/ppo-xsx"))
    assert "paper/ppo-xsx" in line and "paper/ppo-xs" in line


def test_a_teacher_for_another_environment(
    cartpole_zip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--teacher", str(cartpole_zip), "--set", "teacher.env=BreakoutNoFrameskip-v4"]
    line = one_error_line(call(capsys, "run", str(CI_RECIPE), *arguments))
    assert "(4,)" in line and "(4, 84, 84)" in line and "BreakoutNoFrameskip-v4" in line


def test_a_student_that_does_not_fit_the_environment(
    cartpole_zip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # ci.yaml's student reads frames, CartPole has none.
    line = one_error_line(call(capsys, "run", str(CI_RECIPE), "--teacher", str(cartpole_zip)))
    assert "student" in line and "(4,)" in line


def test_a_missing_teacher(capsys: pytest.CaptureFixture[str]) -> None:
    line = one_error_line(call(capsys, "run", str(CI_RECIPE), "--teacher", "absent/agent.zip"))
    assert "absent/agent.zip" in line


def test_an_unknown_environment(cartpole_zip: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--teacher", str(cartpole_zip), "--set", "teacher.env=CartPole-v9"]
    line = one_error_line(call(capsys, "run", str(CI_RECIPE), *arguments))
    assert "CartPole-v9" in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="has the device that is to be missing")
def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    line = one_error_line(call(capsys, "run", str(CI_RECIPE), "--device", "cuda"))
    assert "cuda" in line and "no usable CUDA device" in line


@pytest.mark.parametrize("command", ["quantize", "finetune"])
def test_a_folder_that_is_no_run(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    assert "is not a run directory" in one_error_line(call(capsys, command, "folder"))
    assert "is not a run directory" in one_error_line(call(capsys, command, "absent"))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [(["run"], "recipe"), (["run", "ci", "--sed", "1"], "--sed"), (["rnu"], "rnu")],
)
def test_wrong_usage(arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, *arguments)
    assert code == 2 and out == ""
    assert part in err and "Traceback" not in err


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, *arguments)
    assert code == 0 and "Usage: " in out and err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("streams", ["2> /dev/full", ">&- 2>&-"])
def test_a_run_goes_on_where_nothing_can_be_said(streams: str, tmp_path: Path) -> None:
    settings = ["distill.epochs=1", "finetune.epochs=1", "evaluation.episodes=2"]
    settings += ["environment.num_envs=4", "replay.capacity=256"]
    words = [sys.executable, "-m", "qpd.cli", "run", "ci", "-o", str(tmp_path / "run")]
    words += [part for each in settings for part in ("--set", each)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        f"{shlex.join(words)} {streams}", shell=True, env=environment, timeout=300, check=False,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert done.returncode == 0
    assert {"distilled", "qat"} <= set(RunDirectory.open(tmp_path / "run").manifest.evaluations)
    # And an error is an exit code at least.
    words = [sys.executable, "-m", "qpd.cli", "show", str(tmp_path / "absent")]
    failed = subprocess.run(f"{shlex.join(words)} {streams}", shell=True, env=environment)
    assert failed.returncode == 2


def test_several_runs_are_shown_in_turn(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [ROOT / "runs-reference" / f"classic-ppo-{name}" for name in ("cartpole", "lunarlander")]
    code, out, err = call(capsys, "show", *runs)
    assert (code, err) == (0, "")
    assert out.index("CartPole-v1") < out.index("LunarLander-v3")
    code, out, _ = call(capsys, "show", *runs, "--json")
    shown = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [one["name"] for one in shown] == [run.name for run in runs]
    assert "absent: is not a run" in one_error_line(call(capsys, "show", runs[0], "absent"))


def test_no_arguments_show_the_help() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "qpd.cli"], capture_output=True, text=True, env=environment
    )
    assert "Distil a Stable-Baselines3 agent" in done.stdout and "Traceback" not in done.stderr


def test_a_fork_quantizes_the_same_student_at_other_bits(
    cartpole_zip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [
        "environment.num_envs=4",
        "replay.capacity=64",
        "distill.epochs=1",
        "finetune.epochs=2",
        "evaluation.episodes=2",
        "evaluation.validation_episodes=2",
        "save.tensorboard=false",
        "save.keep_replay=true",
    ]
    options = [part for line in small for part in ("--set", line)]
    run = ["run", "discrete/ppo-cartpole", "--teacher", str(cartpole_zip), "-o", "eight", *options]
    code, _, err = call(capsys, *run)
    assert code == 0, err
    again = ("quantize", "eight", "-o", "three", "--set", "quantize.weight_bits=3")
    code, _, err = call(capsys, *again)
    assert code == 0, err
    eight, three = Path("eight"), Path("three")
    assert (three / "distilled.safetensors").read_bytes() == (
        eight / "distilled.safetensors"
    ).read_bytes()
    small_file, large_file = (path / "ptq.safetensors" for path in (three, eight))
    assert small_file.stat().st_size < large_file.stat().st_size
    code, out, err = call(capsys, "finetune", "three", "--json")
    assert code == 0, err
    # Its own two epochs, although the memory's checkpoint came from a finished phase 3.
    rows = (three / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows[1:]] == [
        ["distill", "1"],
        ["finetune", "1"],
        ["finetune", "2"],
    ]
    summary = json.loads(out)
    assert summary["policies"]["qat"]["weight_bits"] == 3
    assert "return" not in summary["policies"]["qat"]
    # Evaluating as the recipe says is recorded; other episodes are only printed.
    assert call(capsys, "evaluate", "three", "--episodes", "3")[0] == 0
    assert "qat" not in json.loads((three / "manifest.json").read_text())["evaluations"]
    assert call(capsys, "evaluate", "three")[0] == 0
    assert json.loads((three / "manifest.json").read_text())["evaluations"]["qat"]["episodes"] == 2
    code, _, err = call(capsys, "quantize", "eight", "-o", "three")
    assert code == 2 and "three: was made with another recipe; choose another -o" in err
    # The same command, as after a kill: it goes on with the fork, which is finished.
    code, _, err = call(capsys, *again)
    assert code == 0 and "quantize: already done in three" in err
    # Measured otherwise: what the first run evaluated does not count there.
    kept = json.loads((three / "manifest.json").read_text())["evaluations"]
    more = ("quantize", "eight", "-o", "more", "--set", "evaluation.episodes=3")
    assert call(capsys, *more)[0] == 0
    assert "teacher" in kept
    assert json.loads((Path("more") / "manifest.json").read_text())["evaluations"] == {}
