"""`qpd analyze umap`, `outputs`, `quantization`: files written, and errors of one line."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from stable_baselines3 import PPO

from tests.command_line import call

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

torch.set_num_threads(1)

RUNS = Path(__file__).parents[2] / "runs-reference"


@pytest.fixture(scope="module")
def cartpole_zip(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("teacher") / "ppo-CartPole-v1.zip"
    PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, seed=0, device="cpu").save(path)
    return str(path)


def error_line(result: tuple[int, str, str]) -> str:
    """Exit code 2, one line on stderr, no figure."""
    code, out, err = result
    assert (code, out) == (2, ""), err
    (line,) = err.splitlines()
    assert not Path("figures").exists()
    return line


def test_what_the_runs_allow_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(RUNS / name) for name in ("quickstart", "breakout-ppo-xxs-4bit")]
    code, out, err = call(capsys, "analyze", "quantization", *runs, "-o", "new/figures", "--json")
    assert code == 0, err
    report = json.loads(out)
    figures = ["quantization_returns", "weight_distributions", "weight_errors", "qat_curves"]
    tables = ["quantization_references", "weight_histograms", "qat_evaluations"]
    expected = {f"{name}.{suffix}" for name in figures for suffix in ("png", "svg", "csv")}
    expected -= {"weight_distributions.csv"}  # weight_histograms.csv
    expected |= {f"{name}.csv" for name in tables}
    assert {path.name for path in Path("new/figures").iterdir()} == expected
    assert {Path(file).name for file in report["files"]} == expected
    reason = "no weights compared, as it has no distilled.safetensors"
    assert report["notes"] == [
        "XXS: 2 trainings of one recipe and seed share the panel",
        f"{runs[1]}: {reason}",
    ]
    assert {row["weight_bits"] for row in report["rows"]} == {4, 8}


def test_what_is_impossible_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    run = str(RUNS / "breakout-ppo-xxs")
    code, out, err = call(capsys, "analyze", "quantization", run)
    assert code == 0, err
    assert "no weights figure: no run has both distilled.safetensors and a quantized" in out
    assert Path("figures/qat_curves.svg").is_file()
    assert not Path("figures/weight_errors.png").exists()


def test_outputs_are_the_same_files_each_time(
    cartpole_zip: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["outputs", cartpole_zip, "--states", "50", "--temperatures", "0.1,2"]
    for folder in ("one", "two"):
        code, out, err = call(capsys, "analyze", *command, "-o", folder)
        assert code == 0, err
        assert "max_probability" in out and f"{folder}/teacher_outputs.png" in out.replace("\n", "")
    files = sorted(path.name for path in Path("one").iterdir())
    assert files == [
        "teacher_outputs.csv",
        "teacher_outputs.png",
        "teacher_outputs.svg",
        "teacher_softmax.csv",
    ]
    assert all((Path("one") / n).read_bytes() == (Path("two") / n).read_bytes() for n in files)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["umap", "nowhere"], "nowhere: is not a run directory: it is no folder"),
        (["umap", str(RUNS / "breakout-ppo-xxs")], "distilled.safetensors: no such file"),
        (["umap", str(RUNS / "quickstart"), "--states", "3"], "50"),
        (["quantization", str(RUNS)], "is not a run directory: it has no manifest.json"),
        (["outputs", "embedded", "--temperatures", "1,x"], "numbers separated by commas"),
        (["outputs", "embedded", "--temperatures", "0"], "needs a tau above 0"),
        (["outputs", "missing.zip"], "no such file or folder"),
    ],
)
def test_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in error_line(call(capsys, "analyze", *arguments))


def test_an_empty_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "empty"
    run.mkdir()
    for name in ("manifest.json", "recipe.yaml"):
        shutil.copyfile(RUNS / "quickstart" / name, run / name)
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "evaluations": {}}))
    line = error_line(call(capsys, "analyze", "quantization", str(run)))
    assert "no return by bits, no weights and no curves" in line


def test_a_missing_package_names_its_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    line = error_line(call(capsys, "analyze", "quantization", str(RUNS / "quickstart")))
    assert line == 'error: qpd analyze needs pandas: pip install "qpd-rl[analysis]" [Q602]'
