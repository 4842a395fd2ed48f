"""Actions of a student and its teacher in one game: figures, tables, and the report's page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from qpd.actions import ActingRule, Box, Discrete, MultiBinary, MultiDiscrete
from qpd.analysis.figure_style import paper_style
from qpd.analysis.networks.action_labels import action_labels, action_parts
from qpd.analysis.networks.action_traces import ActionTraces, action_traces, draw_actions
from qpd.analysis.networks.feature_umap import action_texts
from qpd.analysis.networks.teacher_outputs import choices_of, teacher_outputs
from qpd.analysis.report.html_page import render_page, report_sections
from qpd.analysis.report.inputs import read_inputs
from qpd.analysis.report.video import _taken_rows
from qpd.analysis.runs.run_frame import run_frame
from qpd.environments.registry import make_vector_env
from qpd.runs.target import TargetError, load_target
from tests.analysis.continuous_run import continuous_run
from tests.command_line import call

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return continuous_run(tmp_path_factory.mktemp("pendulum"))


@pytest.fixture(scope="module")
def traces(run: Path) -> ActionTraces:
    return action_traces(run)


def test_the_game_is_the_evaluations(run: Path, traces: ActionTraces) -> None:
    student, teacher = (load_target(run, name, None, "cpu") for name in ("qat", "teacher"))
    env = make_vector_env(student.environment, 1, max_frames=student.max_frames)
    env.reset(student.seed)
    rng, greedy = np.random.default_rng(0), ActingRule("greedy")
    for step in range(60):  # the recipe's max_frames
        for who, policy in (("student", student.policy), ("teacher", teacher.policy)):
            action = policy.actions.act(policy(env.observations), greedy, rng)
            told = traces.table.loc[traces.table["step"] == step, who]
            np.testing.assert_allclose(told, action[0], rtol=1e-6)
            if who == "student":
                taken = action
        env.step(taken)
    env.close()
    assert traces.steps == 60 and traces.missing is None


def test_the_summary_by_hand(traces: ActionTraces) -> None:
    (about,) = traces.summary.to_dict("records")
    assert (about["action"], about["low"], about["high"]) == ("action 0", -2.0, 2.0)
    assert about["student"] == pytest.approx(traces.table["student"].mean())
    apart = (traces.table["student"] - traces.table["teacher"]).abs().mean()
    assert about["difference"] == pytest.approx(apart / 4.0)


def test_lines_lie_within_the_bounds(traces: ActionTraces) -> None:
    with paper_style():
        (ax,) = draw_actions(traces).axes
    assert ax.get_yticks().tolist() == [-2.0, 0.0, 2.0]
    assert [line.get_linestyle() for line in ax.lines] == ["-", "--"]
    assert ax.lines[1].get_ydata().tolist() == traces.table["teacher"].tolist()


def test_the_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(
        capsys, "analyze", "actions", run, "--steps", 7, "--policy", "ptq", "-o", tmp_path, "--json"
    )
    found = json.loads(out)
    assert code == 0 and "7 decisions of one game of the student" in found["notes"], err
    names = ("actions.csv", "actions_summary.csv", "actions.png", "actions.svg")
    assert {Path(file).name for file in found["files"]} == set(names)
    assert len(pd.read_csv(tmp_path / "actions.csv")) == 7
    code, _, err = call(capsys, "analyze", "actions", run, "--policy", "teacher", "-o", tmp_path)
    assert code == 2 and "teacher is no student" in err


def test_without_the_teacher_the_student_is_drawn_alone(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zipped = run.parent / "sac-Pendulum-v1.zip"
    hidden = zipped.rename(zipped.with_suffix(".hidden"))
    try:
        alone = action_traces(run, steps=5)
        code, out, err = call(capsys, "analyze", "actions", run, "--steps", 5, "-o", tmp_path)
    finally:
        hidden.rename(zipped)
    assert alone.missing is not None and "sac-Pendulum-v1.zip" in alone.missing
    assert alone.table["teacher"].isna().all()
    with paper_style():
        assert len(draw_actions(alone).axes[0].lines) == 1
    assert code == 0 and "student" in out and "nan" not in out and "apart" not in out, err


def test_the_page_has_lines_of_both(run: Path) -> None:
    pytest.importorskip("pygame")
    inputs = read_inputs(run, [], 1.0, 0, lambda text: None)
    sections = report_sections(inputs)
    page = render_page(inputs, sections)
    assert {section.key: section.left_out for section in sections}["video"] is None
    data: dict[str, Any] = json.loads(
        re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)[0]
    )
    assert data["ranges"] == [[-2.0, 2.0]] and data["actions"] == ["action 0"]
    student = data["games"][0]
    table = action_traces(run, "qat", 5).table
    for step in range(5):
        for told, who in ((student["own"], "student"), (student["others"], "teacher")):
            share = (table[who][step] + 2.0) / 4.0
            assert told[step] == [pytest.approx(1000 * share, abs=0.51)]
    assert student["own"][-1] is None and student["taken"][0] == []
    assert page.count("<polyline") == 4 and 'class="bars"' not in page
    assert "What both do" in page and "apart, of range" in page


def test_tables_know_the_students_actions(run: Path) -> None:
    row = run_frame([run]).set_index("policy").loc["qat"]
    # SAC's critic teaches the student's; a Gaussian's own variance is the label.
    assert (row["temperature"], row["lambda"]) == (1.0, 0.5)


def test_a_softmax_of_continuous_actions_is_refused(run: Path) -> None:
    with pytest.raises(TargetError, match="they have no softmax; `qpd analyze actions RUN`"):
        teacher_outputs([str(run)], 60)


def test_choices_are_told_apart() -> None:
    labels = np.arange(6.0).reshape(1, 6)
    parts = choices_of(labels, MultiDiscrete((2, 1, 3)))
    assert [part.tolist() for part in parts] == [[[0, 1]], [[3, 4, 5]]]
    switches = choices_of(labels[:, :2], MultiBinary(2))
    assert [part.tolist() for part in switches] == [[[0, 0]], [[0, 1]]]


def test_names_of_actions() -> None:
    assert action_labels(Discrete(4), "BreakoutNoFrameskip-v4") == ["NOOP", "FIRE", "RIGHT", "LEFT"]
    assert action_labels(MultiDiscrete((1, 2)), "x") == [
        "choice 0, action 0", "choice 1, action 0", "choice 1, action 1",
    ]  # fmt: skip
    assert action_labels(MultiBinary(2), "x") == ["switch 0", "switch 1"]
    assert [len(part.names) for part in action_parts(MultiDiscrete((3, 2)), "x")] == [3, 2]
    texts = action_texts(Box((-1.0, -1.0), (1.0, 1.0)), np.array([[0.5, -0.25]]), "x")
    assert texts.tolist() == ["0.50/-0.25"]


def test_the_bars_of_what_was_taken() -> None:
    """Rows of all parts are counted through."""
    assert _taken_rows(Discrete(3), np.array([2, 0])) == [[2], [0]]
    assert _taken_rows(MultiDiscrete((2, 3)), np.array([[1, 2], [0, 0]])) == [[1, 4], [0, 2]]
    assert _taken_rows(MultiBinary(3), np.array([[1, 0, 1], [0, 0, 0]])) == [[0, 2], []]


@pytest.mark.parametrize(
    ("actions", "lines"), [(MultiDiscrete((2, 3)), 1), (MultiBinary(5), 0), (Discrete(5), 0)]
)
def test_shares_of_choices_are_bars(actions: Any, lines: int) -> None:
    labels = action_labels(actions, "x")
    summary = pd.DataFrame({"action": labels, "student": np.linspace(0, 1, 5), "teacher": 0.5})
    table = pd.DataFrame({"step": [0], "action": labels[:1], "student": [0.0], "teacher": [0.5]})
    with paper_style():
        (ax,) = draw_actions(ActionTraces("x", actions, table, summary)).axes
    student, teacher = ax.containers
    assert [bar.get_width() for bar in student] == [0, 0.25, 0.5, 0.75, 1]
    assert [bar.get_width() for bar in teacher] == [0.5] * 5
    assert len(ax.lines) == lines  # between two choices
    assert [text.get_text() for text in ax.get_yticklabels()] == labels
