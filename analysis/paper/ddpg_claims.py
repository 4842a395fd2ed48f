"""Kresse & Lampert's claims on DDPG and on normalization (arXiv 2511.07046, Figures 1 and 6)."""

from __future__ import annotations

from qpd.analysis.paper.controller_evidence import (
    ClaimParts,
    ControllerEvidence,
    cell_words,
    ratio_test,
    ratio_words,
    task_of,
)
from qpd.analysis.paper.judged_claims import Found
from qpd.analysis.paper.published_controllers import TASKS
from qpd.analysis.paper.verdict import Side
from qpd.analysis.selection.measured_cells import matched
from qpd.analysis.selection.scopes import SCOPES, scope_cells


def judge_ddpg(evidence: ControllerEvidence) -> Found:
    """Judge whether DDPG's cells are at parity with its float, and that float below SAC's.

    "Mostly": on average of a task's scopes, without those that the paper says drop.
    """
    parts = ClaimParts(
        "cells beside the float without normalization", "float DDPG beside float SAC"
    )
    for found in evidence.others:
        route, name = found.route, task_of(found)
        # The paper's float DDPG sees observations as they are.
        plain = evidence.twin(route, normalizes=False)
        if route.algo != "ddpg" or not route.normalizes or plain is None:
            continue
        cells = {
            id(games): (f"{scope} {bits}", games)  # once: 8 bits are of every scope
            for scope in SCOPES
            for bits, games in scope_cells(found, scope).items()
            if name != "HalfCheetah" or not _drops_on_halfcheetah(scope, bits)
        }
        width = max((cell.width for cell in found.cells), default=0)
        floats, sac = plain.floats.get(width), evidence.twin(route, algo="sac")
        if cells and floats:
            pairs = [matched(games, floats) for _, games in cells.values()]
            bound, shown = TASKS[name].parity, ", ".join(said for said, _ in cells.values())
            parts.add(0, [ratio_test(pairs, bound, "above")],
                      f"{route}, bits of {shown}: {ratio_words(pairs)} of the float without "
                      f"normalization, bound {bound:.2f}, SAC's")  # fmt: skip
        if floats and sac is not None and width in sac.floats:
            pairs = [matched(floats, sac.floats[width])]
            parts.add(1, [ratio_test(pairs, 1.0, "below")],
                      f"its float of width {width} against SAC's: "
                      f"{ratio_words(pairs)}")  # fmt: skip
    return parts.found("qpd train ddpg TASK --bits core=N")


def _drops_on_halfcheetah(scope: str, bits: int) -> bool:
    return bits == 2 if scope == "core" else scope in ("all", "input") and bits < 5


def judge_normalization(evidence: ControllerEvidence) -> Found:
    """Judge what VecNormalize does to floats of SAC and DDPG, and to DDPG's cells.

    And whether these cells are then at parity with the float that is not normalized.
    """
    parts = ClaimParts(
        "float SAC",
        "float DDPG",
        "DDPG in few bits",
        "DDPG in few bits beside its float without normalization",
    )
    for found in [*evidence.routes, *evidence.others]:
        route, plain = found.route, evidence.twin(found.route, normalizes=False)
        if plain is None or not route.normalizes or route.algo not in ("sac", "ddpg"):
            continue
        shared = max(found.floats.keys() & plain.floats.keys(), default=None)
        is_sac = route.algo == "sac"
        if shared is not None:
            # On HalfCheetah it did not help the paper's SAC.
            helps = is_sac and task_of(found) != "HalfCheetah"
            pair = [matched(found.floats[shared], plain.floats[shared])]
            parts.add(0 if is_sac else 1, [ratio_test(pair, 1.0, _side(helps))],
                      f"{route}, float of width {shared}: {ratio_words(pair)} of the same "
                      "without")  # fmt: skip
        for cell in sorted(found.cells.keys() & plain.cells.keys()) if not is_sac else ():
            pair = [matched(found.cells[cell], plain.cells[cell])]
            parts.add(2, [ratio_test(pair, 1.0, "above")],
                      f"{route}, {cell_words(cell)}: {ratio_words(pair)} of the same "
                      "without")  # fmt: skip
        if route.algo == "ddpg" and shared is not None:  # "which then equals the float"
            bound = TASKS[task_of(found)].parity
            for cell, games in found.cells.items():
                pair = [matched(games, plain.floats[shared])]
                parts.add(3, [ratio_test(pair, bound, "above")],
                          f"{cell_words(cell)}: {ratio_words(pair)} of the float without, bound "
                          f"{bound:.2f}")  # fmt: skip
    return parts.found("qpd train ALGO TASK --bits core=8 --quant-delay 1 --set normalize=false")


def _side(above: bool) -> Side:
    return "above" if above else "below"
