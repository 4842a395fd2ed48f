"""`qpd analyze paper`: what is printed, written, drawn and refused."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from qpd.analysis.figure_style import paper_style
from qpd.analysis.paper.evidence import PaperEvidence, paper_evidence
from qpd.analysis.paper.published import PARAMETERS
from tests.analysis.made_up_runs import REFERENCE, make_run
from tests.command_line import call

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

DEVICE = REFERENCE / "devices" / "epyc-zen4-2-cores.json"
NAMES = {
    *("paper.csv", "paper_comparisons.csv", "paper_numbers.csv", "paper.md"),
    *("paper_returns.png", "paper_returns.svg", "paper_claims.png", "paper_claims.svg"),
}


def table(path: str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_the_reference_runs(capsys: pytest.CaptureFixture[str]) -> None:
    folders = (
        "ptq-sweep", "mini-grid", "phase3", "grid", "grid-shared", "grid-teachers", "readme",
        "full-budget",
    )  # fmt: skip
    written = sorted((REFERENCE / "ablation").glob("*as-written*"))
    runs = [REFERENCE, *(REFERENCE / name for name in folders), *written]
    code, out, err = call(capsys, "analyze", "paper", *runs, "--devices", DEVICE, "-o", "new/t")
    assert code == 0, err
    assert {path.name for path in Path("new/t").iterdir()} == NAMES
    claims = {row["claim"]: row for row in table("new/t/paper.csv")}
    assert {key: row["verdict"] for key, row in claims.items()} == {
        "critic-fp32": "not decided",
        "critic-8-bit": "not decided",
        "tau-1": "not judged",
        "tau-0.01": "not judged",
        "teacher": "not decided",
        "teacher-plain": "not decided",
        "above-400": "did not hold",
        "xs-s": "not decided",
        "xxs-xs": "not decided",
        "small-8-bit": "not decided",
        "s-8-bit": "not decided",
        "half-percent": "not decided",
        "phase-3": "not decided",
        "phase-3-eq5": "did not hold",
        "phase-3-scaled": "did not hold",
    }
    assert claims["critic-fp32"]["meets_paper_number"] == "False"
    assert all(row["fewest_runs"] in ("1", "2", "3") for row in claims.values())
    for row in claims.values():
        assert int(row["comparisons"]) > 0
    for said in (
        "did not hold, one run",
        "7 runs left out",
        "8 on one, whose interval covers games",
    ):
        assert said in Path("new/t/paper.md").read_text()
    assert "phase 1 of these students saw 2 to 324 million samples" in out
    numbers = {row["number"]: row for row in table("new/t/paper_numbers.csv")}
    assert numbers["PPO teacher, sampled"]["paper"] == "339"
    assert numbers["PPO teacher, sampled"]["ours"].startswith("332.6 [")
    # The best epoch by its own games: 353.5, 371.6, 367.2 and 396.5.
    grid = numbers["PPO, XXS, fp32, lambda 0.5: size=XXS,seed=0,bits=8"]
    assert grid["the paper's protocol"] == "396.5 (32 games)"
    # The mini grid's students saw 3 million samples, too few to be judged by their level.
    assert (
        "PPO, XXS, fp32, lambda 0.5: size=XXS,seed=0,bits=8, size=XXS,seed=1,bits=8" not in numbers
    )
    # What decides stands in its row: p-values of tested claims, reasons of the others.
    for claim, row in claims.items():
        tested = row["verdict"] in ("held", "did not hold", "not decided")
        assert (row["p"] != "") == tested
        if row["verdict"] == "did not hold":
            low, high, bound = (float(row[key]) for key in ("ratio_low", "ratio_high", "bound"))
            # Phase 3 alone is claimed to be below its bound, the others above.
            assert low > bound if claim.startswith("phase-3") else high < bound
            assert float(row["p"]) < 0.05
        if row["verdict"] == "not judged":
            assert row["why"] and row["judged"] == "0"
    assert numbers["XXS: speed against the teacher's"]["ours"] == "2.2x"
    # The documentation shows what is printed.
    shown = (REFERENCE.parent / "docs" / "paper.md").read_text()
    (printed,) = re.findall(
        r"## The paper's claims\n\n(.*?)\n\n", Path("new/t/paper.md").read_text(), re.S
    )
    assert printed in shown
    # Table 1, XXS: 135 / 39 on a Raspberry Pi is the most, 2560 / 1630 on a GTX 1080 Ti the least.
    assert numbers["XXS: speed against the teacher's"]["paper"] == "1.6x to 3.5x"
    saved = numbers["bytes, S in 8 bits against XXS in fp32"]
    assert (saved["paper"], saved["ours"]) == ("-28%", "-21% (114,208 against 144,548)")
    for size, count in PARAMETERS.items():
        row = numbers[f"{size}: parameters"]
        assert row["paper"] == row["ours"] == f"{count:,}"


def test_a_shells_star_names_more_than_runs(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("runs/a"), {"distilled": [1.0, 2] * 10})
    make_run(Path("runs/grid/b"), {"distilled": [3.0, 4] * 10}, seed=1)
    Path("runs/devices").mkdir()
    Path("runs/README.md").write_text("mine")
    names = sorted(Path("runs").iterdir())
    code, out, err = call(capsys, "analyze", "paper", *names, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert "left out, as they hold no runs: runs/README.md, runs/devices" in found["notes"]
    assert [row["runs, games"] for row in found["paper_numbers"][:1]] == ["2, 40"]
    # What does not exist is a mistake, and so is no run at all.
    assert call(capsys, "analyze", "paper", "runs/a", "runs/absent")[0] == 2
    code, _, err = call(capsys, "analyze", "paper", "runs/devices", "runs/README.md")
    assert code == 2 and "runs/devices: is neither a run directory" in err


def test_markdown_has_every_claim_with_as_many_cells_as_its_header(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = make_run(Path("a"), {"distilled": [1.0, 2] * 10})
    assert call(capsys, "analyze", "paper", run, "-o", "t")[0] == 0
    text = Path("t/paper.md").read_text()
    head, *parts = text.split("\n## ")
    assert head.startswith("# Our runs beside the paper's numbers")
    assert [part.splitlines()[0] for part in parts] == [
        "The paper's claims", "What was compared", "Numbers",
    ]  # fmt: skip
    for part in parts:
        lines = [line for line in part.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) == 1
    assert parts[0].count("not measured") == 15
    assert text.count("`qpd ") >= 14 and "\n- ratio: of mean returns" in text


def test_json_and_the_same_bytes_again(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [REFERENCE / name for name in ("quickstart", "quickstart-lambda-1")]
    code, out, err = call(capsys, "analyze", "paper", *runs, "--json", "-o", "a")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    assert len(found["files"]) == len(NAMES) and found["notes"]
    by_key = {row["claim"]: row for row in found["paper"]}
    assert by_key["critic-fp32"]["ratio_low"] < 1 < by_key["critic-fp32"]["ratio_high"]
    assert by_key["tau-1"]["ratio"] is None and by_key["tau-1"]["meets_paper_number"] is None
    critic = next(row for row in found["paper_comparisons"] if row["claim"] == "critic-fp32")
    assert critic["first_runs"] == str(runs[0]) and critic["second_runs"] == str(runs[1])
    assert (critic["first_num_runs"], critic["first_num_episodes"]) == (1, 30)
    assert call(capsys, "analyze", "paper", *runs, "-o", "b")[0] == 0
    for name in NAMES:
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes()


def drawn(evidence: PaperEvidence) -> dict[str, Any]:
    with paper_style():
        return dict(evidence.figures())


def test_what_is_drawn(tmp_path: Path) -> None:
    lambda_1 = ["distill.actor_weight=1", "finetune.actor_weight=1"]
    plain = "student.sharpness=1"
    games = {"teacher": [50.0] * 10, "distilled": [75.0] * 10, "qat": [60.0] * 10}
    runs = [
        make_run(tmp_path / "half", games, changes=[plain]),
        make_run(tmp_path / "one", {"distilled": [60.0] * 10}, changes=[plain, *lambda_1]),
        make_run(tmp_path / "l", {"qat": [90.0] * 10}, changes=[plain, "student.size=L"]),
    ]
    figures = drawn(paper_evidence(runs))
    returns, shares = figures["paper_returns"].axes
    assert [text.get_text() for text in returns.get_xticklabels()] == ["XXS", "L", "teacher"]
    heights = {
        (round(float(line[0].get_xdata()[0])), float(line[0].get_ydata()[0]))
        for line in returns.containers
    }
    assert heights == {(0, 75.0), (0, 60.0), (1, 90.0), (2, 50.0)}
    ratios = sorted(float(line[0].get_ydata()[0]) for line in shares.containers)
    assert ratios == [1.2, 1.2, 1.5, 1.8]
    (legend,) = figures["paper_returns"].legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "fp32", "fp32 without critic loss", "8-bit", "teacher", "the paper's teacher",
        "the paper's fp32 students", "the paper's best 8-bit students: above 400",
    ]  # fmt: skip
    (axes,) = figures["paper_claims"].axes
    assert len(axes.get_yticklabels()) == 15
    first = axes.containers[1][0]  # after the bar of the paper's number
    assert float(first.get_xdata()[0]) == 75 / 60


def test_only_the_deciding_one_of_many_ratios_is_drawn(tmp_path: Path) -> None:
    plain = "student.sharpness=1"
    runs = [
        make_run(
            tmp_path / size,
            {"teacher": [50.0] * 10, "distilled": [50.0 + place] * 10},
            changes=[plain, f"student.size={size}"],
        )
        for place, size in enumerate(PARAMETERS, start=1)
    ]
    (axes,) = drawn(paper_evidence(runs))["paper_claims"].axes
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names[4].endswith("\n(the deciding one of 7)")
    bars = [box[0] for box in axes.containers if hasattr(box, "has_xerr")]
    ratios = {float(x) for bar in bars for x in bar.get_xdata()}
    assert 51 / 50 in ratios and 57 / 50 not in ratios


def test_a_ratio_far_away_does_not_squeeze_the_others(tmp_path: Path) -> None:
    other = ["distill.temperature=0.01", "finetune.temperature=0.01"]
    runs = [
        make_run(tmp_path / "smoothed", {"distilled": [320.0] * 10}),
        make_run(tmp_path / "sharpened", {"distilled": [2.0] * 10}, changes=other),
    ]
    (axes,) = drawn(paper_evidence(runs))["paper_claims"].axes
    assert axes.get_xlim()[1] <= 2.5
    assert "160" in [text.get_text() for text in axes.texts]


def test_no_student_of_the_grid_draws_no_returns(tmp_path: Path) -> None:
    run = make_run(tmp_path / "teacher-only", {"teacher": [1.0] * 10})
    assert set(drawn(paper_evidence([run]))) == {"paper_claims"}


def test_notes_say_how_far_the_runs_reach(tmp_path: Path) -> None:
    def noted(acting: str, seeds: int) -> str:
        folder = tmp_path / f"{acting}{seeds}"
        games = {"teacher": [50.0, 40] * 10, "distilled": [75.0] * 20}
        for seed in range(seeds):
            make_run(
                folder / str(seed), games, seed=seed, acting=acting, changes=["student.sharpness=1"]
            )
        return "\n".join(paper_evidence([folder]).notes)

    one, three, five = noted("sampled", 1), noted("sampled", 3), noted("greedy", 5)
    assert "2 of 2 measured claims rest on fewer runs a side than the paper's 5; 2 on one" in one
    assert "than the paper's 5\n" in three
    assert "fewer runs" not in five
    assert "greedy Breakout is at most four games" in five
    assert "greedy" not in one + three
    assert "saw 4 million samples, the paper's 324" in one
    assert "unlike the paper: collection.student_fraction 0.5" in one


@pytest.mark.parametrize(
    ("evaluations", "env_id", "says"),
    [
        ({}, "BreakoutNoFrameskip-v4", "run: no policy was evaluated yet; see `qpd evaluate`"),
        (None, "PongNoFrameskip-v4", "run: no run of Breakout, which the paper's claims are about"),
    ],
)
def test_nothing_to_judge(
    capsys: pytest.CaptureFixture[str],
    evaluations: dict[str, list[float]] | None,
    env_id: str,
    says: str,
) -> None:
    make_run(Path("run"), evaluations, env_id=env_id)
    code, out, err = call(capsys, "analyze", "paper", "run", "-o", "t")
    assert (code, out) == (2, "") and says in err and "[Q209]" in err
    assert not Path("t").exists()


def test_without_matplotlib_nothing_is_half_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(Path("run"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = call(capsys, "analyze", "paper", "run", "-o", "t")
    assert code == 2 and 'qpd analyze needs matplotlib: pip install "qpd-rl[analysis]"' in err
    assert not Path("t").exists()


def test_an_output_that_is_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    make_run(Path("run"))
    Path("note.txt").write_text("mine")
    code, _, err = call(capsys, "analyze", "paper", "run", "-o", "note.txt")
    assert code == 2 and "note.txt" in err and "Traceback" not in err
    assert Path("note.txt").read_text() == "mine"


def test_no_command_is_proposed_whose_student_would_learn_by_reward(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = call(capsys, "analyze", "paper", REFERENCE / "reward" / "xxs", "-o", "paper")
    assert code == 0, err
    proposed = re.findall(r"`qpd run \S*reward/xxs/recipe\.yaml.*?`", " ".join(out.split()))
    assert proposed and all("--set finetune.reward=null" in command for command in proposed)
    assert "needs 8-bit XXS of 4,000,000 samples or more" in " ".join(out.split())
