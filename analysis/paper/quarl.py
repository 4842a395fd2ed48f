"""QuaRL's ten claims (Krishnan et al., arXiv 1910.01055), judged by suites and trainings of ours.

The paper draws means of signed errors without intervals; here each claim is a test, corrected for
their number by Holm. Bounds are the paper's where it names one, else ours, and stand in the text.
Trainings are the files of `python -m benchmarks.agents.quantization_aware`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from qpd.analysis.paper.judged_claims import Found, JudgedClaim, judge_claims
from qpd.analysis.paper.quarl_benchmarks import (
    BenchmarkResults,
    integers_deployed,
    mixed_precision_gains,
)
from qpd.analysis.paper.verdict import ClaimTest, Verdict
from qpd.analysis.suites.exploration import FLOAT, FLOAT_BITS, LAYER_NORM, last_stage
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TargetError
from qpd.evaluation.games import bootstrap_estimate
from qpd.evaluation.holm import ERROR_RATE
from qpd.evaluation.studentized import t_estimate
from qpd.files.bounded_read import read_file
from qpd.files.json_input import read_json
from qpd.teachers.archive.algorithm import Q_ALGORITHMS

FREE = 2.0  # percent: |mean E| below it is free (claim 1), and the lower end of claim 2
COSTLY = 5.0  # percent: the upper end of claim 2
KEPT = 0.05  # of R_fp32 - R_random: what "keeps the return" may lose (claim 4)
_LEAST, _PERMUTATIONS = 3, 4000
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class QuarlEvidence:
    """Hold what claims are judged by: `suite_frame`, `sweet_spots`, trainings by agent and seed.

    `trained[agent][seed][policy]` are the returns of games with the same starts; policies are fp32,
    random, and QAT-8, PTQ-8 and so on.
    """

    frame: pd.DataFrame
    spots: pd.DataFrame
    trained: dict[str, dict[str, dict[str, list[float]]]]
    explored: pd.DataFrame | None = None  # of `qpd analyze exploration`
    benchmarks: BenchmarkResults = BenchmarkResults()


def read_explored(file: Path | None) -> pd.DataFrame | None:
    """Read exploration.csv. Raises TargetError for another file."""
    if file is None:
        return None
    try:
        table = pd.read_csv(io.BytesIO(read_file(file, _MOST_BYTES)))
        if "kind" not in table:  # of QPD before layer norm
            bits = table["bits"].astype(int)
            table["kind"] = np.where(bits == FLOAT_BITS, FLOAT, bits.astype(str) + " bits")
        last_stage(table)[["algo", "env_id", "seed", "bits", "kind", "variance"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TargetError(
            f"{file}: is no exploration.csv of `qpd analyze exploration RUNS -o FOLDER`",
            ErrorCode.RUN_DAMAGED,
        ) from error
    return table


def read_trained(folder: Path | None) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Read the results of trainings, a file for each agent. Raises TargetError for others."""
    found = {}
    for file in sorted(folder.glob("*.json")) if folder is not None else []:
        try:
            content = read_json(file)
            for games in content.values():
                for returns in games.values():
                    np.asarray(returns, float).mean()
                games["fp32"], games["random"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise TargetError(
                f"{file}: is no result of `python -m benchmarks.agents.quantization_aware`",
                ErrorCode.RUN_DAMAGED,
            ) from error
        found[file.stem] = content
    if folder is not None and not found:
        raise TargetError(
            f"{folder}: no results of `python -m benchmarks.agents.quantization_aware` there",
            ErrorCode.RUN_NOT_A_RUN,
        )
    return found


def judge(evidence: QuarlEvidence) -> list[JudgedClaim]:
    """Return all ten claims with their verdicts."""
    return judge_claims(CLAIMS, evidence)


def _fp16_is_free(evidence: QuarlEvidence) -> Found:
    frame = evidence.frame[evidence.frame["counted"]]
    mine = frame[frame["precision"] == "fp16"]
    held, failed, said = [], [], []
    for algo, errors in mine.groupby("algo")["error_percent"]:
        known = errors.dropna().to_numpy(float)
        if len(known) < _LEAST:
            continue
        found = bootstrap_estimate(known)
        low, high = found.interval()
        held.append(max(found.p_above(-FREE), found.p_below(FREE)))
        failed.append(2 * min(found.p_below(-FREE), found.p_above(FREE)))
        said.append(f"{algo} {known.mean():+.1f}% [{low:.1f}, {high:.1f}] of {len(known)}")
    if not held:
        return Found("needs fp16 of three agents of an algorithm: qpd quantize --bits fp16")
    return Found(
        "mean E: " + ", ".join(said), ClaimTest(max(held), min(1.0, len(failed) * min(failed)))
    )


def _int8_costs(evidence: QuarlEvidence) -> Found:
    mine, kind = _eight_bits(evidence.frame)
    mine = mine[~mine["algo"].isin(Q_ALGORITHMS)]
    known = mine["error_percent"].dropna().to_numpy(float)
    if len(known) < _LEAST:
        return Found("needs 8 bits of three agents: qpd quantize --bits 8")
    found = bootstrap_estimate(known)
    low, high = found.interval()
    test = ClaimTest(
        max(found.p_above(FREE), found.p_below(COSTLY)),
        min(1.0, 2 * min(found.p_below(FREE), found.p_above(COSTLY))),
    )
    worst = mine.loc[mine["error_percent"].idxmax()]
    return Found(
        f"{kind}: mean E {known.mean():+.1f}% [{low:.1f}, {high:.1f}] of {len(known)} agents, mean "
        f"|E| {np.abs(known).mean():.1f}%, worst {worst['agent']} {worst['error_percent']:.0f}%",
        test,
    )


def _some_get_better(evidence: QuarlEvidence) -> Found:
    frame, spots = evidence.frame, evidence.spots
    better = frame[(frame["difference"] > 0) & (frame["p_holm"] < ERROR_RATE)]
    apart = _most_apart(spots)
    if spots.empty or spots["agent"].nunique() < 2:
        return Found("needs 8 to 2 bits of two agents: qpd quantize --bits 8,7,6,5,4,3,2")
    names = ", ".join(dict.fromkeys(better["agent"])) or "none"
    said = f"significantly better than fp32 at some bits: {names}; "
    said += f"sweet spots apart: {apart}" if apart else "sweet spots all meet"
    is_held = len(better) > 0 and apart != ""
    # Each half is corrected for all agents; that none was found shows nothing.
    return Found(said, verdict=Verdict.held if is_held else Verdict.undecided)


def _aware_keeps(evidence: QuarlEvidence) -> Found:
    shares = {bits: _shares(evidence, f"QAT-{bits}", "fp32") for bits in (5, 6)}
    known = {bits: each for bits, each in shares.items() if len(each) >= _LEAST}
    if not known:
        return Found(
            "needs trainings of 5 or 6 bits: benchmarks.agents.quantization_aware --bits 6,5"
        )
    bits = min(known)
    agents = _agent_means(known[bits])
    said = f"{bits} bits: {100 * np.mean(list(agents.values())):+.1f}%"
    told = f"of R_fp32 - R_random over {len(known[bits])} trainings of {', '.join(sorted(agents))}"
    if len(agents) < 2:  # of one task that loses nothing nothing is learned
        return Found(f"{said} {told}", verdict=Verdict.undecided)
    found = t_estimate(np.array(list(agents.values())))
    low, high = found.interval()
    said = f"{said} [{100 * low:.1f}, {100 * high:.1f}] {told}"
    return Found(said, ClaimTest(found.p_above(-KEPT), found.p_below(-KEPT)))


def _aware_beats(evidence: QuarlEvidence) -> Found:
    said, tests = [], []
    for bits in (8, 6, 5, 4, 3, 2):
        shares = _shares(evidence, f"QAT-{bits}", f"PTQ-{bits}")
        agents = _agent_means(shares)
        if len(agents) < 2:
            continue
        found = t_estimate(np.array(list(agents.values())))
        low, high = found.interval()
        said.append(
            f"{bits} bits {100 * found.value:+.0f}% [{100 * low:.0f}, {100 * high:.0f}] of "
            f"{len(agents)} agents, {len(shares)} trainings"
        )
        tests.append((found.p_above(0.0), found.p_below(0.0)))
    if not tests:
        return Found("needs trainings in few bits: python -m benchmarks.agents.quantization_aware")
    # "Beats" if it does at some number of bits and at none the other way round.
    count = len(tests)
    held, failed = (min(1.0, count * min(side)) for side in zip(*tests, strict=True))
    if max(held, failed) < ERROR_RATE:
        held = 1.0
    return Found("QAT - PTQ, of R_fp32 - R_random: " + ", ".join(said), ClaimTest(held, failed))


def _wider_loses(group: str, others: str) -> Callable[[QuarlEvidence], Found]:
    def find(evidence: QuarlEvidence) -> Found:
        mine, kind = _eight_bits(evidence.frame)
        mine = mine.dropna(subset=["widest_range_per_sigma", "lost_percent"])
        groups = [part for _, part in mine.groupby(group) if len(part) >= _LEAST]
        if not groups:
            return Found(f"needs 8 bits of three {others}: qpd quantize --bits 8")
        value, above, below = _grouped_correlation(groups)
        return Found(
            f"{kind}: mean rank correlation of range / sigma and loss {value:+.2f} over "
            f"{len(groups)} groups of {sum(map(len, groups))} agents",
            ClaimTest(above, below),
        )

    return find


def _variance_falls(evidence: QuarlEvidence) -> Found:
    if evidence.explored is None:
        return Found("needs --explored, the exploration.csv of `qpd analyze exploration RUNS`")
    late = last_stage(evidence.explored)
    keys = ["algo", "env_id", "seed"]
    floats = late[late["kind"] == FLOAT]

    def changes(mine: pd.DataFrame, column: str = "variance") -> np.ndarray:
        # All bits of a seed are compared with one float training: they count once, as their mean.
        own, means = (part.groupby(keys)[column].mean() for part in (floats, mine))
        means = means[means.index.isin(own.index)]
        return (means - own.reindex(means.index)).dropna().to_numpy(float)

    is_normed = late["kind"].str.contains("layer norm")
    few_bits = late[(late["bits"] < FLOAT_BITS) & ~is_normed]
    few = changes(few_bits)
    normed = changes(late[late["kind"] == LAYER_NORM])
    if len(few) < _LEAST:
        return Found("needs three trainings in few bits with float ones of the same seeds")
    found = bootstrap_estimate(few)
    low, high = found.interval()
    said = (
        f"variance in few bits - in float {found.value:+.4f} [{low:+.4f}, {high:+.4f}] over "
        f"{len(few)} trainings"
    )
    # A policy that plays badly meets other states.
    same = changes(few_bits, "common_variance") if "common_variance" in late else few[:0]
    if len(same) >= _LEAST:
        estimate = bootstrap_estimate(same)
        low, high = estimate.interval()
        said += f" ({estimate.value:+.4f} [{low:+.4f}, {high:+.4f}] on the float agent's states)"
    if len(normed) < _LEAST:
        return Found(
            f"{said}; layer norm is not measured",
            ClaimTest(found.p_below(0.0), found.p_above(0.0)),
        )
    norm = bootstrap_estimate(normed)
    low, high = norm.interval()
    # The claim says both, so that the weaker half decides; one that is false refutes it.
    return Found(
        f"{said}; with layer norm {norm.value:+.4f} [{low:+.4f}, {high:+.4f}] over {len(normed)}",
        ClaimTest(
            max(found.p_below(0.0), norm.p_below(0.0)),
            min(1.0, 2 * min(found.p_above(0.0), norm.p_above(0.0))),
        ),
    )


CLAIMS: list[tuple[str, Callable[[QuarlEvidence], Found]]] = [
    ("fp16 costs nothing: |mean E| < 2% for each algorithm", _fp16_is_free),
    ("int8 costs 2-5% on average, DQN excepted", _int8_costs),
    ("PTQ makes some policies better; the best bits depend on the task", _some_get_better),
    ("QAT keeps the fp32 return down to 5-6 bits (within 5%)", _aware_keeps),
    ("at equal bits QAT beats PTQ", _aware_beats),
    ("with one algorithm, tasks with wider weights lose more", _wider_loses("algo", "tasks")),
    ("on one task, algorithms with wider weights lose more",
     _wider_loses("environment", "algorithms")),
    ("QAT lowers the action variance, as layer norm does",
     _variance_falls),
    ("mixed precision converges alike and gains with size",
     lambda evidence: mixed_precision_gains(evidence.benchmarks)),
    ("int8 is up to 18x faster and 4x smaller on a Pi",
     lambda evidence: integers_deployed(evidence.benchmarks)),
]  # fmt: skip


def _eight_bits(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return a row of 8-bit weights for each agent, of the paper's own scheme if it has enough."""
    weights = frame[frame["counted"] & (frame["bits"] == 8) & frame["activation_bits"].isna()]
    for scheme, per in (("affine-literal", "tensor"), ("affine", "tensor"), ("affine", "column")):
        mine = weights[(weights["scheme"] == scheme) & (weights["per"] == per)]
        if mine["agent"].nunique() >= _LEAST:
            return mine, f"{scheme}, {per}"
    return weights.iloc[:0], "8 bits"


def _most_apart(spots: pd.DataFrame) -> str:
    """Name two agents whose sweet spots, of one kind, have no bits in common; empty if none."""
    best, said = 0, ""
    for _, mine in [] if spots.empty else spots.groupby("kind", sort=False):
        low = mine.loc[mine["to_bits"].idxmin()]
        high = mine.loc[mine["from_bits"].idxmax()]
        gap = high["from_bits"] - low["to_bits"]
        if gap > best:
            best = gap
            said = (
                f"{low['agent']} {low['from_bits']} to {low['to_bits']}, {high['agent']} "
                f"{high['from_bits']} to {high['to_bits']}"
            )
    return said


def _shares(evidence: QuarlEvidence, ours: str, theirs: str) -> list[tuple[str, float]]:
    """Return (R_ours - R_theirs) / (R_fp32 - R_random) of each training.

    The span is its agent's mean over seeds: a float training that failed would have a small one of
    its own, and so count for several others.
    """
    found = []
    for agent, seeds in evidence.trained.items():
        both = [games for games in seeds.values() if ours in games and theirs in games]
        spans = [np.mean(games["fp32"]) - np.mean(games["random"]) for games in both]
        span = float(np.mean(spans)) if spans else 0.0
        if span > 0:
            gained = (np.mean(games[ours]) - np.mean(games[theirs]) for games in both)
            found += [(agent, float(each) / span) for each in gained]
    return found


def _agent_means(shares: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Return the mean share of each agent's trainings.

    Agents are what claims are about, and some have three trainings, others ten.
    """
    agents = dict.fromkeys(agent for agent, _ in shares)
    return {one: float(np.mean([each for agent, each in shares if agent == one])) for one in agents}


def _grouped_correlation(groups: Sequence[pd.DataFrame]) -> tuple[float, float, float]:
    """Return the mean rank correlation within groups, and p-values of "not above 0", "not below".

    By permutation of the losses within each group.
    """
    rng = np.random.default_rng(0)
    ranks = [
        (
            part["widest_range_per_sigma"].rank().to_numpy(),
            part["lost_percent"].rank().to_numpy(),
        )
        for part in groups
    ]

    def mean(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
        values = [
            float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) and np.ptp(b) else 0.0 for a, b in pairs
        ]
        return float(np.mean(values))

    value = mean(ranks)
    draws = np.array(
        [mean([(a, rng.permutation(b)) for a, b in ranks]) for _ in range(_PERMUTATIONS)]
    )
    above = (1 + np.sum(draws >= value - 1e-12)) / (1 + len(draws))
    below = (1 + np.sum(draws <= value + 1e-12)) / (1 + len(draws))
    return value, float(above), float(below)
