"""Claims of Mixed Precision Training (Micikevicius et al., arXiv 1710.03740), judged by our runs.

The paper trains networks for images, speech and text; ours are students. So each claim is judged in
kind: differences of returns between runs of equal recipes, seed by seed, and gradients as counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qpd.analysis.paper.judged_claims import Found, JudgedClaim, judge_claims, not_measured
from qpd.analysis.paper.verdict import ClaimTest, Verdict
from qpd.analysis.precision.counted_runs import counted_runs
from qpd.analysis.precision.precision_table import precision_rows
from qpd.analysis.runs.run_frame import find_runs
from qpd.evaluation.studentized import t_estimate
from qpd.numerics.float_format import FloatFormat
from qpd.runs.counted_gradients import PhaseGradients

if TYPE_CHECKING:
    from pandas import DataFrame

KEPT = 0.05  # of |fp32's return|: what "equals fp32" may lose
_SOME = 0.01  # of all gradients: the paper's 5% in kind
_SHIFT = 8.0  # the scale that SSD needed: three exponents
_LEAST = 3  # seeds
_HALF = FloatFormat.parse("fp16")
_RUN = "qpd run recipes/precision/pendulum.yaml --set seed=N"
_BOTH = "--set distill.{0} --set finetune.{0}"


@dataclass(frozen=True)
class MixedEvidence:
    """Hold `precision_rows`, and the counted gradients of runs in float32, by run and phase."""

    rows: DataFrame
    counted: Mapping[str, PhaseGradients]

    @classmethod
    def of(cls, paths: Sequence[Path]) -> MixedEvidence:
        """Read the runs in `paths`. Raises what `precision_rows` does."""
        counted = {
            f"{name} {phase}": each
            for name, phases in counted_runs(find_runs(paths)).items()
            for phase, each in phases.items()
            if each.precision == "fp32"
        }
        return cls(precision_rows(paths), counted)


def judge(evidence: MixedEvidence) -> list[JudgedClaim]:
    """Return all claims with their verdicts."""
    return judge_claims(CLAIMS, evidence)


def lost_shares(rows: DataFrame, arithmetic: str) -> np.ndarray:
    """Return (R - R_fp32) / |mean R_fp32| of students trained in `arithmetic`, float64 `[pairs]`.

    Pairs have equal agent, environment, seed and phase; those of a seed count once, as their mean.
    The mean is over seeds: a seed that returned 0 has no share of its own.
    """
    whose = ["env_id", "world", "teacher_sha256", "seed"]
    keys = [*whose, "policy", "size", "layer_bits", "settings"]
    played = rows[rows["returns"].map(len) > 0]
    means = played.assign(mean=played["returns"].map(np.mean))
    base, mine = (
        means[means["arithmetic"] == each].groupby(keys)["mean"].mean()
        for each in ("fp32", arithmetic)
    )
    mine = mine[mine.index.isin(base.index)]
    span = base.groupby(level=[key for key in keys if key != "seed"]).transform("mean").abs()
    shares = (mine - base.reindex(mine.index)) / span.reindex(mine.index)
    shares = shares[np.isfinite(shares)]
    return shares.groupby(level=whose).mean().to_numpy(float)


def _compared(
    arithmetic: str,
    settings: str,
    test: Callable[[Callable[[float], float], Callable[[float], float]], ClaimTest],
) -> Callable[[MixedEvidence], Found]:
    def find(evidence: MixedEvidence) -> Found:
        rows = evidence.rows
        shares = lost_shares(rows, arithmetic) if len(rows) else np.zeros(0)
        if len(shares) < _LEAST:
            both = " ".join(_BOTH.format(each) for each in settings.split())
            return Found(f"needs {_LEAST} seeds of fp32 and of it: {_RUN} {both}")
        found = t_estimate(shares)
        low, high = found.interval()
        said = f"{100 * found.value:+.1f}% [{100 * low:.1f}, {100 * high:.1f}] of fp32's return, "
        return Found(f"{said}{len(shares)} seeds", test(found.p_above, found.p_below))

    return find


def _small_gradients(evidence: MixedEvidence) -> Found:
    shares = {
        name: each.total("weights").shares(_HALF)["lost"] for name, each in evidence.counted.items()
    }
    return _of_all(shares, lambda share: share >= _SOME, "{:.2%}")


def _unused_range(evidence: MixedEvidence) -> Found:
    scales = {
        name: each.total("activations").fitting_scale(_HALF)
        for name, each in evidence.counted.items()
    }
    return _of_all(scales, lambda scale: scale >= _SHIFT, "{:g}")


def _of_all(values: Mapping[str, float], holds: Callable[[float], bool], form: str) -> Found:
    if len(values) < _LEAST:
        return Found(f"needs {_LEAST} phases of fp32 runs that count: {_RUN}")
    held = [holds(value) for value in values.values()]
    verdict = Verdict.held if all(held) else Verdict.undecided if any(held) else Verdict.failed
    ends = f"{form.format(min(values.values()))} to {form.format(max(values.values()))}"
    return Found(f"{ends} over {len(values)} phases of fp32 runs; no test", verdict=verdict)


def _skips_suffice(evidence: MixedEvidence) -> Found:
    rows = evidence.rows
    skipped = rows[rows["skipped"] > 0] if len(rows) else rows
    if len(skipped) < _LEAST:
        by = f"{_RUN} {_BOTH.format('precision=fp16')}"
        return Found(f"needs {_LEAST} phases that skip updates: {by}")
    finite = int(skipped["divergence"].map(np.isfinite).sum())
    verdict = Verdict.held if finite == len(skipped) else Verdict.failed
    said = f"{finite} of {len(skipped)} phases with {skipped['skipped'].sum():.0f} skips in all"
    return Found(f"{said} ended finite; no test", verdict=verdict)


CLAIMS: list[tuple[str, Callable[[MixedEvidence], Found]]] = [
    ("mixed precision with masters and scaling equals fp32 (within 5%)",
     _compared("fp16, S dynamic", "precision=fp16",
               lambda above, below: ClaimTest(above(-KEPT), below(-KEPT)))),
    ("without loss scaling some networks get worse",
     _compared("fp16, S = 1", "precision=fp16 loss_scale=none",
               lambda above, below: ClaimTest(below(0.0), above(0.0)))),
    ("without master weights training gets worse",
     _compared("fp16, no masters, S dynamic", "precision=fp16 master_weights=false",
               lambda above, below: ClaimTest(below(0.0), above(0.0)))),
    ("some weight gradients lie below fp16's range (5% in the paper; here: 1% or more)",
     _small_gradients),
    ("activation gradients leave fp16's upper range unused: S = 8 fits", _unused_range),
    ("overflow shows at unscaling: skipping the update is enough", _skips_suffice),
    ("top-1 of six networks on ImageNet is fp32's or better", not_measured("needs ImageNet")),
    ("detectors on VOC are fp32's; SSD diverges without S = 8", not_measured("needs VOC")),
    ("speech models have fp32's character error; 80% is lost without masters",
     not_measured("needs the paper's recordings")),
    ("LSTMs for language need S = 128, those for translation a scale; DCGAN needs none",
     not_measured("needs the paper's texts and pictures")),
    ("training takes about half the memory",
     not_measured("formats are simulated in float32; qpd analyze precision counts bytes")),
    ("2 to 6 times faster on GPUs with fp16 units",
     not_measured("simulated in float32; python -m benchmarks.distillation.gpu times bf16")),
]  # fmt: skip
