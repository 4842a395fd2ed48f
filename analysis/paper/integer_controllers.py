"""The 13 claims of Kresse & Lampert (arXiv 2511.07046), judged by controllers of ours.

Trained ones and students of one teacher are judged apart from each other and from other tasks, as
ratios to the float policy of their own route. Parity is the paper's: on each task the share of the
float's return that its own criterion, one deviation over seeds, allowed there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from qpd.analysis.paper.controller_evidence import (
    PART,
    ClaimParts,
    ControllerEvidence,
    cell_words,
    found_by_every,
    has_parity,
    ratio_test,
    ratio_words,
    task_of,
)
from qpd.analysis.paper.ddpg_claims import judge_ddpg, judge_normalization
from qpd.analysis.paper.judged_claims import Found, JudgedClaim, judge_claims
from qpd.analysis.paper.published_controllers import MOST, TASKS
from qpd.analysis.paper.results import MIN_EPISODES
from qpd.analysis.paper.verdict import ClaimTest, Verdict, claim_test
from qpd.analysis.selection.measured_cells import Games, matched
from qpd.analysis.selection.robustness import noisy_pairs, ratio_over_noise
from qpd.analysis.selection.rule import Cell
from qpd.analysis.selection.scopes import SCOPES, scope_cells

_LARGEST = Cell(8, 256, MOST)
_TWO_BITS = ("Ant", "Hopper", "Walker2d")


def judge(evidence: ControllerEvidence) -> list[JudgedClaim]:
    """Return all claims with their verdicts."""
    return judge_claims(CLAIMS, evidence)


def _at_parity(core: Callable[[str], int]) -> Callable[[ControllerEvidence], Found]:
    """Return a finder: the core's bits on each task, with the widest network, are at parity."""

    def find(evidence: ControllerEvidence) -> Found:
        tests, said, tasks = [], [], set()
        for found in evidence.routes:
            task = TASKS[task_of(found)]
            games = scope_cells(found, "core").get(core(task_of(found)))
            if games is None or not found.floats:
                continue
            pair = [matched(games, found.widest_floats)]
            tests.append(ratio_test(pair, task.parity, "above"))
            ratio = f"{ratio_words(pair)}, bound {task.parity:.2f}"
            said.append(f"{found.route}, {core(task_of(found))} bits: {ratio}")
            tasks.add(task_of(found))
        if tasks:
            said.insert(0, f"{len(tasks)} of {len(TASKS)} tasks")
        if len(tasks) < len(TASKS):  # a claim on all of them: some show at most that it fails
            tests = [replace(test, held=1.0) for test in tests]
        return found_by_every(tests, said, "qpd sweep recipes/controllers-grid.yaml")

    return find


def _parities(
    parts: ClaimParts, evidence: ControllerEvidence, scope: str, fewest: Callable[[str], int]
) -> ClaimParts:
    """Add to the first part whether all of a scope's cells with `fewest(task)` bits are at parity.

    And with more; of routes where so few were measured.
    """
    for found in evidence.routes:
        task, tests, shown = TASKS[task_of(found)], list[ClaimTest](), list[str]()
        cells, least = scope_cells(found, scope), fewest(task_of(found))
        if not found.floats or least not in cells:
            continue
        for bits, games in sorted(cells.items(), reverse=True):
            if MOST > bits >= least:
                pair = [matched(games, found.widest_floats)]
                tests.append(ratio_test(pair, task.parity, "above"))
                shown.append(f"{bits} bits {ratio_words(pair)}")
        if shown:
            parts.add(0, tests, f"{found.route}: {', '.join(shown)}, bound {task.parity:.2f}")
    return parts


def _all_bits(evidence: ControllerEvidence) -> Found:
    """Judge whether so many bits everywhere are at parity."""
    parts = ClaimParts("all in few bits")
    _parities(parts, evidence, "all", lambda task: 5 if task == "HalfCheetah" else 3)
    return parts.found("qpd train sac TASK --bits all=N")


def _bottleneck(evidence: ControllerEvidence) -> Found:
    """Judge whether few input bits alone lose more than a few core or output bits alone do.

    Of bits with which all together are below parity.
    """
    tests, said = [], []
    for found in evidence.routes:
        scopes = {scope: scope_cells(found, scope) for scope in SCOPES}
        if not found.floats:
            continue
        for bits, games in sorted(scopes["all"].items(), reverse=True):
            if bits == MOST:  # there the three are one cell
                continue
            alone = [scopes[scope].get(bits) for scope in ("input", "core", "output")]
            if has_parity(games, found) or None in alone:
                continue
            own, *others = alone
            for name, other in zip(("core", "output"), others, strict=True):
                pair = [matched(own, other)]  # type: ignore[arg-type]
                tests.append(ratio_test(pair, 1.0, "below"))
                said.append(
                    f"{found.route}, {bits} bits, input against {name}: {ratio_words(pair)}"
                )
    return found_by_every(
        tests, said, "qpd train sac TASK --bits all=N, input=N, core=N and output=N"
    )


def _outputs(evidence: ControllerEvidence) -> Found:
    """Judge whether outputs of 3 bits and more are at parity, and those of 2 bits are not."""
    parts = ClaimParts("outputs of 3 bits and more", "outputs of 2 bits")
    _parities(parts, evidence, "output", lambda _: 3)
    for found in evidence.routes:
        games = scope_cells(found, "output").get(2)
        if games is not None and found.floats and 3 in scope_cells(found, "output"):
            pair = [matched(games, found.widest_floats)]
            test = ratio_test(pair, TASKS[task_of(found)].parity, "below")
            parts.add(1, [test], f"{found.route}, 2 bits: {ratio_words(pair)}")
    return parts.found("qpd train sac TASK --bits output=N")


def _capacity(evidence: ControllerEvidence) -> Found:
    """Judge whether HalfCheetah's return falls with the core's bits and with the width.

    One of both shows nothing of the other.
    """
    parts = ClaimParts("core bits", "widths")
    for found in evidence.routes:
        if task_of(found) != "HalfCheetah" or not found.cells:
            continue
        by_core = scope_cells(found, "core")
        narrow: dict[int, dict[int, Games]] = {}
        for cell, games in found.cells.items():
            if cell.inputs == cell.outputs == MOST:
                narrow.setdefault(cell.core, {})[cell.width] = games
        if len(by_core) > 1:
            few, many = min(by_core), max(by_core)
            pair = [matched(by_core[few], by_core[many])]
            test = ratio_test(pair, 1.0, "below")
            parts.add(0, [test], f"{found.route}, core {few} against {many}: {ratio_words(pair)}")
        core, widths = max(narrow.items(), key=lambda item: len(item[1]), default=(0, {}))
        if len(widths) > 1:
            few, many = min(widths), max(widths)
            pair = [matched(widths[few], widths[many])]
            test = ratio_test(pair, 1.0, "below")
            parts.add(1, [test], f"core {core}, width {few} against {many}: {ratio_words(pair)}")
    return parts.found("HalfCheetah-v4: cells of several cores and widths")


def _more_inputs(evidence: ControllerEvidence) -> Found:
    """Judge whether the input bits that are enough for the largest network fail in the smallest."""
    tests, said = [], []
    for found in evidence.routes:
        inputs: dict[tuple[int, int], dict[int, Games]] = {}
        for cell, games in found.cells.items():
            if cell.outputs == MOST:
                inputs.setdefault((cell.width, cell.core), {})[cell.inputs] = games
        several = sorted(key for key, each in inputs.items() if len(each) > 1)
        if not found.floats or not several:
            continue
        floats, parity = found.widest_floats, TASKS[task_of(found)].parity
        large = several[-1]
        # Of the others the smallest that is at parity with some input bits: one that never is fails
        # for want of capacity.
        fair = [
            key
            for key in several[:-1]
            if key[1] <= large[1] and any(has_parity(each, found) for each in inputs[key].values())
        ]
        enough = [bits for bits, games in inputs[large].items() if has_parity(games, found)]
        if not fair or not enough or min(enough) not in inputs[fair[0]]:
            continue
        bits = min(enough)
        pairs = [[matched(inputs[key][bits], floats)] for key in (large, fair[0])]
        tests.append(ratio_test(pairs[0], parity, "above"))
        tests.append(ratio_test(pairs[1], parity, "below"))
        shown = ", ".join(
            f"core {core} and width {width} {ratio_words(pair)}"
            for (width, core), pair in zip((large, fair[0]), pairs, strict=True)
        )
        said.append(f"{found.route}, input {bits}: {shown}, bound {parity:.2f}")
    return found_by_every(tests, said, "qpd sweep with quantize.input_bits at two cores or widths")


def _learning(evidence: ControllerEvidence) -> Found:
    """Judge whether the cell that the paper selects learns as fast: its mean return in training."""
    tests, said = [], []
    for found in evidence.routes:
        task = TASKS[task_of(found)]
        few = found.learning.get(task.chosen)
        floats = found.learning.get(max(found.floats, default=0))
        # A number for each training, as the returns along one curve are no independent games; one
        # training has no interval.
        if few and floats and min(len(few), len(floats)) > 1:
            pair = [matched(few, floats)]
            tests.append(ratio_test(pair, task.parity, "above"))
            said.append(
                f"{found.route}, {cell_words(task.chosen)}: mean return over training "
                f"{ratio_words(pair)} of the float's, bound {task.parity:.2f}; {len(few)} and "
                f"{len(floats)} seeds"
            )
    return found_by_every(tests, said, "trainings of the paper's choices and float twins")


def _robust(evidence: ControllerEvidence) -> Found:
    """Judge whether controllers are at parity with the float at every task's noise together.

    Of two that saw unlike noise nothing is judged.
    """
    tests, said = [], []
    for played, its, pairs in noisy_pairs(evidence.noisy):
        task = TASKS.get(played.env_id.removesuffix("-v4"))
        if task is not None:
            estimate, ratio = ratio_over_noise(pairs), "no ratio"
            if estimate is not None:
                low, high = estimate.interval()
                ratio = f"{estimate.value:.2f} [{low:.2f}, {high:.2f}]"
            ratio += f" at {len(pairs)} levels of noise, bound {task.parity:.2f}"
            units = ", noise in units of each one's own play, not judged"
            if played.has_noise_of(its):
                test = claim_test(estimate, task.parity, "above")
                if min(len(np.unique(games)) for pair in pairs for games in pair) < MIN_EPISODES:
                    test = ClaimTest(1.0, 1.0)
                tests.append(replace(test, of_one_training=True))
                units = ""
            said.append(f"{played.env_id}, {played} beside {its}: {ratio}{units}")
    if said and not tests:
        return Found("; ".join(said))
    return found_by_every(
        tests, said, "--noise: qpd evaluate RUN --policy P --noise 0,0.1,0.5 --json"
    )


def _fits(evidence: ControllerEvidence) -> Found:
    """Judge whether cores of smaller controllers than the largest were built for the part.

    It is a claim on all of the paper's tasks: fewer cores that fit do not show it.
    """
    cores = [each for each in evidence.cores if each.cell != _LARGEST]
    if not cores:
        return Found(f"qpd fpga RUN --device {PART}")
    fits = [each.fits for each in cores]
    tasks = {each.env_id.removesuffix("-v4") for each in cores} & TASKS.keys()
    is_shown = None not in fits and len(tasks) == len(TASKS)
    verdict = Verdict.held if is_shown else Verdict.undecided
    said = [f"built for {len(tasks)} of {len(TASKS)} tasks", *map(str, cores), "no test"]
    return Found("; ".join(said), verdict=Verdict.failed if False in fits else verdict)


def _too_large(evidence: ControllerEvidence) -> Found:
    """Judge whether the largest controller does not fit the part, at any folding."""
    cores = [each for each in evidence.cores if each.cell == _LARGEST]
    fits = [each.fits for each in cores]
    if True not in fits and None not in fits:  # one that does not fit leaves no file
        return Found(f"qpd fpga RUN --device {PART} of such a run, which says so or builds it")
    verdict = Verdict.failed if True in fits else Verdict.undecided
    return Found("; ".join([*map(str, cores), "no test"]), verdict=verdict)


CLAIMS: list[tuple[str, Callable[[ControllerEvidence], Found]]] = [
    ("SAC in so many bits everywhere is at parity down to 3, on HalfCheetah to 5",
     _all_bits),
    ("2 bits of the core suffice on Ant, Hopper and Walker2d, 3 on HalfCheetah and Humanoid",
     _at_parity(lambda task: 2 if task in _TWO_BITS else 3)),
    ("where all in few bits fails, the input is the bottleneck", _bottleneck),
    ("output bits matter at 2 only", _outputs),
    ("HalfCheetah is limited by capacity: return falls with core bits and width", _capacity),
    ("DDPG: lower returns, mostly at parity", judge_ddpg),
    ("normalization helps fp32 SAC and quantized DDPG, and hurts fp32 DDPG", judge_normalization),
    ("a core of 3 bits is always at parity", _at_parity(lambda _: 3)),
    ("with core and width reduced more input bits are needed", _more_inputs),
    ("selected policies learn as fast as fp32", _learning),
    ("under noise they equal or beat fp32", _robust),
    ("all selected policies fit an XC7A15T", _fits),
    ("8-8-8 bits at width 256 do not fit", _too_large),
]  # fmt: skip
