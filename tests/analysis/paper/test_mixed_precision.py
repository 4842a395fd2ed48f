"""Claims of Mixed Precision Training: seeds paired, gradients counted, the rest not measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from qpd.analysis.paper.mixed_precision import MixedEvidence, judge, lost_shares
from qpd.analysis.paper.verdict import Verdict
from qpd.analysis.precision.precision_table import precision_rows
from qpd.cli import app
from qpd.numerics.gradient_exponents import HIGHEST, LOWEST, GradientExponents
from qpd.runs.counted_gradients import CountedGradients, PhaseGradients
from tests.analysis.made_up_runs import make_run

ARMS = {
    "fp32": (["distill.precision=fp32"], 0.0),
    "half": (["distill.precision=fp16"], 0.001),
    "nomasters": (["distill.precision=fp16", "distill.master_weights=false"], -0.3),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns of about -100 (so that ratios would mislead): half as good, without masters not."""
    folder = tmp_path_factory.mktemp("runs")
    for name, (changes, share) in ARMS.items():
        for seed in range(4):
            base = -100.0 - 10 * seed
            mean = base + (share + 0.002 * seed * (share != 0)) * abs(base)
            make_run(
                folder / f"{name}-{seed}", {"distilled": [mean - 1, mean + 1]}, seed=seed,
                changes=changes, distilled={
                    "skipped_updates": 2 * (name == "half"), "best_validation_divergence": 0.1,
                },
            )  # fmt: skip
    return folder


def counted(weights: dict[int, int], activations: dict[int, int]) -> PhaseGradients:
    both = [
        GradientExponents(tuple(each.get(k, 0) for k in range(LOWEST, HIGHEST + 1)), 0, 0)
        for each in (weights, activations)
    ]
    return PhaseGradients("fp32", [CountedGradients(1, 1.0, both[0], both[1])])


def test_seeds_are_paired_and_judged(runs: Path) -> None:
    rows = precision_rows([runs])
    # 0.1, 0.33, 0.6 and 0.91 more than -100, -110, -120 and -130, whose mean is -115.
    shares = np.array([0.1, 0.33, 0.6, 0.91]) / 115
    assert lost_shares(rows, "fp16, S dynamic") == pytest.approx(shares)
    claims = judge(MixedEvidence.of([runs]))
    assert [claim.verdict for claim in claims] == [
        Verdict.held, Verdict.unmeasured, Verdict.held, Verdict.unmeasured, Verdict.unmeasured,
        Verdict.held, *[Verdict.unmeasured] * 6,
    ]  # fmt: skip
    assert claims[0].evidence.startswith("+0.4%") and claims[2].evidence.startswith("-29.7%")
    assert "distill.loss_scale=none" in claims[1].evidence
    assert "4 of 4 phases with 8 skips" in claims[5].evidence


def test_two_runs_of_one_seed_count_once_as_their_mean(runs: Path) -> None:
    rows = precision_rows([runs])
    again = rows[rows["seed"] == 0].copy()
    again["returns"] = again["returns"].map(lambda games: np.asarray(games) - 1.0)
    found = lost_shares(pd.concat([rows, again]), "fp16, S dynamic")
    # Of seed 0: -100 against -99.9, and -101 against -100.9: -100.5 against -100.4.
    assert found == pytest.approx(np.array([0.1, 0.33, 0.6, 0.91]) / 115.125)


def test_a_seed_that_returned_nothing_spoils_no_claim(runs: Path) -> None:
    rows = precision_rows([runs])
    silent = (rows["seed"] == 0) & (rows["arithmetic"] == "fp32")
    rows.loc[silent, "returns"] = rows.loc[silent, "returns"].map(lambda games: 0.0 * games)
    assert np.isfinite(lost_shares(rows, "fp16, S dynamic")).all()


@pytest.mark.parametrize(
    ("weights", "activations", "verdicts"),
    [
        # 2 of 100 weight gradients below 2^-24; 2^-1 times 2^15 leaves a binade below 2^16.
        ({-30: 2, 0: 98}, {-1: 9}, (Verdict.held, Verdict.held)),
        ({-24: 2, 0: 98}, {12: 9}, (Verdict.failed, Verdict.failed)),
    ],
)
def test_gradients_are_those_counted_in_float32(
    runs: Path, weights: dict[int, int], activations: dict[int, int], verdicts: tuple[Verdict, ...]
) -> None:
    files = [runs / f"fp32-{seed}" / "gradient_exponents.distill.json" for seed in range(3)]
    found = []
    try:
        for file in files:
            counted(weights, activations).write(file)
            found.append(judge(MixedEvidence.of([runs])))
    finally:
        for file in files:
            file.unlink(missing_ok=True)
    *few, claims = found
    # Two runs are too few to say anything.
    assert {few[-1][place].verdict for place in (3, 4)} == {Verdict.unmeasured}
    assert (claims[3].verdict, claims[4].verdict) == verdicts


def test_the_command_prints_and_writes(runs: Path, tmp_path: Path) -> None:
    command = ["analyze", "paper", "--paper", "mixed-precision", str(runs), "-o", str(tmp_path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "Mixed Precision Training: claims" in result.output
    assert len((tmp_path / "mixed_precision_claims.csv").read_text().splitlines()) == 13
