"""The tables and figures of the paper on integer controllers, ours beside the paper's."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from qpd.analysis.figure_style import paper_style
from qpd.analysis.paper.controller_evidence import BuiltCore, ControllerEvidence
from qpd.analysis.paper.controller_figures import (
    ddpg_figure,
    learning_figure,
    selection_figure,
)
from qpd.analysis.paper.controller_tables import shown_tables, tables
from qpd.analysis.paper.integer_controllers import judge
from qpd.analysis.selection.measured_cells import MeasuredCells, Route
from qpd.analysis.selection.rule import Cell
from qpd.analysis.selection.scopes import scopes_figure, with_scopes
from tests.analysis.paper.made_up_controllers import choices, games, measured, trained
from tests.command_line import call


def test_scopes_are_drawn_as_shares_of_the_float() -> None:
    found = measured("Hopper-v4", {Cell(8, 256, 8): 2700, Cell(2, 256, 8): 1350}, 2700)
    assert with_scopes([found]) == []  # core bits alone are in the other figure
    found.cells[Cell(2, 256, 2, 2)] = games(270)
    assert with_scopes([found]) == [found]
    with paper_style():
        (axes,) = scopes_figure([found]).axes
    drawn = {each.get_label(): each[0].get_ydata().round(3).tolist() for each in axes.containers}
    assert drawn == {"all": [0.1, 1.0], "input": [1.0], "core": [0.5, 1.0], "output": [1.0]}
    few = measured("Hopper-v4", {Cell(2, 256, 2, 2): 270, Cell(4, 256, 4, 4): 1350}, 2700)
    with paper_style():
        (axes,) = scopes_figure(with_scopes([few])).axes
    assert [each.get_label() for each in axes.containers] == ["all"]


def test_the_choices_stand_beside_the_papers() -> None:
    found = measured("Walker2d-v4", {Cell(8, 256, 8): 5000, Cell(2, 256, 8): 4000}, 5000)
    rows = choices(ControllerEvidence([found]))
    assert rows[0] == ["Ant-v4, the paper", "2, 64, 3", "2, 64, 7", "10"]
    assert rows[3] == ["Humanoid-v4, the paper", "3, 16, 4", "none at parity", "10"]
    assert rows[-1] == ["Walker2d-v4, trained", "8, 256, 8", "8, 256, 8", "4"]


def test_a_route_without_its_first_step_stops_nothing() -> None:
    whole = measured("Hopper-v4", {Cell(8, 256, 8): 2700, Cell(2, 256, 8): 2600}, 2700)
    parts = measured("Walker2d-v4", {Cell(2, 16, 8): 4000, Cell(2, 256, 6): 4000}, 5000)
    evidence = ControllerEvidence([whole, parts])
    assert choices(evidence)[-1][1:3] == ["its first step is not measured"] * 2
    with paper_style():
        labels = selection_figure(evidence).legends[0].get_texts()
    assert [each.get_text() for each in labels if "paper" not in each.get_text()] == [
        str(whole.route)
    ]


def test_shares_of_the_float_are_drawn_beside_the_papers() -> None:
    cells = {Cell(8, 256, 8): 5000, Cell(2, 256, 8): 4000, Cell(8, 64, 8): 4500}
    with paper_style():
        core, width, inputs = selection_figure(
            ControllerEvidence([measured("Ant-v4", cells, 5000)])
        ).axes
    ours, paper = core.containers[0][0], core.lines[-1]
    assert [round(float(y), 3) for y in ours.get_ydata()] == [0.8, 1.0]
    assert [round(float(y), 3) for y in paper.get_ydata()][-1] == round(5316 / 5089, 3)
    assert len(width.containers) == 1 and len(inputs.containers) == 1
    assert [text.get_text() for text in width.get_xticklabels()] == ["16", "32", "64", "128", "256"]


def test_selected_cells_stand_beside_their_floats_and_the_papers() -> None:
    cells = {Cell(8, 256, 8): 2700, Cell(2, 256, 8): 2600, Cell(2, 16, 6): 1350}
    found = tables(ControllerEvidence([measured("Hopper-v4", cells, 2700)]))["selected"]
    assert found["task"].tolist() == ["Hopper-v4, the paper"] + 2 * ["Hopper-v4, trained"]
    # Ours is the smallest core at 0.74; the paper's choice is shown wherever it was measured.
    assert found["cell"].tolist() == ["2, 16, 6", "2, 256, 8", "2, 16, 6"]
    assert found["ratio"].round(2).tolist() == [0.78, 0.96, 0.5]
    assert found["ratio_low"].isna().tolist() == [True, False, False]
    assert found["seeds"].tolist() == [10, 4, 4] and found["games"].tolist() == [1000, 40, 40]


def test_cores_stand_beside_finns() -> None:
    built = {
        "luts": 1774, "flip_flops": 1495, "block_rams": 2.5, "dsps": 0, "layer_cycles": 8,
        "folding": "unrolled, 289 weights", "observations": 10_000,
    }  # fmt: skip
    route = measured("Hopper-v4", {Cell(2, 16, 6): 2000}, 2700)
    core = BuiltCore("ours", "Hopper-v4", Cell(2, 16, 6), built)
    found = tables(ControllerEvidence([route], [core]))
    paper, ours = found["cores"].to_dict("records")
    assert (paper["luts"], paper["layer_cycles"], paper["dsps"]) == (2400, 21, 45)
    assert ours["luts"] == 1774 and ours["layer_cycles"] == 8 and ours["observations"] == 10_000
    (table,) = [each for each in shown_tables(found) if each.title.startswith("Table 3")]
    assert table.rows[0][-1] == "-" and table.rows[1][2:4] == ["1,774", "1,495"]
    assert len(shown_tables(tables(ControllerEvidence([route])))) == 2  # without cores
    claim = judge(ControllerEvidence([route], [core]))[11]
    assert "8 cycles of the layers, the paper's 2, 16, 6 21" in claim.evidence


def test_learning_is_drawn_by_seed_over_the_shortest_training() -> None:
    found = measured("Hopper-v4", {}, 2700)
    found.curves[256] = {seed: np.array([[100.0, 1000.0], [seed, seed]]) for seed in (1, 3)}
    found.curves[Cell(2, 16, 6)] = {0: np.array([[50.0, 500.0], [2.0, 2.0]])}
    with paper_style():
        (axes,) = learning_figure([found]).axes
    named = {
        each.get_label(): each.get_ydata() for each in axes.lines if "seed" in each.get_label()
    }
    assert set(named) == {"float, width 256, 2 seeds", "core 2, width 16, input 6, 1 seed"}
    np.testing.assert_allclose(named["float, width 256, 2 seeds"], 2.0)  # of 1 and 3
    assert len(axes.lines) == 4  # two trainings, two means


def test_trainings_of_ddpg_are_drawn_by_seed_beside_sacs() -> None:
    core = Cell(3, 256, 8)
    routes = [trained("ddpg", True, {core: 4000}, 3000), trained("sac", True, {}, 5000)]
    with paper_style():
        (axes,) = ddpg_figure(routes).axes
    names = [each.get_text() for each in axes.get_yticklabels()]
    assert len(names) == 3 and names[1].endswith("core 3, width 256, input 8")
    means = [each.get_xdata()[0] for each in axes.lines if each.get_marker() == "D"]
    assert means == pytest.approx([3000, 4000, 5000])


def test_panels_of_many_routes_do_not_lie_over_each_other() -> None:
    routes = []
    for steps in (120_000, 300_000, 1_000_000):
        found = MeasuredCells(Route("HalfCheetah-v4", None, "sac", steps))
        found.curves[256] = {0: np.array([[0.0, float(steps)], [1.0, 2.0]])}
        routes.append(found)
    with paper_style():
        figure = learning_figure(routes)
        figure.draw_without_rendering()
        boxes = [ax.get_tightbbox() for ax in figure.axes[:3]]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_tables_and_figures_are_written_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = Path(__file__).parents[3] / "runs-reference"
    trained = [reference / "controllers/trained" / name
               for name in ("hopper-16-2-6-s0", "hopper-twin-256-s0")]  # fmt: skip
    noise = sorted((reference / "controllers-noise").glob("hopper-equal-*s0.json"))
    assert noise
    asked = ["analyze", "paper", *trained, "--paper", "integer-controllers", "-o", tmp_path]
    for each in noise:
        asked += ["--noise", each]
    code, out, _ = call(capsys, *asked, "--json")
    found = json.loads(out)
    assert code == 0 and found["cores"][1]["luts"] == 1774 and len(found["claims"]) == 13
    assert found["selected"][1]["cell"] == "2, 16, 6" and found["choices"]
    names = {Path(each).name for each in found["files"]}
    tables_ = {
        f"integer_controllers_{name}.csv" for name in ("choices", "selected", "cores", "claims")
    }
    drawn = {f"integer_controllers{name}.png" for name in ("", "_learning", "_noise")}
    assert tables_ | drawn <= names and all(Path(each).is_file() for each in found["files"])
    code, out, _ = call(capsys, *asked)
    for title in ("Table 1: chosen", "Table 2: what is chosen", "Table 3: cores on an"):
        assert title in out
