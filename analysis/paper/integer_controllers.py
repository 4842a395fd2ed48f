"""The 13 claims of Kresse & Lampert (arXiv 2511.07046), judged by controllers of ours.

Trained ones and students of one teacher are judged apart from each other and from other tasks, as
ratios to the float policy of their own route. Parity is the paper's: on each task the share of the
float's return that its own criterion, one deviation over seeds, allowed there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qpd.analysis.paper.judged_claims import Found, JudgedClaim, judge_claims
from qpd.analysis.paper.published_controllers import BITS, MOST, TASKS, WIDTHS
from qpd.analysis.paper.verdict import (
    ClaimTest,
    Side,
    Verdict,
    claim_test_of_every,
    claim_test_of_mean,
    mean_of_ratios,
)
from qpd.analysis.returns.mean_bootstrap import ScorePair
from qpd.analysis.returns.return_rows import ShownTable
from qpd.analysis.runs.run_frame import find_runs
from qpd.analysis.selection.figure import Curve, curve_of, steps_figure
from qpd.analysis.selection.measured_cells import (
    Games,
    MeasuredCells,
    Route,
    cell_of,
    matched,
    measured_routes,
)
from qpd.analysis.selection.robustness import NoisyGames, noisy_pairs
from qpd.analysis.selection.rule import RULES, STEPS, Cell, choose
from qpd.analysis.selection.scopes import SCOPES, scope_cells
from qpd.analysis.selection.table import selections
from qpd.errors.codes import ErrorCode
from qpd.files.json_input import read_json
from qpd.fpga.devices import DEVICES
from qpd.runs.run_directory import RunDirectoryError
from qpd.student_files.quantized import load_integer_student

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PART = "xc7a15t"  # the paper's
_LARGEST = Cell(8, 256, MOST)
_TWO_BITS = ("Ant", "Hopper", "Walker2d")


@dataclass(frozen=True)
class BuiltCore:
    """A run's core on the paper's part: its folder's name, its bits and width, its fpga.json."""

    name: str
    cell: Cell | None
    measured: dict[str, Any]

    @property
    def fits(self) -> bool:
        """Tell whether the part holds it."""
        keys = ("luts", "flip_flops", "block_rams", "dsps")
        return DEVICES[_PART].fits(*(self.measured[key] for key in keys))

    def __str__(self) -> str:
        """Return what was measured in words."""
        its = self.measured
        return f"{self.name}: {its['luts']:,} LUTs, {its['layer_cycles']:,} cycles of the layers"


@dataclass(frozen=True)
class ControllerEvidence:
    """Hold what was measured of each route on the paper's tasks, of cores and of noisy games.

    `others` are trainings by DDPG, or without VecNormalize.
    """

    routes: list[MeasuredCells]
    cores: list[BuiltCore] = field(default_factory=list)
    noisy: Sequence[NoisyGames] = ()
    others: list[MeasuredCells] = field(default_factory=list)

    @classmethod
    def of(cls, paths: Sequence[Path], noisy: Sequence[NoisyGames] = ()) -> ControllerEvidence:
        """Read the runs in `paths`, and take games under noise.

        Raises what `measured_routes` does, and RunDirectoryError for other tasks.
        """
        routes = [each for each in measured_routes(paths) if task_of(each) in TASKS]
        if not routes:
            raise RunDirectoryError(
                [f"none of the paper's tasks: {', '.join(f'{name}-v4' for name in TASKS)}"],
                ErrorCode.NOTHING_MEASURED,
            )
        cores = []
        for path in find_runs(paths):
            file = path / "exports" / _PART / "fpga.json"
            if file.is_file():
                cell = cell_of(load_integer_student(path / "quantized.safetensors"))
                known = cell if isinstance(cell, Cell) else None
                cores.append(BuiltCore(path.name, known, read_json(file)))
        usual = [each for each in routes if each.route.is_of_sac]
        return cls(usual, cores, noisy, [each for each in routes if each not in usual])


def task_of(found: MeasuredCells) -> str:
    """Return the paper's name of a task, `Hopper` of Hopper-v4; -v5 ones are other tasks."""
    name, _, version = found.route.env_id.rpartition("-")
    return name if version == "v4" else found.route.env_id


def judge(evidence: ControllerEvidence) -> list[JudgedClaim]:
    """Return all claims with their verdicts."""
    return judge_claims(CLAIMS, evidence)


def choices_table(evidence: ControllerEvidence) -> ShownTable:
    """Return Table 1: the paper's choices, what both rules choose of its returns, and of ours."""
    rows = []
    for name, task in TASKS.items():
        passes = {cell: mean >= task.edge for cell, mean in task.means.items()}
        strict = choose(passes, RULES["monotone"])[-1].chosen
        rows.append([f"{name}-v4, the paper", _said(task.chosen), _said(strict), "10"])
    for found in evidence.routes:
        if found.floats and found.cells:
            edge = TASKS[task_of(found)].parity * _mean(found.widest_floats)
            passes = {cell: _mean(games) >= edge for cell, games in found.cells.items()}
            chosen = [choose(passes, rule)[-1].chosen for rule in RULES.values()]
            fewest = min(len(games) for games in found.cells.values())
            rows.append([str(found.route), *map(_said, chosen), str(fewest)])
    header = ["task", "core, width, input", "if all larger pass, too", "seeds"]
    return ShownTable("Chosen, with the paper's parity on each task", header, rows)


def figure(evidence: ControllerEvidence) -> Figure:
    """Draw every route's steps, and the paper's of the same tasks, as shares of the float's return.

    The paper plots them in its Figures 1, 4 and 5.
    """
    curves = []
    for found in evidence.routes:
        task = TASKS[task_of(found)]
        if found.cells and found.floats:
            # The share stands for the paper's parity; several seeds are not needed for it.
            curves.append(curve_of(str(found.route), selections(found, task.parity)[0]))
    for name in dict.fromkeys(task_of(found) for found in evidence.routes):
        curves.append(_published(name))
    return steps_figure(curves)


def _published(name: str) -> Curve:
    task = TASKS[name]
    shares = [
        [mean / task.float_mean for mean in means]
        for means in (task.cores, task.widths, task.inputs)
    ]
    values = (BITS, WIDTHS, BITS)
    steps = {
        step: [(value, share, np.nan, np.nan) for value, share in zip(each, share_of, strict=True)]
        for step, each, share_of in zip(STEPS, values, shares, strict=True)
    }
    return Curve(f"{name}-v4, the paper", steps, is_published=True)


def _said(cell: Cell | None) -> str:
    return "none at parity" if cell is None else f"{cell.core}, {cell.width}, {cell.inputs}"


def _mean(games: Games) -> float:
    return float(np.mean([each.mean() for each in games.values()]))


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
            tests.append(claim_test_of_mean(pair, task.parity, "above"))
            ratio = f"{_ratio(pair)}, bound {task.parity:.2f}"
            said.append(f"{found.route}, {core(task_of(found))} bits: {ratio}")
            tasks.add(task_of(found))
        if tasks:
            said.insert(0, f"{len(tasks)} of {len(TASKS)} tasks")
        return _every(tests, said, "qpd sweep recipes/controllers-grid.yaml")

    return find


def _parities(
    evidence: ControllerEvidence, scope: str, fewest: Callable[[str], int]
) -> tuple[list[ClaimTest], list[str]]:
    """Test whether all of a scope's cells with at least `fewest(task)` bits are at parity.

    Of routes where so few were measured.
    """
    tests, said = [], []
    for found in evidence.routes:
        task, shown, cells = TASKS[task_of(found)], [], scope_cells(found, scope)
        least = fewest(task_of(found))
        if not found.floats or least not in cells:
            continue
        for bits, games in sorted(cells.items(), reverse=True):
            if MOST > bits >= least:
                pair = [matched(games, found.widest_floats)]
                tests.append(claim_test_of_mean(pair, task.parity, "above"))
                shown.append(f"{bits} bits {_ratio(pair)}")
        if shown:
            said.append(f"{found.route}: {', '.join(shown)}, bound {task.parity:.2f}")
    return tests, said


def _all_bits(evidence: ControllerEvidence) -> Found:
    """Judge whether so many bits everywhere are at parity."""
    tests, said = _parities(evidence, "all", lambda task: 5 if task == "HalfCheetah" else 3)
    return _every(tests, said, "qpd train sac TASK --bits all=N")


def _bottleneck(evidence: ControllerEvidence) -> Found:
    """Judge whether few input bits alone lose more than a few core or output bits alone do.

    Of bits with which all together are below parity.
    """
    tests, said = [], []
    for found in evidence.routes:
        scopes = {scope: scope_cells(found, scope) for scope in SCOPES}
        if not found.floats:
            continue
        edge = TASKS[task_of(found)].parity
        for bits, games in sorted(scopes["all"].items(), reverse=True):
            alone = [scopes[scope].get(bits) for scope in ("input", "core", "output")]
            few, its = matched(games, found.widest_floats)
            if few.mean() >= edge * its.mean() or None in alone:
                continue
            own, *others = alone
            for name, other in zip(("core", "output"), others, strict=True):
                pair = [matched(own, other)]  # type: ignore[arg-type]
                tests.append(claim_test_of_mean(pair, 1.0, "below"))
                said.append(f"{found.route}, {bits} bits, input against {name}: {_ratio(pair)}")
    return _every(tests, said, "qpd train sac TASK --bits all=N, input=N, core=N and output=N")


def _outputs(evidence: ControllerEvidence) -> Found:
    """Judge whether outputs of 3 bits and more are at parity, and those of 2 bits are not."""
    tests, said = _parities(evidence, "output", lambda _: 3)
    if not tests:
        return Found("qpd train sac TASK --bits output=N")
    for found in evidence.routes:
        games = scope_cells(found, "output").get(2)
        if games is not None and found.floats and 3 in scope_cells(found, "output"):
            task = TASKS[task_of(found)]
            pair = [matched(games, found.widest_floats)]
            tests.append(claim_test_of_mean(pair, task.parity, "below"))
            said.append(f"{found.route}, 2 bits: {_ratio(pair)}")
    return _every(tests, said, "")


def _capacity(evidence: ControllerEvidence) -> Found:
    """Judge whether HalfCheetah's return falls with the core's bits and with the width."""
    tests, said = [], []
    for found in evidence.routes:
        by_core = scope_cells(found, "core")
        if task_of(found) != "HalfCheetah" or not by_core:
            continue
        few, many = min(by_core), max(by_core)
        narrow: dict[int, dict[int, Games]] = {}
        for cell, games in found.cells.items():
            if cell.inputs == cell.outputs == MOST:
                narrow.setdefault(cell.core, {})[cell.width] = games
        if few < many:
            pair = [matched(by_core[few], by_core[many])]
            tests.append(claim_test_of_mean(pair, 1.0, "below"))
            said.append(f"{found.route}, core {few} against {many}: {_ratio(pair)}")
        core, widths = max(narrow.items(), key=lambda item: len(item[1]))
        if len(widths) > 1:
            pair = [matched(widths[min(widths)], widths[max(widths)])]
            tests.append(claim_test_of_mean(pair, 1.0, "below"))
            said.append(f"core {core}, width {min(widths)} against {max(widths)}: {_ratio(pair)}")
    return _every(tests, said, "HalfCheetah-v4: cells of several cores and widths")


def _more_inputs(evidence: ControllerEvidence) -> Found:
    """Judge whether the input bits that the largest network needs fail in the smallest."""
    tests, said = [], []
    for found in evidence.routes:
        inputs: dict[tuple[int, int], dict[int, Games]] = {}
        for cell, games in found.cells.items():
            if cell.outputs == MOST:
                inputs.setdefault((cell.core, cell.width), {})[cell.inputs] = games
        several = sorted(key for key, each in inputs.items() if len(each) > 1)
        if not found.floats or len(several) < 2:
            continue
        small, large = several[0], several[-1]
        floats, parity = found.widest_floats, TASKS[task_of(found)].parity
        edge = parity * _mean(floats)
        enough = [bits for bits, games in inputs[large].items() if _mean(games) >= edge]
        shared = [bits for bits in enough if bits in inputs[small]]
        if not shared:
            continue
        bits = min(shared)
        pairs = [[matched(inputs[key][bits], floats)] for key in (large, small)]
        tests.append(claim_test_of_mean(pairs[0], parity, "above"))
        tests.append(claim_test_of_mean(pairs[1], parity, "below"))
        shown = ", ".join(
            f"core {core} and width {width} {_ratio(pair)}"
            for (core, width), pair in zip((large, small), pairs, strict=True)
        )
        said.append(f"{found.route}, input {bits}: {shown}, bound {parity:.2f}")
    return _every(tests, said, "qpd sweep with quantize.input_bits at two cores or widths")


def _ddpg(evidence: ControllerEvidence) -> Found:
    """Judge whether DDPG's cells are at parity with its float, which has less than SAC's."""
    tests, said = [], []
    for found in evidence.others:
        route, task = found.route, TASKS[task_of(found)]
        if route.algo != "ddpg" or not route.normalizes:
            continue
        # The paper's float DDPG sees observations as they are.
        floats = _widest(_twin(evidence, route, normalizes=False)) or _widest(found)
        for cell, games in sorted(found.cells.items()) if floats else ():
            pair = [matched(games, floats)]
            tests.append(claim_test_of_mean(pair, task.parity, "above"))
            said.append(f"{route}, {_said(cell)}: {_ratio(pair)}, bound {task.parity:.2f}")
        if floats and (best := _widest(_twin(evidence, route, algo="sac"))):
            pair = [matched(floats, best)]
            tests.append(claim_test_of_mean(pair, 1.0, "below"))
            said.append(f"float DDPG against SAC: {_ratio(pair)}")
    return _every(tests, said, "qpd train ddpg TASK --bits core=N")


def _normalization(evidence: ControllerEvidence) -> Found:
    """Judge what VecNormalize does to floats of SAC and DDPG, and to DDPG's cells."""
    tests, said = [], []
    for found in [*evidence.routes, *evidence.others]:
        route, plain = found.route, _twin(evidence, found.route, normalizes=False)
        if plain is None or not route.normalizes or route.algo not in ("sac", "ddpg"):
            continue
        is_sac = route.algo == "sac"
        sides: list[tuple[str, Games, Games, Side]] = []
        if not is_sac or task_of(found) != "HalfCheetah":  # where the paper saw no help
            side: Side = "above" if is_sac else "below"
            sides.append(("float", _widest(found), _widest(plain), side))
        if not is_sac:
            sides += [
                (_said(cell), games, plain.cells[cell], "above")
                for cell, games in sorted(found.cells.items())
                if cell in plain.cells
            ]
        for name, games, others, side in sides:
            if games and others:
                pair = [matched(games, others)]
                tests.append(claim_test_of_mean(pair, 1.0, side))
                said.append(f"{route}, {name}: {_ratio(pair)} of the same without")
    by = "qpd train ALGO TASK --bits core=8 --quant-delay 1 --set normalize=false"
    return _every(tests, said, by)


def _twin(evidence: ControllerEvidence, route: Route, **changes: Any) -> MeasuredCells | None:
    """Return what was measured of a route that differs in `changes` alone."""
    wanted = replace(route, **changes)
    found = (each for each in [*evidence.routes, *evidence.others] if each.route == wanted)
    return next(found, None)


def _widest(found: MeasuredCells | None) -> Games:
    return found.widest_floats if found is not None and found.floats else {}


def _learning(evidence: ControllerEvidence) -> Found:
    """Judge whether the cell that the paper selects learns as fast: its mean return in training."""
    tests, said = [], []
    for found in evidence.routes:
        task = TASKS[task_of(found)]
        few = found.learning.get(task.chosen)
        floats = found.learning.get(max(found.floats, default=0))
        if few and floats:
            # A number for each training: the returns along one curve are no independent games.
            pair = [matched(few, floats)]
            tests.append(claim_test_of_mean(pair, task.parity, "above"))
            said.append(
                f"{found.route}, {_said(task.chosen)}: mean return over training {_ratio(pair)} of "
                f"the float's, bound {task.parity:.2f}; {len(few)} and {len(floats)} seeds"
            )
    return _every(tests, said, "trainings of the paper's choices and float twins")


def _robust(evidence: ControllerEvidence) -> Found:
    """Judge whether controllers are at parity with the float at every task's noise together."""
    tests, said = [], []
    for played, pairs in noisy_pairs(evidence.noisy):
        task = TASKS.get(played.env_id.removesuffix("-v4"))
        if task is not None:
            tests.append(claim_test_of_mean(pairs, task.parity, "above"))
            ratio = f"{_ratio(pairs)} at {len(pairs)} levels of noise, bound {task.parity:.2f}"
            said.append(f"{played.env_id}, {played}: {ratio}")
    return _every(tests, said, "--noise: qpd evaluate RUN --policy P --noise 0,0.1,0.5 --json")


def _fits(evidence: ControllerEvidence) -> Found:
    """Judge whether cores of smaller controllers than the largest were built for the part."""
    cores = [each for each in evidence.cores if each.cell != _LARGEST]
    if not cores:
        return Found(f"qpd fpga RUN --device {_PART}")
    verdict = Verdict.held if all(each.fits for each in cores) else Verdict.failed
    said = [f"{len(cores)} built", *map(str, cores), "no test"]
    return Found("; ".join(said), verdict=verdict)


def _too_large(evidence: ControllerEvidence) -> Found:
    """Judge whether the largest controller does not fit the part, at any folding."""
    cores = [each for each in evidence.cores if each.cell == _LARGEST]
    if not any(each.fits for each in cores):  # one that does not fit leaves no file
        return Found(f"qpd fpga RUN --device {_PART} of such a run, which says so or builds it")
    return Found("; ".join([*map(str, cores), "no test"]), verdict=Verdict.failed)


def _every(tests: Sequence[ClaimTest], said: Sequence[str], by: str) -> Found:
    return Found("; ".join(said), claim_test_of_every(tests)) if tests else Found(by)


def _ratio(pair: Sequence[ScorePair]) -> str:
    found = mean_of_ratios(pair)
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


CLAIMS: list[tuple[str, Callable[[ControllerEvidence], Found]]] = [
    ("SAC in so many bits everywhere is at parity down to 3, on HalfCheetah to 5",
     _all_bits),
    ("2 bits of the core suffice on Ant, Hopper and Walker2d, 3 on HalfCheetah and Humanoid",
     _at_parity(lambda task: 2 if task in _TWO_BITS else 3)),
    ("where all in few bits fails, the input is the bottleneck", _bottleneck),
    ("output bits matter at 2 only", _outputs),
    ("HalfCheetah is limited by capacity: return falls with core bits and width", _capacity),
    ("DDPG: lower returns, mostly at parity", _ddpg),
    ("normalization helps fp32 SAC and quantized DDPG, and hurts fp32 DDPG", _normalization),
    ("a core of 3 bits is always at parity", _at_parity(lambda _: 3)),
    ("with core and width reduced more input bits are needed", _more_inputs),
    ("selected policies learn as fast as fp32", _learning),
    ("under noise they equal or beat fp32", _robust),
    ("all selected policies fit an XC7A15T", _fits),
    ("8-8-8 bits at width 256 do not fit", _too_large),
]  # fmt: skip
