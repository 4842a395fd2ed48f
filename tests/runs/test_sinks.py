"""TensorBoard and Weights & Biases see a run's numbers, once each, and change none of them."""

from __future__ import annotations

import csv
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from stable_baselines3 import PPO

from qpd.recipe.loading import load_recipe
from qpd.recipe.schema import Recipe, RecipeError
from qpd.runs.sinks import check_sinks, tensorboard_sink
from tests.command_line import call

ROOT = Path(__file__).parents[2]
STUDENTS = ("distilled.safetensors", "ptq.safetensors", "quantized.safetensors")


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 epochs, then 2, of CartPole, with a teacher that was never trained."""
    folder = tmp_path_factory.mktemp("recipe")
    zipped = folder / "ppo-CartPole-v1.zip"
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, seed=0, device="cpu")
    with torch.no_grad():
        model.policy.action_net.weight.mul_(400)
    model.save(zipped)
    data = {
        "seed": 3,
        "teacher": {"source": str(zipped), "algo": "ppo", "env": "CartPole-v1"},
        "student": {"size": "mlp-16"},
        "environment": {"num_envs": 4, "max_frames": 60},
        "replay": {"capacity": 512, "refresh_fraction": 0.25},
        "distill": {"epochs": 3, "batch_size": 16, "lr": 0.003, "precision": "fp32"},
        "finetune": {"epochs": 2, "batch_size": 16, "precision": "fp32"},
        "quantize": {"weight_bits": 4, "calibration_samples": 128},
        "evaluation": {"episodes": 4, "validation_episodes": 3, "validate_every": 2},
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def qpd(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, with no account of Weights & Biases."""
    home = {"HOME": "/nonexistent", "NETRC": "/nonexistent/netrc", "PYTHONPATH": str(ROOT)}
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    return subprocess.run(
        [sys.executable, "-m", "qpd.cli", *map(str, arguments)],
        env=kept | home | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def run(recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with both sinks, phase 3 and the evaluation by a second process."""
    pytest.importorskip("tensorboard")
    pytest.importorskip("wandb")
    path = tmp_path_factory.mktemp("runs") / "both"
    settings = ["--set", "save.wandb=qpd-tests", "-o", path]
    for command in ("distill", "run"):
        done = qpd(command, recipe_file, *settings, WANDB_MODE="offline")
        assert done.returncode == 0, done.stderr
    return path


def rows(run: Path, phase: str) -> dict[int, dict[str, str]]:
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        found = [row for row in csv.DictReader(file) if row["phase"] == phase]
    return {int(row["epoch"]): row for row in found}


def events(run: Path, folder: str) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    keep_all = {"histograms": 0}  # of which it keeps one otherwise
    accumulator = EventAccumulator(str(run / "tensorboard" / folder), keep_all)
    accumulator.Reload()
    return accumulator


@pytest.mark.parametrize("phase", ["distill", "finetune"])
def test_tensorboard_shows_what_metrics_csv_holds(run: Path, phase: str) -> None:
    shown = events(run, phase)
    for tag, column in (
        ("loss/total", "loss"),
        ("loss/actor", "actor_loss"),
        ("loss/critic", "critic_loss"),
        ("train/learning_rate", "lr"),
        ("time/samples_per_second", "samples_per_second"),
        ("return/validation", "validation_return"),
        ("return/validation_low", "validation_low"),
    ):
        expected = {e: float(row[column]) for e, row in rows(run, phase).items() if row[column]}
        assert expected, column
        found = {event.step: event.value for event in shown.Scalars(tag)}
        assert found == pytest.approx(expected, rel=1e-6), tag  # events are float32


def test_tensorboard_has_histograms_and_quantization_errors(run: Path) -> None:
    weights = {"weights/linear1", "weights/actor"}
    assert set(events(run, "distill").Tags()["histograms"]) == weights
    finetune = events(run, "finetune")
    quantized = {"weights_quantized/linear1", "weights_quantized/actor"}
    assert set(finetune.Tags()["histograms"]) == weights | quantized
    # 16 hidden units of 4 inputs: 64 weights, of at most 16 values at 4 bits in each of 16 rows
    assert finetune.Histograms("weights/linear1")[0].histogram_value.num == 64
    for tag in ("sqnr_db/linear1", "sqnr_db/actor", "sqnr_db/outputs", "same_action"):
        assert [event.step for event in finetune.Scalars(f"quantization/{tag}")] == [1, 2]
    # uniform 4-bit noise: about 6 dB a bit, less the crest factor
    assert 10 < finetune.Scalars("quantization/sqnr_db/linear1")[0].value < 30
    tags = events(run, "distill").Tags()["scalars"]
    assert not [tag for tag in tags if tag.startswith("quantization/")]


def test_tensorboard_has_final_returns_and_the_recipe(run: Path) -> None:
    evaluations = json.loads((run / "manifest.json").read_text())["evaluations"]
    shown = events(run, "evaluate")
    for policy in ("teacher", "distilled", "ptq", "qat"):
        result = evaluations[policy]
        expected = (result["mean"], *result["interval"])
        assert datetime.fromisoformat(result["date"]).tzinfo is not None
        found = [shown.Scalars(f"return/{policy}{end}")[0].value for end in ("", "_low", "_high")]
        assert found == pytest.approx(expected)
    hparams = shown.SummaryMetadata("_hparams_/session_start_info")
    assert hparams.plugin_data.plugin_name == "hparams"
    text = events(run, "distill").Tensors("recipe/text_summary")
    assert [event.step for event in text] == [0]
    assert b"weight_bits: 4" in text[0].tensor_proto.string_val[0]


def wandb_records(run: Path) -> Iterator[tuple[str, Any]]:
    """Read the offline files: blocks of 32 KiB, records in parts, 7 bytes of header each."""
    from wandb.proto import wandb_internal_pb2

    for file in sorted(run.glob("wandb/offline-run-*/run-*.wandb")):
        data, at, whole = file.read_bytes(), 7, b""
        while at + 7 <= len(data):
            if at % 32768 > 32768 - 7:
                at += 32768 - at % 32768
                continue
            _, size, kind = struct.unpack_from("<IHB", data, at)
            whole += data[at + 7 : at + 7 + size]
            at += 7 + size
            if kind in (1, 4):
                record = wandb_internal_pb2.Record()
                record.ParseFromString(whole)
                yield str(record.WhichOneof("record_type")), record
                whole = b""


def named(items: Any) -> dict[str, Any]:
    return {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}


def test_wandb_goes_on_with_one_run_and_has_every_epoch(run: Path) -> None:
    assert len(list(run.glob("wandb/offline-run-*"))) == 2  # one a process
    records = list(wandb_records(run))
    runs = [record.run for kind, record in records if kind == "run"]
    assert {(r.run_id, r.project) for r in runs} == {
        ((run / "wandb" / "run-id").read_text().strip(), "qpd-tests")
    }
    config = named(runs[0].config.update)
    assert config["quantize"]["weight_bits"] == 4
    history = [named(record.history.item) for kind, record in records if kind == "history"]
    for phase in ("distill", "finetune"):
        sent = {
            row[f"{phase}/epoch"]: row[f"{phase}/loss/total"]
            for row in history
            if f"{phase}/epoch" in row
        }
        assert sent == {epoch: float(row["loss"]) for epoch, row in rows(run, phase).items()}
    summary: dict[str, Any] = {}
    for kind, record in records:
        summary |= named(record.summary.update) if kind == "summary" else {}
    evaluations = json.loads((run / "manifest.json").read_text())["evaluations"]
    assert summary["return/qat"] == evaluations["qat"]["mean"]


@pytest.mark.slow
def test_sinks_change_no_number(run: Path, recipe_file: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    done = qpd("run", recipe_file, "--set", "save.tensorboard=false", "-o", alone)
    assert done.returncode == 0, done.stderr
    assert not (alone / "tensorboard").exists() and not (alone / "wandb").exists()
    for name in STUDENTS:
        assert (alone / name).read_bytes() == (run / name).read_bytes(), name
    for phase in ("distill", "finetune"):
        for epoch, row in rows(alone, phase).items():
            assert row["loss"] == rows(run, phase)[epoch]["loss"]


def test_a_resumed_phase_shows_each_epoch_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    recipe = load_recipe("ci")
    for first, value in ((1, 1.0), (3, 2.0)):  # killed in epoch 5, resumed after epoch 2
        sink = tensorboard_sink(tmp_path / "tensorboard", recipe)
        assert sink is not None
        for epoch in range(first, 5):
            sink.epoch("distill", epoch, {"loss/total": value}, {"w": np.full(3, value)})
        sink.close()
        time.sleep(1.1)  # files are named, and read, by the second
    shown = events(tmp_path, "distill")
    found = [(event.step, event.value) for event in shown.Scalars("loss/total")]
    assert found == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]
    assert [event.step for event in shown.Histograms("w")] == [1, 2, 3, 4]
    assert len(shown.Tensors("recipe/text_summary")) == 1


def test_a_full_disk_names_the_folder(tmp_path: Path) -> None:
    """In a process of its own, as TensorBoard's thread prints what it raises."""
    pytest.importorskip("tensorboard")
    program = """if True:
        import resource, sys
        from pathlib import Path
        import numpy as np
        from qpd.recipe.loading import load_recipe
        from qpd.runs.sinks import tensorboard_sink

        sink = tensorboard_sink(Path(sys.argv[1]), load_recipe("ci"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, -1))
        try:
            for epoch in range(1, 9):
                sink.epoch("distill", epoch, {"loss/total": 1.0}, {"w": np.arange(1000.0)})
        except OSError as error:
            print(error.filename, error.strerror)
    """
    command = [sys.executable, "-c", program, str(tmp_path / "tensorboard")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == f"{tmp_path / 'tensorboard'} File too large\n", done.stderr


def test_tensorboard_is_optional(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with caplog.at_level("INFO"):
        assert tensorboard_sink(tmp_path / "tensorboard", load_recipe("ci")) is None
    assert caplog.records == [] and list(tmp_path.iterdir()) == []


def test_wandb_that_cannot_be_served_ends_before_any_work(
    recipe_file: Path,
    tmp_path: Path,
    in_an_empty_folder: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["run", recipe_file, "--set", "save.wandb=p", "-o", tmp_path / "run"]
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "wandb", None)
        code, out, err = call(capsys, *arguments)
    line = 'error: save.wandb: needs the package wandb: pip install "qpd-rl[wandb]" [Q602]'
    assert (code, out, err.strip()) == (2, "", line)
    assert not (tmp_path / "run").exists()
    pytest.importorskip("wandb")
    done = qpd(*arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "no API key" in done.stderr and "WANDB_MODE=offline" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_project_is_a_name(tmp_path: Path) -> None:
    assert load_recipe("ci").save.wandb is None
    assert load_recipe("ci", ["save.wandb=my first project"]).save.wandb == "my first project"
    for bad in ("team/project", "'#1'", "' '", "x" * 129):
        with pytest.raises(RecipeError, match="save.wandb: .* must be a project's name"):
            load_recipe("ci", [f"save.wandb={bad}"])


def test_without_wandb_nothing_is_asked() -> None:
    recipe: Recipe = load_recipe("ci")
    check_sinks(recipe)
