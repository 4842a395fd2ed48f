"""Claims of Low-Precision RL (Bjorck et al., arXiv 2102.13565), judged by our trainings.

The paper trains on tasks of dm_control for 500,000 steps; ours are what `paths` name. Arms are
compared on one task, seed by seed. A training whose numbers were no longer finite has no return:
where every seed of an arm failed so, that is its result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qpd.analysis.paper.judged_claims import Found, JudgedClaim, judge_claims, not_measured
from qpd.analysis.paper.verdict import ClaimTest, Verdict, claim_test_of_every
from qpd.analysis.runs.run_frame import find_runs
from qpd.errors.codes import ErrorCode
from qpd.evaluation.games import bootstrap_estimate
from qpd.recipe.train_schema import METHODS, TrainPrecision
from qpd.runs.run_directory import RunDirectoryError
from qpd.runs.training_run import TrainingRun, is_training

KEPT = 0.05  # of |fp32's return|: what "equals fp32" may lose
_LEAST = 3  # seeds
_FLOAT, _SIX, _PLAIN = "fp32", "fp16, six methods", "fp16, plain"
_TRAIN = "qpd train sac TASK --precision fp16"

Seeds = dict[int, float | None]  # mean return by seed; None: it failed


@dataclass(frozen=True)
class LowPrecisionEvidence:
    """Mean returns of trainings by task, arm and seed; None where learning failed."""

    tasks: dict[str, dict[str, Seeds]]

    @classmethod
    def of(cls, paths: Sequence[Path]) -> LowPrecisionEvidence:
        """Read the SAC trainings in `paths`, or in folders of them.

        Raises RunDirectoryError where none was evaluated or failed, or for two of one arm and seed.
        """
        tasks: dict[str, dict[str, Seeds]] = defaultdict(lambda: defaultdict(dict))
        for path in find_runs(paths):
            if not is_training(path):
                continue
            run = TrainingRun.open(path)
            games = run.manifest.evaluations.get("teacher")
            if run.manifest.algo != "sac" or (games is None and run.phase.failed_at is None):
                continue
            seeds = tasks[run.manifest.env_id][arm_of(run.recipe.precision)]
            if run.recipe.seed in seeds:
                raise RunDirectoryError(
                    [f"{path}: a second training of its arm with seed {run.recipe.seed}"],
                    ErrorCode.COMMAND_LINE,
                )
            seeds[run.recipe.seed] = None if games is None else float(np.mean(games["returns"]))
        if not tasks:
            raise RunDirectoryError(
                ["no training of SAC was evaluated: `qpd evaluate TRAINING`"],
                ErrorCode.NOTHING_MEASURED,
            )
        return cls({task: dict(arms) for task, arms in tasks.items()})


def arm_of(precision: TrainPrecision) -> str:
    """Return a training's arithmetic in words: `fp16, without hadam`."""
    if precision.format is None:
        return _FLOAT
    missing = [each for each in METHODS if each not in precision.methods]
    if not missing:
        how = "six methods"
    elif not precision.methods:
        how = "plain"
    elif len(missing) == 1:
        how = f"without {missing[0]}"
    else:
        how = " + ".join(precision.methods)
    return f"{precision.format}, {how}"


def judge(evidence: LowPrecisionEvidence) -> list[JudgedClaim]:
    """Return all claims with their verdicts."""
    return judge_claims(CLAIMS, evidence)


def _lost(mine: Seeds, base: Seeds) -> np.ndarray:
    """Return (R - R_base) / |R_base| of the seeds in which both arms ended, float64."""
    pairs = [(mine[seed], base[seed]) for seed in mine if seed in base]
    return np.array([(a - b) / abs(b) for a, b in pairs if a is not None and b is not None])


def _said(shares: np.ndarray) -> str:
    found = bootstrap_estimate(shares)
    low, high = found.interval()
    return f"{100 * found.value:+.1f}% [{100 * low:.1f}, {100 * high:.1f}], {len(shares)} seeds"


def _equals(evidence: LowPrecisionEvidence) -> Found:
    """Judge whether six methods lose less than 5% on each task."""
    tests, said = [], []
    for task, arms in evidence.tasks.items():
        shares = _lost(arms.get(_SIX, {}), arms.get(_FLOAT, {}))
        if len(shares) >= _LEAST:
            found = bootstrap_estimate(shares)
            tests.append(ClaimTest(found.p_above(-KEPT), found.p_below(-KEPT)))
            said.append(f"{task}: {_said(shares)} of fp32's return")
    return _every(tests, said, f"needs {_LEAST} seeds of fp32 and of {_TRAIN}")


def _crashes(evidence: LowPrecisionEvidence) -> Found:
    """Judge whether every training in plain half precision failed."""
    ends = [end for arms in evidence.tasks.values() for end in arms.get(_PLAIN, {}).values()]
    if not ends:
        return Found(f"{_TRAIN} --plain")
    failed = sum(end is None for end in ends)
    verdict = Verdict.held if failed == len(ends) else Verdict.failed
    return Found(f"{failed} of {len(ends)} trainings ended in NaN; no test", verdict=verdict)


def _removal_hurts(evidence: LowPrecisionEvidence) -> Found:
    """Judge whether each arm that lacks one method is worse than the six, or failed."""
    tests, said = [], []
    for task, arms in evidence.tasks.items():
        for method in METHODS:
            mine = arms.get(f"fp16, without {method}", {})
            if len(mine) >= _LEAST and all(end is None for end in mine.values()):
                tests.append(ClaimTest(0.0, 1.0))
                said.append(f"{task}, {method}: NaN in all {len(mine)}")
                continue
            shares = _lost(mine, arms.get(_SIX, {}))
            if len(shares) >= _LEAST:
                found = bootstrap_estimate(shares)
                tests.append(ClaimTest(found.p_below(0.0), found.p_above(0.0)))
                said.append(f"{task}, {method}: {_said(shares)}")
    if len(tests) < len(METHODS):
        known = f"{'; '.join(said)}; " if said else ""
        by = "python -m benchmarks.low_precision_sac --arms six,without-METHOD"
        return Found(f"{known}{len(tests)} of {len(METHODS)} methods: {by}")
    return _every(tests, said, "")


def _every(tests: Sequence[ClaimTest], said: Sequence[str], by: str) -> Found:
    return Found("; ".join(said), claim_test_of_every(tests)) if tests else Found(by)


CLAIMS: list[tuple[str, Callable[[LowPrecisionEvidence], Found]]] = [
    ("six methods in fp16 equal fp32 on each task (within 5%)", _equals),
    ("plain fp16 always crashes", _crashes),
    ("coercion, loss scaling and mixed precision end far below fp32",
     not_measured("no such arms yet")),
    ("each method that is added improves the mean return",
     not_measured("python -m benchmarks.low_precision_sac --arms hadam,hadam+softplus,...")),
    ("removing any one method hurts", _removal_hurts),
    ("amp's own constants for loss scaling change nothing", not_measured("no such arm yet")),
    ("return falls with the significand, slowly, then steeply at 5 bits",
     not_measured("qpd train sac TASK --precision e5m9, e5m8, ...")),
    ("from pixels fp16 equals fp32", not_measured("pixels are refused")),
    ("1.22 to 2.18 times faster, 1.86 to 1.89 times less memory on a GPU",
     not_measured("formats are simulated in float32")),
    ("in exact arithmetic the six leave SAC as it was",
     lambda _: Found("method by method in float64, by tests of QPD; no trainings",
                     verdict=Verdict.held)),
    ("fp32 gradients span many orders of magnitude",
     not_measured("qpd analyze precision counts gradients of students, not of SAC")),
    ("equal to fp32 for random hyperparameters, too", not_measured("no such trainings")),
    ("the actor needs no Kahan sum", not_measured("Kahan-gradients are for the critic alone here")),
]  # fmt: skip
