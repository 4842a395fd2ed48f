"""`qpd analyze precision`: returns over seeds, shares from stored counts, bytes by parameter."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from qpd.analysis.precision.exponent_histograms import exponent_table
from qpd.analysis.precision.precision_table import (
    precision_rows,
    precision_table,
    shown_precisions,
)
from qpd.analysis.precision.training_arithmetic import ParameterBytes, arithmetic_text
from qpd.analysis.report.blocks import Pictures
from qpd.analysis.report.gradients import gradients_section
from qpd.cli import app
from qpd.numerics.gradient_exponents import HIGHEST, LOWEST, GradientExponents
from qpd.recipe.training_phases import DistillSettings
from qpd.runs.counted_gradients import CountedGradients, GradientCountsError, PhaseGradients
from tests.analysis.made_up_runs import make_run
from tests.analysis.report.report_inputs import inputs_of

HALF = ["distill.precision=fp16", "finetune.precision=fp16"]


def counts(filled: dict[int, int], zeros: int = 0, not_finite: int = 0) -> GradientExponents:
    bins = [filled.get(k, 0) for k in range(LOWEST, HIGHEST + 1)]
    return GradientExponents(tuple(bins), zeros, not_finite)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two seeds in fp16, one in fp32; the first counted 200 gradients by weights in two epochs."""
    for seed, returns in ((0, [10.0, 30]), (1, [50.0, 70])):
        make_run(
            tmp_path / f"half-{seed}", {"distilled": returns}, seed=seed, changes=HALF,
            distilled={"skipped_updates": 4 + seed, "loss_scale": 4096.0},
        )  # fmt: skip
    make_run(tmp_path / "single", {"distilled": [5.0, 7]}, changes=["distill.precision=fp32"])
    first = counts({-30: 10, -20: 20, 0: 60}, zeros=10)
    second = counts({-30: 2, -10: 90, 16: 4}, zeros=3, not_finite=1)
    epochs = [
        CountedGradients(1, 65536.0, first, counts({-3: 5})),
        CountedGradients(2, 4096.0, second, counts({-2: 5})),
    ]
    PhaseGradients("fp16", epochs).write(tmp_path / "half-0" / "gradient_exponents.distill.json")
    return tmp_path


def test_the_table_is_over_seeds(runs: Path) -> None:
    rows = precision_rows([runs])
    table = precision_table(rows).set_index("arithmetic")
    half = table.loc["fp16, S dynamic"]
    assert (half["mean"], half["seeds"], half["skipped"]) == (40.0, 2, 4.5)
    assert half["low"] < 40 < half["high"]
    assert table.loc["fp32", "mean"] == 6.0 and np.isnan(table.loc["fp32", "skipped"])
    # 12 of 200 are below 2^-24, 20 subnormal, 4 at 2^16 and the infinite one overflow.
    assert (half["lost"], half["subnormal"], half["overflow"]) == (0.06, 0.1, 0.025)
    assert half["fitting_scale"] == 2.0**-2  # 2^16 to 2^14, a binade below the top


def test_bits_stand_apart_and_differences_are_by_seed(tmp_path: Path) -> None:
    cells = [("fp32", 8, 0, 10.0), ("fp32", 8, 1, 40.0), ("fp32", 4, 0, 7.0)]
    cells += [("fp16", 8, 0, 12.0), ("fp16", 8, 1, 46.0), ("fp16", 4, 0, 5.0), ("fp16", 4, 1, 9.0)]
    for name, bits, seed, value in cells:
        make_run(
            tmp_path / f"{name}-{bits}-{seed}",
            {"distilled": [seed, seed + 1.0], "qat": [value - 1, value + 1]},
            seed=seed,
            changes=[f"distill.precision={name}", f"finetune.precision={name}",
                     f"quantize.weight_bits={bits}"],
        )  # fmt: skip
    table = precision_table(precision_rows([tmp_path]))
    qat = table[table["policy"] == "qat"].set_index(["layer_bits", "arithmetic"])
    half = qat.xs("fp16, S dynamic", level="arithmetic")
    eight, four = half.loc["8"], half.loc["4"]
    # 2 and 6: 4 +- 12.706 * 2.828 / sqrt 2; of 4 bits only seed 0 has both.
    assert (eight.seeds, eight.difference) == (2, 4.0)
    assert eight.difference_high == pytest.approx(4 + 12.706 * 2, rel=1e-3)
    assert (four.seeds, four.difference) == (2, -2.0) and np.isnan(four.difference_low)
    assert np.isnan(qat.xs("fp32", level="arithmetic")["difference"]).all()
    # One student behind 8 and 4 bits, as in a sweep that shares it, counts once.
    distilled = table[table["policy"] == "distilled"]
    assert distilled["seeds"].tolist() == [2, 2]


def test_agents_are_told_apart_by_their_file_and_not_by_its_path(tmp_path: Path) -> None:
    for name, source, algo in (("a", "one", "ppo"), ("b", "one", "a2c"), ("c", "two", "ppo")):
        changes = [f"teacher.source={source}", "teacher.algo=ppo"]
        changes += [f"distill.precision={'fp16' if name == 'c' else 'fp32'}"]
        make_run(
            tmp_path / name, {"distilled": [10.0, 30]}, seed=int(name == "b"), changes=changes,
            algo=algo,
        )  # fmt: skip
        manifest = tmp_path / name / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"algo": "a2c"', '"algo": "ppo"'))
    rows = precision_rows([tmp_path])
    table = precision_table(rows)
    assert table["seeds"].tolist() == [1, 1, 1]  # another file at one path is no further seed
    # One file at two paths is one agent: c is a's student in fp16.
    assert table["difference"].dropna().tolist() == [0.0]
    titles = [row[0] for row in shown_precisions(table)[0].rows]
    assert len(set(titles)) == 3  # the students of two agents in fp32 have digests


def test_the_histograms_shares_are_those_of_the_stored_counts(runs: Path) -> None:
    file = runs / "half-0" / "gradient_exponents.distill.json"
    found = PhaseGradients.read(file)
    assert found is not None
    table = exponent_table({"half-0": {"distill": found}})
    mine = table[table["gradients"] == "weights"]
    stored = [each["weights"] for each in json.loads(file.read_text())["epochs"]]
    assert mine["count"].sum() == 200
    for exponent, count in mine.dropna().set_index("exponent")["count"].items():
        assert count == sum(each["exponents"].get(str(int(exponent)), 0) for each in stored)
    shares = mine.groupby("where")["count"].sum() / 200
    assert {name: share for name, share in found.total("weights").shares(found.form).items()} == {
        name: pytest.approx(shares.get(name, 0.0)) for name in
        ("zero", "lost", "subnormal", "normal", "overflow")
    }  # fmt: skip


def test_the_command_writes_tables_and_figures(runs: Path) -> None:
    out = runs / "figures"
    result = CliRunner().invoke(app, ["analyze", "precision", str(runs), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "fp16, S dynamic" in result.output and "6.00%" in result.output
    assert {path.name for path in out.iterdir()} == {
        "precision.csv", "precision_runs.csv", "gradient_exponents.csv", "gradients-half-0.png",
        "gradients-half-0.svg",
    }  # fmt: skip
    (runs / "half-1" / "gradient_exponents.finetune.json").write_text("{}")
    broken = CliRunner().invoke(app, ["analyze", "precision", str(runs)])
    assert isinstance(broken.exception, GradientCountsError)


def test_the_report_shows_arithmetic_and_gradients(runs: Path) -> None:
    section = gradients_section(inputs_of(runs / "half-0"))
    assert section is not None
    (pictures,) = section.blocks
    assert isinstance(pictures, Pictures) and pictures.table is not None
    first = ["phase 1", "fp16, S dynamic", "4", "4,096", "16"]
    assert list(pictures.table.rows[0]) == first
    assert "lost 6%" in pictures.pictures[0].alt and "overflow 2.5%" in pictures.pictures[0].alt
    assert gradients_section(inputs_of(runs / "single")) is None


@pytest.mark.parametrize(
    ("settings", "text", "total"),
    [
        ({"precision": "fp32"}, "fp32", 16),  # weight, gradient, two moments, 4 bytes each
        ({"precision": "bf16"}, "bf16", 16),
        ({"precision": "fp16"}, "fp16, S dynamic", 16),  # 2 + 2 + 4 of the master + 8
        ({"precision": "fp16", "master_weights": False}, "fp16, no masters, S dynamic", 12),
        ({"precision": "e4m3", "optimizer": "sgd"}, "e4m3, S = 1", 10),
        ({"precision": "fp16", "loss_scale": 128}, "fp16, S = 128", 16),
    ],
)
def test_arithmetic_in_words_and_bytes(
    settings: dict[str, object], text: str, total: float
) -> None:
    phase = DistillSettings.model_validate(settings)
    assert arithmetic_text(phase) == text
    assert ParameterBytes.of(phase).total == total
