"""Claims of Low-Precision RL (Bjorck et al., arXiv 2102.13565), judged by our trainings.

The paper trains on tasks of dm_control for 500,000 steps; ours are what `paths` name. Arms are
compared on one task, seed by seed. A training whose numbers were no longer finite has no return:
where every seed of an arm failed so, that is its result. Three or more recipes of one task that
differ in more than precision, of one seed each, are draws of hyperparameters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np

from qpd.analysis.paper.judged_claims import Found, JudgedClaim, judge_claims, not_measured
from qpd.analysis.paper.verdict import ClaimTest, Verdict, claim_test_of_every
from qpd.analysis.precision.trainings import PIXELS, Training, by_task, read_trainings
from qpd.errors.codes import ErrorCode
from qpd.evaluation.studentized import t_estimate
from qpd.numerics.gradient_exponents import GradientExponents
from qpd.recipe.train_schema import METHODS
from qpd.runs.counted_gradients import PhaseGradients
from qpd.runs.run_directory import RunDirectoryError

KEPT = 0.05  # of |fp32's return|: what "equals fp32" may lose
_LEAST = 3  # seeds
_ORDERS = 4  # of magnitude: the paper's figure shows more, without a number
_FLOAT, _SIX, _PLAIN = "fp32", "fp16, six methods", "fp16, plain"
_AMP = ", PyTorch's constants"
# Adam's, where compound scaling does not set it: the paper does not say which. 1e-8 is 0 in fp16.
_EPS = ("", ", eps 0.0001")
_TRAIN = "qpd train sac TASK --precision fp16"

Seeds = dict[int, float | None]  # mean return by seed; None: it failed


@dataclass(frozen=True)
class LowPrecisionEvidence:
    """Mean returns of trainings by task, arm and seed; None where learning failed."""

    tasks: dict[str, dict[str, Seeds]]
    draws: Mapping[str, dict[str, Seeds]] = field(default_factory=dict)  # by number of the draw
    gradients: Mapping[str, GradientExponents] = field(default_factory=dict)  # of float32 trainings

    @classmethod
    def of(cls, paths: Sequence[Path]) -> LowPrecisionEvidence:
        """Read the SAC trainings in `paths`, or in folders of them.

        Raises RunDirectoryError where none was evaluated or failed, or for two of one arm and seed.
        """
        draws: dict[str, dict[str, Seeds]] = defaultdict(lambda: defaultdict(dict))
        gradients: dict[str, GradientExponents] = {}
        trainings = [each for each in read_trainings(paths) if each.algo == "sac"]
        numbers = _drawn(trainings)
        whole = [each for each in trainings if (each.env_id, each.settings) not in numbers]
        tasks = {
            task.removeprefix("sac "): {
                arm: {each.seed: each.value for each in mine} for arm, mine in arms.items()
            }
            for task, arms in by_task(whole).items()
        }
        for each in trainings:
            number = numbers.get((each.env_id, each.settings))
            if number is not None:
                draws[each.env_id][each.arm][number] = each.value
            counted = PhaseGradients.read(each.path / "gradient_exponents.train.json")
            if counted is not None and each.arm == _FLOAT:
                gradients[f"{each.env_id} seed {each.seed}"] = counted.total("weights")
        if not tasks and not draws:
            raise RunDirectoryError(
                ["no training of SAC was evaluated: `qpd evaluate TRAINING`"],
                ErrorCode.NOTHING_MEASURED,
            )
        return cls(tasks, {task: dict(arms) for task, arms in draws.items()}, gradients)


def _drawn(trainings: Sequence[Training]) -> dict[tuple[str, str], int]:
    """Return numbers of a task's recipes that are draws: three or more, of one seed each."""
    seeds: dict[tuple[str, str], set[int]] = defaultdict(set)
    for each in trainings:
        seeds[(each.env_id, each.settings)].add(each.seed)
    single: dict[str, list[str]] = defaultdict(list)
    for (env_id, settings), its in sorted(seeds.items()):
        if len(its) == 1:
            single[env_id].append(settings)
    return {
        (env_id, settings): number
        for env_id, mine in single.items()
        if len(mine) >= _LEAST
        for number, settings in enumerate(mine)
    }


def judge(evidence: LowPrecisionEvidence) -> list[JudgedClaim]:
    """Return all claims with their verdicts."""
    return judge_claims(CLAIMS, evidence)


def _lost(mine: Seeds, base: Seeds) -> np.ndarray:
    """Return (R - R_base) / |mean of R_base| of the seeds that both have, float64.

    A training that ended in NaN has lost all, as the paper counts its return as 0: -1 beside a base
    that ended, +1 where the base alone did not, 0 where neither did. A share of each seed's own
    R_base would tell more of that seed's luck than of the arms.
    """
    pairs = [(mine[seed], base[seed]) for seed in mine if seed in base]
    ends = [b for _, b in pairs if b is not None]
    mean = abs(float(np.mean(ends))) if ends else 1.0
    return np.array(
        [
            float(b is None) - float(a is None) if a is None or b is None else (a - b) / mean
            for a, b in pairs
        ]
    )


def _failed(mine: Seeds) -> bool:
    """Tell whether all of at least three trainings ended in NaN, which needs no test."""
    return len(mine) >= _LEAST and all(end is None for end in mine.values())


def _said(shares: np.ndarray, *arms: Seeds) -> str:
    """Return mean, interval and count in words, and how many trainings of `arms` ended in NaN."""
    found, lost = t_estimate(shares), sum(end is None for arm in arms for end in arm.values())
    low, high = found.interval()
    ended = f", {lost} in NaN" if lost else ""
    return (
        f"{100 * found.value:+.1f}% [{100 * low:.1f}, {100 * high:.1f}], {len(shares)} seeds{ended}"
    )


def _equals(evidence: LowPrecisionEvidence) -> Found:
    """Judge whether six methods lose less than 5% on each task of states, in floats."""
    others = (PIXELS, " bits")  # integer controllers are none of the paper's
    tasks = {
        name: arms
        for name, arms in evidence.tasks.items()
        if not any(other in name for other in others)
    }
    return _keeps(tasks, _SIX, _FLOAT, f"needs {_LEAST} seeds of fp32 and of {_TRAIN}")


def _equals_from_pixels(evidence: LowPrecisionEvidence) -> Found:
    """Judge the same where the agents see images."""
    tasks = {name: arms for name, arms in evidence.tasks.items() if PIXELS in name}
    return _keeps(tasks, _SIX, _FLOAT, f"needs {_LEAST} seeds of fp32 and fp16 from pixels")


def _equals_for_draws(evidence: LowPrecisionEvidence) -> Found:
    """Judge the same over draws of hyperparameters."""
    by = "python -m benchmarks.precision.sac --arms fp32,six --draw"
    return _keeps(evidence.draws, _SIX, _FLOAT, by)


def _plain_actor(evidence: LowPrecisionEvidence) -> Found:
    """Judge whether six methods lose less than 5% to six and compensated sums of the actor."""
    by = "python -m benchmarks.precision.sac --arms six,six+kahan_actor"
    return _keeps(evidence.tasks, _SIX, f"{_SIX} and kahan_actor", by)


def _keeps(tasks: Mapping[str, dict[str, Seeds]], mine: str, base: str, by: str) -> Found:
    """Judge whether an arm loses less than 5% of another's return on each task."""
    tests, said = [], []
    for task, arms in tasks.items():
        # Where the other side failed alone there is nothing that could be kept.
        ended: Seeds = {seed: end for seed, end in arms.get(base, {}).items() if end is not None}
        shares = _lost(arms.get(mine, {}), ended)
        if len(shares) >= _LEAST and _failed(arms[mine]):
            tests.append(ClaimTest(1.0, 0.0))
            said.append(f"{task}: NaN in all {len(arms[mine])}")
        elif len(shares) >= _LEAST:
            found = t_estimate(shares)
            tests.append(ClaimTest(found.p_above(-KEPT), found.p_below(-KEPT)))
            whose = "fp32's return" if base == _FLOAT else "the other's"
            said.append(f"{task}: {_said(shares, arms[mine], arms[base])} of {whose}")
    return _every(tests, said, by)


def _constants_matter_not(evidence: LowPrecisionEvidence) -> Found:
    """Judge whether loss scaling with PyTorch's constants ends where it ends with the paper's."""
    tests, said = [], []
    for task, arms in evidence.tasks.items():
        for eps in _EPS:
            ours, amp = (arms.get(f"fp16, loss scaling{c}{eps}", {}) for c in ("", _AMP))
            if min(len(ours), len(amp)) < _LEAST:
                continue
            ends = [end for seeds in (ours, amp) for end in seeds.values()]
            if all(end is None for end in ends):
                tests.append(ClaimTest(0.0, 1.0))
                said.append(f"{task}{eps}: NaN in all {len(ends)}")
                continue
            if _failed(ours) != _failed(amp):
                tests.append(ClaimTest(1.0, 0.0))
                said.append(f"{task}{eps}: NaN in all {len(ours)} of one side alone")
                continue
            shares = _lost(amp, ours)
            if len(shares) < _LEAST:
                continue
            found = t_estimate(shares)
            beyond = min(found.p_below(-KEPT), found.p_above(KEPT))
            tests.append(ClaimTest(max(found.p_above(-KEPT), found.p_below(KEPT)), 2.0 * beyond))
            said.append(f"{task}{eps}: {_said(shares, ours, amp)}")
    by = "python -m benchmarks.precision.sac --arms loss_scaling [--amp]"
    return _every(tests, said, by)


def _crashes(evidence: LowPrecisionEvidence) -> Found:
    """Judge whether every training in plain half precision failed."""
    verdict, said = Verdict.unmeasured, []
    for eps in _EPS:
        plain = [arms.get(f"{_PLAIN}{eps}", {}).values() for arms in evidence.tasks.values()]
        ends = [end for seeds in plain for end in seeds]
        if not ends:
            continue
        failed = sum(end is None for end in ends)
        said.append(f"{failed} of {len(ends)} trainings{eps.replace(',', ' with')} ended in NaN")
        if not eps:  # the usual one is that of plain Adam
            if failed < len(ends):
                verdict = Verdict.failed
            elif failed >= _LEAST:
                verdict = Verdict.held
    if verdict is Verdict.unmeasured:
        return Found("; ".join([*said, f"{_TRAIN} --plain"]))
    return Found(f"{'; '.join(said)}; no test", verdict=verdict)


def _removal_hurts(evidence: LowPrecisionEvidence) -> Found:
    """Judge whether each arm that lacks one method is worse than the six, or failed."""
    tests, said, known = [], [], set[str]()
    for task, arms in evidence.tasks.items():
        for method, eps in product(METHODS, _EPS):
            mine = arms.get(f"fp16, without {method}{eps}", {})
            test, text = _compared(mine, arms.get(_SIX, {}), 0.0)
            if test is not None:
                tests.append(test)
                said.append(f"{task}{eps}, {method}: {text}")
                known.add(method)
    if len(known) < len(METHODS):
        by = "python -m benchmarks.precision.sac --arms six,without-METHOD"
        return Found("; ".join([*said, f"{len(known)} of {len(METHODS)} methods: {by}"]))
    return _every(tests, ["without a method minus all six", *said], "")


def _baselines_fail(evidence: LowPrecisionEvidence) -> Found:
    """Judge whether each of the paper's three baselines loses more than 5%, or failed."""
    tests, said, known = [], [], set[str]()
    for task, arms in evidence.tasks.items():
        for baseline in ("coercion", "loss scaling", "mixed precision"):
            test, text = _compared(arms.get(f"fp16, {baseline}", {}), arms.get(_FLOAT, {}), -KEPT)
            if test is not None:
                tests.append(test)
                said.append(f"{task}, {baseline}: {text}")
                known.add(baseline)
    if len(known) < 3:
        by = "python -m benchmarks.precision.sac --arms fp32,coercion,..."
        return Found("; ".join([*said, f"{len(known)} of 3 baselines: {by}"]))
    return _every(tests, said, "")


def _ladder_rises(evidence: LowPrecisionEvidence) -> Found:
    """Judge whether each method that is added improves the return: of two that fail, none does."""
    tests, said, known = [], [], set[str]()
    names = ["plain", *(" + ".join(METHODS[: count + 1]) for count in range(len(METHODS) - 2))]
    whole = [f"fp16, without {METHODS[-1]}", _SIX]
    ladders = [(eps, [*(f"fp16, {name}{eps}" for name in names), *whole]) for eps in _EPS]
    for (task, arms), (eps, rungs) in product(evidence.tasks.items(), ladders):
        for method, below, above in zip(METHODS, rungs, rungs[1:], strict=False):
            if eps and method == METHODS[-1]:  # the same as without eps
                continue
            first, second = arms.get(below, {}), arms.get(above, {})
            if min(len(first), len(second)) < _LEAST:
                continue
            test, text = _compared(first, second, 0.0)
            if all(end is None for end in second.values()):
                test, text = ClaimTest(1.0, 0.0), "NaN with it, too"
            if test is not None:
                tests.append(test)
                said.append(f"{task}{eps}, {method}: {text}")
                known.add(method)
    if len(known) < len(METHODS):
        by = "python -m benchmarks.precision.sac --arms plain,hadam,hadam+softplus,..."
        return Found("; ".join([*said, f"{len(known)} of {len(METHODS)} methods: {by}"]))
    return _every(tests, ["before a method minus with it", *said], "")


def _significands(evidence: LowPrecisionEvidence) -> Found:
    """Judge whether the step from 6 to 5 significand bits costs more than that from 10 to 6."""
    tests, said = [], []
    for task, arms in evidence.tasks.items():
        known = {
            bits: arms.get(_SIX if bits == 10 else f"e5m{bits}, six methods", {})
            for bits in range(10, 0, -1)
        }
        means = {bits: _mean(seeds) for bits, seeds in known.items() if seeds}
        shown = [
            f"{bits} bits {'NaN' if mean is None else f'{mean:,.0f}'}{_in_nan(known[bits])}"
            for bits, mean in means.items()
        ]
        if min(len(known[bits]) for bits in (10, 6, 5)) < _LEAST:
            continue
        said.append(f"{task}: {', '.join(shown)}")
        many, six, five = (known[bits] for bits in (10, 6, 5))
        if _failed(many):
            continue
        if _failed(five):  # steep, unless 6 bits have lost as much
            tests.append(ClaimTest(1.0, 0.0) if _failed(six) else ClaimTest(0.0, 1.0))
            continue
        # Of the seeds that all three have. What ended in NaN has lost all that 10 bits have.
        seeds = [seed for seed in five if seed in six and many.get(seed) is not None]
        if len(seeds) < _LEAST:
            continue
        base = {seed: many[seed] for seed in seeds}
        second, third = (_lost({seed: arm[seed] for seed in seeds}, base) for arm in (six, five))
        found = t_estimate(third - 2.0 * second)
        tests.append(ClaimTest(found.p_below(0.0), found.p_above(0.0)))
    return _every(tests, said, "python -m benchmarks.precision.sac --arms six --format e5m6, ...")


def _gradients_span(evidence: LowPrecisionEvidence) -> Found:
    """Judge whether the middle 98% of each training's weight gradients span so many orders."""
    if not evidence.gradients:
        return Found("qpd train sac TASK --set precision.gradient_exponents=N")
    spans = {}
    for name, found in evidence.gradients.items():
        # Within a binade, whose count is all that is known, magnitudes lie evenly in log scale.
        sums = np.concatenate([[0], np.cumsum(found.counts)]) / np.sum(found.counts)
        low, high = np.interp([0.01, 0.99], sums, np.arange(len(sums)))
        spans[name] = float(high - low) * np.log10(2.0)
    fewest = min(spans.values())
    verdict = Verdict.held if fewest >= _ORDERS else Verdict.failed
    if len(spans) < _LEAST:
        verdict = Verdict.undecided
    said = ", ".join(f"{name} {span:.2f}" for name, span in spans.items())
    words = f"orders of the middle 98%, actor and critics together: {said}; no test"
    return Found(words, verdict=verdict)


def _in_nan(seeds: Seeds) -> str:
    failed = sum(end is None for end in seeds.values())
    return f" ({failed} of {len(seeds)} in NaN)" if 0 < failed < len(seeds) else ""


def _mean(seeds: Seeds) -> float | None:
    """Return the mean of the trainings that ended, None where none did."""
    ends = [end for end in seeds.values() if end is not None]
    return float(np.mean(ends)) if ends else None


def _compared(mine: Seeds, base: Seeds, least: float) -> tuple[ClaimTest | None, str]:
    """Return the test of "mine is below base by more than -`least`" and its words.

    None where there are too few seeds; an arm whose every training failed is below one that ended,
    and not told from one that failed as well.
    """
    if _failed(mine):
        if _failed(base):
            return ClaimTest(1.0, 1.0), f"NaN in all {len(mine)}, as in the others"
        is_known = len(base) >= _LEAST
        return (ClaimTest(0.0, 1.0), f"NaN in all {len(mine)}") if is_known else (None, "")
    shares = _lost(mine, base)
    if len(shares) < _LEAST:
        return None, ""
    if _failed(base):
        return ClaimTest(1.0, 0.0), f"NaN in all {len(base)} of the others"
    found = t_estimate(shares)
    return ClaimTest(found.p_below(least), found.p_above(least)), _said(shares, mine, base)


def _every(tests: Sequence[ClaimTest], said: Sequence[str], by: str) -> Found:
    if not tests:
        return Found(by)
    words = "; ".join(said)
    # Where arms failed as a whole, nothing is left to chance.
    if any(test.failed == 0.0 for test in tests):
        return Found(f"{words}; no test", verdict=Verdict.failed)
    if all(test.held == 0.0 for test in tests):
        return Found(f"{words}; no test", verdict=Verdict.held)
    return Found(words, claim_test_of_every(tests))


CLAIMS: list[tuple[str, Callable[[LowPrecisionEvidence], Found]]] = [
    ("six methods in fp16 equal fp32 on each task (within 5%)", _equals),
    ("plain fp16 always crashes", _crashes),
    ("coercion, loss scaling and mixed precision end far below fp32",
     _baselines_fail),
    ("each method that is added improves the mean return", _ladder_rises),
    ("removing any one method hurts", _removal_hurts),
    ("amp's own constants for loss scaling change nothing", _constants_matter_not),
    ("return falls with the significand, slowly, then steeply at 5 bits",
     _significands),
    ("from pixels fp16 equals fp32", _equals_from_pixels),
    ("1.22 to 2.18 times faster, 1.86 to 1.89 times less memory on a GPU",
     not_measured("needs a GPU; on a CPU python -m benchmarks.precision.memory --images")),
    ("in exact arithmetic the six leave SAC as it was",
     lambda _: Found("a hundred updates in float64, by a test of QPD; no trainings",
                     verdict=Verdict.held)),
    (f"fp32 gradients span many orders of magnitude (here: {_ORDERS} or more)", _gradients_span),
    ("equal to fp32 for random hyperparameters, too", _equals_for_draws),
    ("the actor needs no Kahan sum", _plain_actor),
]  # fmt: skip
