"""The paper's claims, each as a ratio of mean returns that lies above or below a bound.

The paper played Breakout; so do the runs that count here. Which runs a claim compares is in
`qpd.analysis.paper.claim_pairs`, when it held in `qpd.analysis.paper.verdict`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from qpd.analysis.paper import published
from qpd.analysis.paper.claim_pairs import (
    Found,
    Side,
    against_return,
    beside_teacher,
    pairs_between,
)
from qpd.analysis.returns.policy_groups import PolicyGroup
from qpd.students import SIZE_GRID
from qpd.teachers.archive.algorithm import ACTOR_CRITIC_ALGORITHMS

ENVIRONMENT = "Breakout"
# Our own bounds, for claims that the paper makes without a number.
FAILED_SHARE = 0.1  # of the three phases' return: below it, training failed
LOSSLESS_SHARE = 0.95  # of the teacher's return: above it, nothing is lost
LARGE_BOUND = 400.0
# What levels and losses by bits are judged by: the paper's students saw 324 million samples.
LEAST_SAMPLES = 4_000_000
_EIGHT_BITS = {"quantize.weight_bits": 8, "quantize.activation_bits": 8}
_LAMBDAS = ("distill.actor_weight", "finetune.actor_weight")
# "Above 400 from S or M up": of S the paper may not say it.
_SMALL_SIZES, LARGE_SIZES = ("XXS", "XS"), ("M", "L", "XL", "XXL")
FLOAT_STUDENTS = Side("fp32 students", "distilled", {})
EIGHT_BIT_STUDENTS = Side("8-bit students", "qat", _EIGHT_BITS)
# Phase 3 alone trains as phase 1 does and for both, so these keys may differ.
_PHASE_LENGTHS = (
    "distill.",
    "finetune.epochs",
    "finetune.lr",
    "finetune.recycle_dormant",
    "evaluation.",
)

Find = Callable[[Sequence[PolicyGroup]], Found]


@dataclass(frozen=True)
class Claim:
    """One claim: the ratio of the groups that `find` pairs, first over second, and its bound.

    It holds if the ratio lies on its `side` of `bound`: the mean of the pairs' ratios or every one
    of them, by `scope`. `ratio` says in words what is divided by what.
    """

    key: str
    text: str
    number: published.PaperNumber
    ratio: str
    find: Find
    side: Literal["above", "below"] = "above"
    bound: float = 1.0
    scope: Literal["mean", "every"] = "mean"


def paper_claims() -> list[Claim]:
    """Return all claims, in the paper's order."""
    return [
        critic_helps(quantized=False),
        critic_helps(quantized=True),
        temperature_three(1.0),
        temperature_three(0.01),
        floats_beat_teacher(as_imitated=True),
        floats_beat_teacher(as_imitated=False),
        large_students_reach_400(),
        small_students_lose("XS", "S", published.STEP_S_TO_XS),
        small_students_lose("XXS", "XS", published.STEP_XS_TO_XXS, actor_critics=True),
        small_students_lose_by_quantization(),
        small_integers_beat_floats(),
        half_a_percent_without_loss(),
        phase_3_alone_fails("as-written"),
        phase_3_alone_fails("dorefa"),
        phase_3_alone_fails("dorefa_scaled"),
    ]


def critic_helps(quantized: bool) -> Claim:
    """Compare Eq. 2 at lambda 0.5 with lambda 1, the actor's loss alone."""

    def side(weight: float) -> Side:
        # An fp32 student has seen phase 1's lambda only; the other is for the command that makes
        # the run.
        keys = _LAMBDAS if quantized else _LAMBDAS[:1]
        settings = dict.fromkeys(keys, weight) | (_EIGHT_BITS if quantized else {})
        also = {} if quantized else {_LAMBDAS[1]: weight}
        policy, name = ("qat", "8-bit") if quantized else ("distilled", "fp32")
        return Side(f"{name} lambda {weight:g}", policy, settings, also)

    def find(groups: Sequence[PolicyGroup]) -> Found:
        # DQN teachers have no critic; the paper claims nothing about a lambda of theirs.
        actor_critic = [group for group in groups if _has_critic(group)]
        return pairs_between(actor_critic, side(0.5), side(1.0), _LAMBDAS)

    precision = "8-bit" if quantized else "fp32"
    return Claim(
        f"critic-{precision}",
        f"the critic's loss helps ({precision} students)",
        published.CRITIC_GAIN_8_BIT if quantized else published.CRITIC_GAIN,
        "lambda 0.5 / lambda 1",
        find,
    )


def temperature_three(other: float) -> Claim:
    """Compare actor smoothing, tau = 3, with none (1) or with DQN's sharpening (0.01)."""

    def side(temperature: float) -> Side:
        key, later = "distill.temperature", "finetune.temperature"
        name = f"fp32 tau {temperature:g}"
        return Side(name, "distilled", {key: temperature}, {later: temperature})

    def find(groups: Sequence[PolicyGroup]) -> Found:
        actor_critic = [group for group in groups if _has_critic(group)]
        return pairs_between(actor_critic, side(3.0), side(other), ("distill.temperature",))

    return Claim(
        f"tau-{other:g}",
        f"actors are distilled better at tau 3 than at {other:g}",
        published.ACTOR_TEMPERATURE,
        f"tau 3 / tau {other:g}",
        find,
    )


def floats_beat_teacher(as_imitated: bool) -> Claim:
    """Compare every fp32 student with its teacher, playing as imitated or as SB3 plays it."""
    played = "played as it is imitated" if as_imitated else "played as SB3 plays it"
    # Of the paper's sizes: ours of a few thousand parameters are none of its claims.
    settings = {"student.size": tuple(SIZE_GRID)}
    side = replace(FLOAT_STUDENTS, settings=settings, least_samples=LEAST_SAMPLES)
    return Claim(
        "teacher" if as_imitated else "teacher-plain",
        f"every fp32 student beats its teacher, {played}",
        published.FLOAT_ABOVE_TEACHER,
        "student / teacher",
        lambda groups: beside_teacher(groups, side, as_imitated),
        scope="every",
    )


def large_students_reach_400() -> Claim:
    """Compare 8-bit students of A2C and PPO from M up with 400: the paper's "from S or M up"."""
    settings = {"student.size": LARGE_SIZES, **_EIGHT_BITS}
    side = Side("8-bit M or larger", "qat", settings, least_samples=LEAST_SAMPLES)

    def find(groups: Sequence[PolicyGroup]) -> Found:
        return against_return([g for g in groups if _has_critic(g)], side, LARGE_BOUND)

    return Claim(
        "above-400",
        "8-bit A2C and PPO students from M up: above 400, separate games",
        published.LARGE_RETURN,
        "return / 400",
        find,
        scope="every",
    )


def small_students_lose(
    small: str, large: str, number: published.PaperNumber, *, actor_critics: bool = False
) -> Claim:
    """Compare 8-bit students, of all or actor-critic teachers, one step of the sizes apart."""

    def side(size: str) -> Side:
        return Side(f"8-bit {size}", "qat", {"student.size": size, **_EIGHT_BITS})

    def find(groups: Sequence[PolicyGroup]) -> Found:
        kept = [group for group in groups if not actor_critics or _has_critic(group)]
        return pairs_between(kept, side(small), side(large), ("student.size",))

    whose = " of A2C or PPO" if actor_critics else ""
    return Claim(
        f"{small.lower()}-{large.lower()}",
        f"an 8-bit {small} student{whose} plays worse than {large}",
        number,
        f"{small} / {large}",
        find,
        side="below",
    )


def small_students_lose_by_quantization() -> Claim:
    """Compare 8-bit XXS and XS students with the fp32 students of the same runs."""
    sizes = {"student.size": _SMALL_SIZES}
    # One that has hardly learned loses or gains by chance.
    integers = Side("8-bit XXS", "qat", {**sizes, **_EIGHT_BITS}, least_samples=LEAST_SAMPLES)
    floats = Side("fp32 XXS", "distilled", sizes, least_samples=LEAST_SAMPLES)
    return Claim(
        "small-8-bit",
        "XXS and XS students lose by quantization to 8 bits",
        published.QUANTIZED_SMALL,
        "8-bit / fp32",
        lambda groups: pairs_between(groups, integers, floats, ()),
        side="below",
    )


def small_integers_beat_floats() -> Claim:
    """Compare an 8-bit S student with a larger file, an fp32 XXS student."""
    integers = Side("8-bit S", "qat", {"student.size": "S", **_EIGHT_BITS})
    floats = Side("fp32 XXS", "distilled", {"student.size": "XXS"})
    return Claim(
        "s-8-bit",
        "an 8-bit S student beats an fp32 XXS student",
        published.SMALL_INTEGERS,
        "8-bit S / fp32 XXS",
        lambda groups: pairs_between(groups, integers, floats, ("student.size",)),
    )


def half_a_percent_without_loss() -> Claim:
    """Compare 8-bit XXS students, 0.5% of the teacher's bytes, with the teacher they imitate."""
    settings = {"student.size": "XXS", **_EIGHT_BITS}
    side = Side("8-bit XXS", "qat", settings, least_samples=LEAST_SAMPLES)
    return Claim(
        "half-percent",
        f"an 8-bit XXS student keeps its teacher's return: above {LOSSLESS_SHARE:.0%} of it",
        published.HALF_A_PERCENT,
        "student / teacher",
        lambda groups: beside_teacher(groups, side, as_imitated=True),
        bound=LOSSLESS_SHARE,
    )


def phase_3_alone_fails(kind: Literal["as-written", "dorefa", "dorefa_scaled"]) -> Claim:
    """Compare quantized training from scratch with all three phases, on one budget.

    As written there is nothing of ours: no sharpness, no play by the student, no recycling. Runs
    of the other two recipes have all of it, and Eq. 5 or quantizers that keep the scales.
    """
    key, what, suffix = {
        "as-written": ("phase-3", "the method as written", "-as-written"),
        "dorefa": ("phase-3-eq5", "Eq. 5 as written, the rest ours", "-dorefa"),
        "dorefa_scaled": ("phase-3-scaled", "scaled quantizers", ""),
    }[kind]
    settings: dict[str, Any] = {
        "quantize.scheme": "dorefa_scaled" if kind == "dorefa_scaled" else "dorefa",
        **_EIGHT_BITS,
    }
    trained: dict[str, Any] = {}
    if kind == "as-written":
        settings |= {"student.sharpness": 1.0, "collection.student_fraction": 0.0}
        trained = {"finetune.recycle_dormant": False}
    elif kind == "dorefa":
        trained = {"finetune.recycle_dormant": True}
    # No epochs of phase 1: phase 3 begins with the random weights. A shipped recipe makes such a
    # run, as its budget has to match.
    alone = Side(
        f"phase 3 alone {kind}",
        "qat",
        {"distill.epochs": 0, **settings, **trained},
        recipe=f"ablation/phase3-only{suffix}",
    )
    whole = "ablation/as-written" if kind == "as-written" else f"ablation/three-phases{suffix}"
    phases = Side(f"three phases {kind}", "qat", settings, recipe=whole)
    return Claim(
        key,
        f"phase 3 alone fails: below {FAILED_SHARE:.0%} of three phases ({what})",
        published.PHASE_3_ALONE if kind == "as-written" else published.PHASE_3_ALONE_SCALED,
        "phase 3 alone / three phases",
        lambda groups: pairs_between(groups, alone, phases, _PHASE_LENGTHS, from_scratch=True),
        side="below",
        bound=FAILED_SHARE,
    )


def _has_critic(group: PolicyGroup) -> bool:
    return group.teacher in ACTOR_CRITIC_ALGORITHMS
