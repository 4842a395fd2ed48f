"""Claims of the paper on integer controllers: parity by task, capacity, cores; what is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import qpd
from qpd.analysis.paper.controller_evidence import BuiltCore, ControllerEvidence
from qpd.analysis.paper.integer_controllers import judge
from qpd.analysis.paper.judged_claims import JudgedClaim
from qpd.analysis.paper.published_controllers import TASKS
from qpd.analysis.paper.verdict import Verdict
from qpd.analysis.selection.measured_cells import MeasuredCells, Route, cell_of, measured_routes
from qpd.analysis.selection.rule import RULES, Cell, choose
from qpd.analysis.selection.table import selection_tables, selections
from qpd.integer.action_codes import OutputGrid
from qpd.runs.run_directory import RunDirectoryError
from qpd.student_files.quantized import load_integer_student
from tests.analysis.continuous_run import continuous_run
from tests.analysis.made_up_runs import REFERENCE
from tests.analysis.paper.made_up_controllers import choices, games, measured, trained
from tests.command_line import call


def test_parity_is_judged_by_task_and_capacity_on_halfcheetah() -> None:
    routes = [
        measured("Hopper-v4", {Cell(8, 256, 8): 2700, Cell(2, 256, 8): 2600}, 2700),
        measured(
            "HalfCheetah-v4",
            {Cell(8, 256, 8): 11000, Cell(3, 256, 8): 7000, Cell(3, 16, 8): 4000}, 11000,
        ),
    ]  # fmt: skip
    claims = {claim.number: claim for claim in judge(ControllerEvidence(routes))}
    # 2 bits on Hopper pass its 0.74; 3 on HalfCheetah are at 0.64, below its 0.89: not every task.
    assert claims[2].verdict == Verdict.failed and "2 of 5 tasks" in claims[2].evidence
    assert "bound 0.74" in claims[2].evidence and "bound 0.89" in claims[2].evidence
    assert claims[5].verdict == Verdict.held and "core 3 against 8: 0.64" in claims[5].evidence
    assert claims[8].verdict == Verdict.failed and "1 of 5 tasks" in claims[8].evidence
    assert {number for number, claim in claims.items() if claim.p is not None} == {2, 5, 8}
    wide = {Cell(8, 256, 8): 11000.0, Cell(3, 256, 8): 7000.0}
    half = judge(ControllerEvidence([measured("HalfCheetah-v4", wide, 11000)]))[4]
    assert half.verdict == Verdict.unmeasured and half.evidence.endswith("not measured: widths")
    alone = {claim.number: claim for claim in judge(ControllerEvidence(routes[:1]))}
    # A claim on all tasks is not shown by one.
    assert alone[2].verdict == Verdict.undecided and alone[5].verdict == Verdict.unmeasured
    assert all(alone[number].evidence for number in range(1, 14))


def test_parity_of_negative_returns_is_below_them() -> None:
    found = measured("Hopper-v4", {Cell(8, 256, 8): -300, Cell(3, 256, 8): -350}, -300)
    found.cells[Cell(2, 256, 8)] = games(-600)
    # 0.74 of the magnitude: down to -378.
    assert choices(ControllerEvidence([found]))[-1][1] == "3, 256, 8"


def test_a_cell_is_at_parity_with_the_floats_of_its_seeds() -> None:
    found = measured("HalfCheetah-v4", {Cell(8, 256, 8): 11000, Cell(3, 256, 8): 7000}, 11000)
    found.floats[256] |= {9: games(2000, 1)[0]}  # a poor one, of which nothing was made
    assert choices(ControllerEvidence([found]))[-1][1] == "8, 256, 8"


def test_a_selections_ratio_is_of_the_seeds_that_both_have() -> None:
    found = measured("Hopper-v4", {Cell(8, 256, 8): 2700}, 2700)
    found.floats[256] |= {9: games(100, 1)[0]}  # of which nothing was made
    cells, _ = selections(found, 0.9)
    assert set(cells["ratio"].round(3)) == {1.0}


def test_selections_and_claims_agree_on_what_is_at_parity() -> None:
    found = measured("Hopper-v4", {Cell(8, 256, 8): 2700}, 2700)
    found.floats[256] |= {9: games(9000, 1)[0]}  # a good one, of which nothing was made
    cells, table = selections(found, 0.95)
    assert cells["at_parity"].all() and set(cells["ratio"].round(3)) == {1.0}
    # The edge is that of the floats it was compared with, and not that of the title.
    shown = selection_tables(found, 0.95, cells, table)[0]
    assert all(row[-1].startswith("yes, from 25") for row in shown.rows)
    assert choices(ControllerEvidence([found]))[-1][1] == "8, 256, 8"


def test_seeds_are_compared_with_themselves() -> None:
    spread = np.linspace(-0.01, 0.01, 40)
    means = {seed: 1000.0 * (seed + 1) for seed in range(5)}
    routes = []
    for task in TASKS:
        found = MeasuredCells(Route(f"{task}-v4"))
        found.floats[256] = {seed: mean * (1 + spread) for seed, mean in means.items()}
        cells = {seed: 0.95 * mean * (1 + spread) for seed, mean in means.items()}
        found.cells |= {Cell(bits, 256, 8): cells for bits in (2, 3)}
        routes.append(found)
    # Floats differ fivefold by seed, and each cell has 0.95 of its own: above all bounds for sure.
    (claim,) = (claim for claim in judge(ControllerEvidence(routes)) if claim.number == 2)
    assert claim.verdict == Verdict.held and claim.evidence.count("0.95 [0.9") == 5
    assert not claim.of_one_training


def test_one_training_is_told_and_one_game_decides_nothing() -> None:
    cells = {Cell(2, 256, 8): 1600.0}
    few = measured("Hopper-v4", cells, 2700)
    few.cells[Cell(2, 256, 8)], few.floats[256] = games(1600, 1), games(2700, 1)
    by_number = {claim.number: claim for claim in judge(ControllerEvidence([few]))}
    assert by_number[2].verdict_words == "did not hold, one training"
    few.cells[Cell(2, 256, 8)] = {0: np.array([1600.0])}
    few.floats[256] = {0: np.array([2700.0])}
    by_number = {claim.number: claim for claim in judge(ControllerEvidence([few]))}
    assert by_number[2].verdict == Verdict.undecided and by_number[2].p == 1.0


def test_half_of_a_claim_is_not_the_claim() -> None:
    cells = {Cell(8, 256, 8): 11000.0, Cell(8, 64, 8): 5000.0}
    found = measured("HalfCheetah-v4", cells, 11000)
    found.cells[Cell(8, 256, 8, 3)] = games(11000)
    by_number = {claim.number: claim for claim in judge(ControllerEvidence([found]))}
    for number, missing in ((4, "outputs of 2 bits"), (5, "core bits")):
        claim = by_number[number]
        assert claim.verdict == Verdict.unmeasured, claim
        assert claim.evidence.endswith(f"not measured: {missing}")


def test_a_wide_float_does_not_make_narrow_cells_the_widest() -> None:
    narrow = measured("Hopper-v4", {Cell(2, 16, 8): 500}, 2700)
    claims = {claim.number: claim for claim in judge(ControllerEvidence([narrow]))}
    assert claims[2].verdict == Verdict.unmeasured


def test_scopes_are_judged_by_what_is_in_few_bits() -> None:
    # Hopper's parity is 0.74: all in 3 bits are at 0.96 of the float, all in 2 below.
    cells = {
        Cell(8, 256, 8): 2700, Cell(3, 256, 8): 2650, Cell(2, 256, 8): 2600,
        Cell(8, 256, 2): 1000, Cell(8, 256, 3): 2600, Cell(8, 64, 2): 100,
    }  # fmt: skip
    found = measured("Hopper-v4", cells, 2700)
    few = {(8, 8, 3): 2600, (8, 8, 2): 1500, (3, 3, 3): 2600, (2, 2, 2): 500}
    for (core, inputs, output), mean in few.items():
        found.cells[Cell(core, 256, inputs, output)] = games(mean)
    claims = {claim.number: claim for claim in judge(ControllerEvidence([found]))}
    assert claims[1].verdict == Verdict.held and "3 bits 0.96" in claims[1].evidence
    assert "2 bits" not in claims[1].evidence  # of which it says nothing
    assert claims[3].verdict == Verdict.held  # 1000 against 2600, and against 1500
    assert "2 bits, input against core: 0.38" in claims[3].evidence
    assert "2 bits, input against output: 0.67" in claims[3].evidence
    assert claims[4].verdict == Verdict.held and "2 bits: 0.56" in claims[4].evidence
    # 8-8-8 that is below parity itself is one cell in all scopes, which cannot be told apart.
    found.cells[Cell(8, 256, 8)] = games(1800)
    assert judge(ControllerEvidence([found]))[2].verdict == Verdict.held
    found.cells[Cell(8, 256, 8)] = games(2700)
    found.cells[Cell(8, 256, 8, 3)] = games(1500)
    assert judge(ControllerEvidence([found]))[3].verdict == Verdict.failed
    found.cells[Cell(8, 256, 2)] = games(2650)
    assert judge(ControllerEvidence([found]))[2].verdict == Verdict.failed
    # With 3 bits not measured, nothing is said of "down to 3".
    del found.cells[Cell(3, 256, 3, 3)], found.cells[Cell(8, 256, 8, 3)]
    claims = {claim.number: claim for claim in judge(ControllerEvidence([found]))}
    assert claims[1].verdict == claims[4].verdict == Verdict.unmeasured


def test_floats_of_the_same_seeds_are_compared_with() -> None:
    found = measured("Hopper-v4", {Cell(8, 256, 8): 2700, Cell(2, 256, 8): 1}, 2700)
    found.cells[Cell(2, 256, 8)] = {3: np.array([2700.0, 2600.0])}
    found.floats[256] = {0: np.array([9000.0, 9001.0]), 3: np.array([2700.0, 2600.0])}
    (claim,) = [each for each in judge(ControllerEvidence([found])) if each.number == 2]
    assert "1.00 [" in claim.evidence


def test_a_student_with_outputs_of_few_bits_is_no_cell_to_choose(tmp_path: Path) -> None:
    run = continuous_run(tmp_path, quantize={"weight_bits": 8, "action_bits": 3})
    assert qpd.evaluate(run, policy="qat").mean
    (found,) = measured_routes([run])
    (cell,) = found.cells
    assert (cell.core, cell.inputs, cell.outputs) == (8, 8, 3) and str(cell).endswith("output 3")
    # Nor beside one of 8 bits, which it would beat.
    passes = {cell: True, replace(cell, outputs=8): True, replace(cell, core=2): True}
    assert choose(passes, RULES["paper"])[0].cells == (replace(cell, outputs=8),)


def test_outputs_of_trained_controllers_are_those_of_their_grid() -> None:
    folder = REFERENCE / "controllers/trained/hopper-16-2-6-s0"
    student = load_integer_student(folder / "quantized.safetensors")
    assert student.output_grid is not None and cell_of(student) == Cell(2, 16, 6, 8)
    few = replace(student, output_grid=OutputGrid(0.5, 3))
    assert cell_of(few) == Cell(2, 16, 6, 3)


@pytest.mark.parametrize("content", ['{"luts": 12', '{"luts": 12}', "[]"])
def test_a_damaged_record_of_a_core_is_named(content: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(REFERENCE / "controllers/trained/hopper-16-2-6-s0", run)
    file = next(run.glob("exports/*/fpga.json"))
    file.write_text(content)
    with pytest.raises(RunDirectoryError, match="fpga.json: is not what `qpd fpga` writes"):
        ControllerEvidence.of([run])


def test_the_papers_own_numbers() -> None:
    assert TASKS["Hopper"].parity == pytest.approx(0.7376, abs=1e-4)
    assert all(task.means[task.chosen] < task.float_mean for task in TASKS.values())


def test_cores_of_the_papers_part_and_other_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = continuous_run(tmp_path, quantize={"weight_bits": 8})
    assert call(capsys, "evaluate", run, "--policy", "qat")[0] == 0
    code, _, err = call(capsys, "analyze", "paper", run, "--paper", "integer-controllers")
    assert code == 2 and "none of the paper's tasks: Ant-v4, HalfCheetah-v4" in err
    core = {"luts": 10_401, "flip_flops": 1, "block_rams": 1.0, "dsps": 0, "layer_cycles": 9}
    found = measured("Hopper-v4", {Cell(2, 16, 6): 2000}, 2700)
    chosen, largest = Cell(2, 16, 6), Cell(8, 256, 8)

    def claims_of(cell: Cell, luts: int, tasks: Iterable[str] = TASKS) -> list[JudgedClaim]:
        cores = [BuiltCore("run", f"{task}-v4", cell, core | {"luts": luts}) for task in tasks]
        return judge(ControllerEvidence([found], cores))

    claims = claims_of(chosen, 10_401)
    assert claims[11].verdict == Verdict.failed and "10,401 LUTs" in claims[11].evidence
    # Nine tenths of 10,400: what is fuller may not be routed.
    assert claims_of(chosen, 9_360)[11].verdict == Verdict.held
    assert claims_of(chosen, 9_361)[11].verdict == Verdict.undecided
    # Five cores of one task show nothing of the other four.
    assert claims_of(chosen, 9_360, ["Hopper"] * 5)[11].verdict == Verdict.undecided
    # The paper's largest controller does not fit in its hands.
    assert claims_of(largest, 10_401)[12].verdict == Verdict.unmeasured
    assert claims_of(largest, 10_400)[12].verdict == Verdict.undecided
    claims = claims_of(largest, 9_360)
    assert claims[12].verdict == Verdict.failed and claims[11].verdict == Verdict.unmeasured


def verdicts(routes: list[MeasuredCells]) -> dict[int, JudgedClaim]:
    usual = [each for each in routes if each.route.is_usual]
    others = [each for each in routes if not each.route.is_usual]
    return {each.number: each for each in judge(ControllerEvidence(usual, [], (), others))}


def test_claims_on_sac_are_judged_by_sac_alone() -> None:
    assert Route("Hopper-v4", None, "sac", 50, True).is_usual
    for algo in ("td3", "ddpg"):
        assert not Route("Hopper-v4", None, algo, 50, True).is_usual
        assert Route("Hopper-v4", "a teacher's", algo).is_usual  # its student


def curves(end: float, seeds: int) -> dict[int, np.ndarray]:
    """Curves that rise to `end` over the first half of 1,000 steps, a little apart by seed."""
    steps = np.array([0.0, 500.0, 1000.0])
    return {
        seed: np.stack([steps, np.array([0.0, end + seed, end + seed])]) for seed in range(seeds)
    }


def test_how_fast_one_training_learns_decides_nothing() -> None:
    chosen = Cell(2, 16, 6)
    for seeds, measured_at_all in ((1, False), (2, True)):
        found = MeasuredCells(Route("Hopper-v4", None, "sac", 50, True))
        found.curves = {chosen: curves(2000.0, seeds), 256: curves(2100.0, seeds)}
        found.floats[256] = games(2100.0, seeds)
        claim = verdicts([found])[10]
        assert (claim.verdict is not Verdict.unmeasured) == measured_at_all


def test_ddpg_is_judged_by_its_own_float_without_normalization_and_by_sacs() -> None:
    # The last two drop in the paper as well, so that they are no exceptions to "mostly".
    cells = {Cell(3, 256, 8): 4000, Cell(2, 256, 8): 100, Cell(8, 256, 3): 100}
    normalized = trained("ddpg", True, cells, 3000)
    plain, sac = trained("ddpg", False, {}, 4000), trained("sac", True, {}, 6000)
    claim = verdicts([normalized, plain, sac])[6]
    assert claim.verdict == Verdict.held and "bits of core 3: 1.00 [" in claim.evidence
    assert "bound 0.89, SAC's" in claim.evidence
    assert "its float of width 256 against SAC's: 0.67" in claim.evidence
    alone = verdicts([normalized, plain])[6]  # half of the claim
    assert alone.verdict == Verdict.unmeasured and "1.00 [" in alone.evidence
    assert "not measured: float DDPG beside float SAC" in alone.evidence
    # Another budget is another comparison, and a normalized float is not the paper's.
    other = trained("sac", True, {}, 6000, steps=51)
    assert "against SAC" not in verdicts([normalized, plain, other])[6].evidence
    assert verdicts([normalized, sac])[6].evidence.startswith("qpd train ddpg")
    normalized.cells[Cell(3, 256, 8)] = games(2000)
    assert verdicts([normalized, plain, sac])[6].verdict == Verdict.failed


def test_normalization_is_judged_where_all_its_parts_were_measured() -> None:
    core = Cell(3, 256, 8)
    routes = [
        trained("ddpg", True, {core: 4000}, 3000), trained("ddpg", False, {core: 2000}, 4000),
        trained("sac", True, {}, 5000), trained("sac", False, {}, 6000),
    ]  # fmt: skip
    claims = verdicts(routes)
    assert claims[7].verdict == Verdict.held and "float of width 256: 0.75 [" in claims[7].evidence
    assert "3, 256, 8: 2.00 [" in claims[7].evidence and "0.83 [" in claims[7].evidence
    assert claims[2].verdict == claims[8].verdict == Verdict.unmeasured  # those are of SAC
    part = verdicts(routes[:2])[7]
    assert part.verdict == Verdict.unmeasured and "not measured: float SAC" in part.evidence
    routes[1].floats[256] = games(2000)
    assert verdicts(routes)[7].verdict == Verdict.failed


def test_input_bits_of_the_largest_network_are_tried_in_the_smallest() -> None:
    cells = {
        Cell(8, 256, 8): 2700, Cell(8, 256, 3): 2600, Cell(8, 256, 2): 1000,
        Cell(2, 128, 8): 2700, Cell(2, 128, 3): 1500,
        Cell(2, 8, 8): 100, Cell(2, 8, 3): 100,  # for want of capacity, not of input bits
    }  # fmt: skip
    found = measured("Hopper-v4", cells, 2700)  # parity is 0.74
    claim = judge(ControllerEvidence([found]))[8]
    assert claim.verdict == Verdict.held and "input 3: core 8 and width 256 0.96" in claim.evidence
    assert "core 2 and width 128 0.56" in claim.evidence
    found.cells[Cell(2, 128, 3)] = games(2650)
    assert judge(ControllerEvidence([found]))[8].verdict == Verdict.failed
    # 2 bits are enough for the largest, and nobody knows for the other.
    found.cells[Cell(8, 256, 2)] = games(2650)
    assert judge(ControllerEvidence([found]))[8].verdict == Verdict.unmeasured
    # A wider one with fewer bits is not smaller than a narrow one with more.
    found = measured("Hopper-v4", {}, 2700)
    for core, width in ((2, 256), (3, 16)):
        found.cells[Cell(core, width, 8)] = found.cells[Cell(core, width, 3)] = games(2700)
    assert judge(ControllerEvidence([found]))[8].verdict == Verdict.unmeasured


def test_trainings_by_another_algorithm_are_another_route() -> None:
    folder = Path("runs-reference/controllers/trained")
    (route,) = measured_routes([folder / "hopper-16-2-6-s0", folder / "hopper-twin-256-s0"])
    assert str(route.route) == "Hopper-v4, trained (SAC, 120,000 steps)"
