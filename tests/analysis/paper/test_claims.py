"""The paper's claims on made-up runs: what is compared, what the verdict is, what is missing."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from qpd.analysis.paper.claims import paper_claims
from qpd.analysis.paper.results import ClaimResult, claim_result
from qpd.analysis.paper.verdict import Verdict
from qpd.analysis.returns.policy_groups import policy_groups
from qpd.analysis.runs.run_frame import run_frame
from qpd.recipe.loading import load_recipe
from tests.analysis.made_up_runs import REFERENCE, make_run

LAMBDA_1 = ("distill.actor_weight=1", "finetune.actor_weight=1")
PLAIN = ("student.sharpness=1",)
HIGH = [110.0, 90] * 10  # mean 100, 20 games
LOW = [60.0, 40] * 10  # mean 50
NEAR = [108.0, 90] * 10  # mean 99
Games = Mapping[str, Sequence[float]]


def results(*paths: Path) -> dict[str, ClaimResult]:
    groups = policy_groups(run_frame(list(paths)))
    return {claim.key: claim_result(claim, groups) for claim in paper_claims()}


def compared(result: ClaimResult) -> list[tuple[str, str]]:
    """The folders of both sides of each comparison."""
    return [
        (found.pair.first.folders, getattr(found.pair.second, "folders", ""))
        for found in result.comparisons
    ]


def test_the_critics_loss(tmp_path: Path) -> None:
    half = make_run(tmp_path / "half", {"distilled": HIGH, "qat": HIGH})
    one = make_run(tmp_path / "one", {"distilled": LOW, "qat": NEAR}, changes=LAMBDA_1)
    # Differs in more than lambda: never compared.
    make_run(tmp_path / "long", {"distilled": HIGH}, changes=[*LAMBDA_1, "distill.epochs=99"])
    found = results(half, one, tmp_path / "long")
    floats, integers = found["critic-fp32"], found["critic-8-bit"]
    assert compared(floats) == compared(integers) == [("half", "one")]
    assert floats.ratio is not None and floats.ratio.value == 2.0
    assert (floats.verdict, integers.verdict) == (Verdict.held, Verdict.undecided)
    assert integers.why == "the interval of the ratio contains 1"
    assert floats.fewest_runs == 1
    # The other way around it did not hold.
    swapped = results(
        make_run(tmp_path / "low", {"distilled": LOW}),
        make_run(tmp_path / "high", {"distilled": HIGH}, changes=LAMBDA_1),
    )
    assert swapped["critic-fp32"].verdict == Verdict.failed


def test_a_dqn_has_no_critic_to_compare(tmp_path: Path) -> None:
    half = make_run(tmp_path / "half", {"distilled": HIGH}, algo="dqn")
    one = make_run(tmp_path / "one", {"distilled": LOW}, algo="dqn", changes=LAMBDA_1, seed=1)
    assert results(half, one)["critic-fp32"].verdict == Verdict.unmeasured


def test_other_teachers_and_acting_rules_are_not_compared(tmp_path: Path) -> None:
    half = make_run(tmp_path / "half", {"distilled": HIGH})
    others = [
        make_run(tmp_path / "greedy", {"distilled": LOW}, changes=LAMBDA_1, acting="greedy"),
        make_run(tmp_path / "a2c", {"distilled": LOW}, changes=LAMBDA_1, algo="a2c"),
    ]
    found = results(half, *others)["critic-fp32"]
    assert found.verdict == Verdict.unmeasured
    assert found.why.startswith("half and greedy differ also in evaluation.acting: `qpd run ")


def test_several_pairs_are_averaged(tmp_path: Path) -> None:
    runs = []
    for size, games in (("XXS", HIGH), ("S", [25.0] * 20)):
        size_is = f"student.size={size}"
        runs.append(make_run(tmp_path / f"{size}-half", {"distilled": games}, changes=[size_is]))
        changes = [size_is, *LAMBDA_1]
        runs.append(make_run(tmp_path / f"{size}-one", {"distilled": LOW}, changes=changes))
    found = results(*runs)["critic-fp32"]
    assert found.ratio is not None and found.ratio.value == (2.0 + 0.5) / 2
    assert len(found.comparisons) == 2


def test_students_are_compared_with_the_teacher_that_they_imitate(tmp_path: Path) -> None:
    games = {"teacher": LOW, "distilled": [80.0, 70] * 10, "qat": HIGH, "teacher_sharpened": HIGH}
    sharp = make_run(tmp_path / "sharp", games)  # the quickstart's sharpness is 3
    manifest = json.loads((sharp / "manifest.json").read_text())
    rule = "sampled from softmax(3 * logits)"
    manifest["evaluations"]["teacher_sharpened"]["acting"] = rule
    (sharp / "manifest.json").write_text(json.dumps(manifest))
    found = results(sharp)
    # 75 against 100 as imitated, against 50 as SB3 plays the teacher.
    assert found["teacher"].verdict == Verdict.failed
    assert found["teacher-plain"].verdict == Verdict.held
    assert found["half-percent"].ratio is not None and found["half-percent"].ratio.value == 1.0


def test_a_student_of_the_plain_teacher_needs_no_sharpened_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"teacher": LOW, "distilled": HIGH}, changes=PLAIN)
    found = results(run)
    assert found["teacher"].verdict == found["teacher-plain"].verdict == Verdict.held
    other = make_run(tmp_path / "other", {"teacher": LOW, "distilled": HIGH})
    lacking = results(other)["teacher"]
    assert lacking.verdict == Verdict.unmeasured
    assert "needs the teacher's return, sampled from softmax(3 * logits)" in lacking.why


def test_every_student_has_to_beat_its_teacher(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", {"teacher": LOW, "distilled": HIGH}, changes=PLAIN),
        make_run(
            tmp_path / "b", {"distilled": [51.0, 50] * 10}, changes=[*PLAIN, "student.size=S"]
        ),
    ]
    found = results(*runs)["teacher"]
    assert found.verdict == Verdict.undecided and found.ratio is None
    assert found.why.startswith("not every interval lies above 1")


def test_students_at_another_temperature_count_where_it_is_asked_for(tmp_path: Path) -> None:
    other = (*PLAIN, "distill.temperature=0.01", "finetune.temperature=0.01")
    games = {"teacher": NEAR, "distilled": HIGH, "qat": HIGH}
    runs = [
        make_run(tmp_path / "smoothed", games, changes=PLAIN),
        make_run(tmp_path / "sharpened", {"distilled": LOW, "qat": LOW}, changes=other),
    ]
    found = results(*runs)
    assert compared(found["tau-0.01"]) == [("smoothed", "sharpened")]
    assert found["tau-0.01"].verdict == Verdict.held
    for key in ("teacher", "small-8-bit", "half-percent"):
        assert [first for first, _ in compared(found[key])] == ["smoothed"]
    quantized_so = make_run(
        tmp_path / "later", games, changes=[*PLAIN, "finetune.temperature=0.01", "seed=5"]
    )
    found = results(runs[0], quantized_so)
    assert [first for first, _ in compared(found["half-percent"])] == ["smoothed"]
    assert len(compared(found["teacher"])) == 1  # its fp32 student is as the other's
    # Of a DQN it is the paper's temperature, and 3 is another.
    dqn = make_run(tmp_path / "dqn", {"teacher": LOW, "distilled": HIGH}, algo="dqn")
    smooth = make_run(
        tmp_path / "smooth", {"distilled": LOW}, algo="dqn", changes=["distill.temperature=3"]
    )
    (pair,) = compared(results(dqn, smooth)["teacher-plain"])
    assert pair[0] == "dqn"


@pytest.mark.parametrize(("qat", "verdict"), [(97.0, Verdict.held), (93.0, Verdict.failed)])
def test_a_small_loss_is_none(tmp_path: Path, qat: float, verdict: Verdict) -> None:
    run = make_run(tmp_path / "run", {"teacher": [100.0] * 20, "qat": [qat] * 20}, changes=PLAIN)
    assert results(run)["half-percent"].verdict == verdict


def test_one_of_many_students_fails_the_claim_only_when_clearly_below(tmp_path: Path) -> None:
    # Six students; one is 2.3 standard errors (20 / sqrt(40)) below 100: more than 1.96, the 95%
    # interval's, less than the 2.64 of an interval that misses once in 6 / 5%.
    below = 100 - 2.3 * 20 / 40**0.5
    runs = []
    for place, size in enumerate(["XXS", "XS", "S", "M", "L", "XL"]):
        games: Games = {"distilled": [110.0] * 40}
        if not place:
            games = {"teacher": [100.0] * 40, "distilled": [below + 20, below - 20] * 20}
        runs.append(make_run(tmp_path / size, games, changes=[*PLAIN, f"student.size={size}"]))
    found = results(*runs)["teacher"]
    lowest = min(comparison.ratio.high for comparison in found.comparisons)
    assert lowest < 1 and found.verdict == Verdict.undecided
    # Alone it decides.
    assert results(runs[0])["teacher"].verdict == Verdict.failed


def test_sizes_and_bits(tmp_path: Path) -> None:
    levels = {"XXS": (100.0, 72.0), "XS": (100.0, 90.0), "S": (120.0, 110.0)}
    runs = []
    for size, (distilled, qat) in levels.items():
        games: Games = {"distilled": [distilled] * 20, "qat": [qat] * 20}
        runs.append(make_run(tmp_path / size, games, changes=[f"student.size={size}"]))
    four = ["student.size=S", "quantize.weight_bits=4"]
    runs.append(make_run(tmp_path / "4-bit", {"qat": [900.0] * 20}, changes=four))
    found = results(*runs)
    ratios = {key: result.ratio.value for key, result in found.items() if result.ratio is not None}
    assert ratios["xs-s"] == pytest.approx(90 / 110)
    assert ratios["xxs-xs"] == pytest.approx(72 / 90)
    assert ratios["small-8-bit"] == pytest.approx((0.72 + 0.90) / 2)
    assert ratios["s-8-bit"] == pytest.approx(110 / 100)
    assert ratios["above-400"] == pytest.approx(110 / 400)
    held = ("xs-s", "xxs-xs", "small-8-bit", "s-8-bit")
    assert {found[key].verdict for key in held} == {Verdict.held}
    assert found["above-400"].verdict == Verdict.failed


def test_phase_3_alone_needs_the_same_budget_and_quantizers(tmp_path: Path) -> None:
    phases = ["distill.epochs=20", "finetune.epochs=5"]
    alone = ["distill.epochs=0", "finetune.epochs=25", "finetune.lr=1e-3", "distill.lr=1e-3"]
    literal = "quantize.scheme=dorefa"
    runs = [
        make_run(tmp_path / "three", {"qat": HIGH}, changes=phases),
        make_run(tmp_path / "alone", {"qat": LOW}, changes=alone),
        make_run(tmp_path / "longer", {"qat": HIGH}, changes=["distill.epochs=90"]),
        make_run(  # as many epochs, but longer ones
            tmp_path / "larger",
            {"qat": HIGH},
            changes=[*phases, "distill.samples_per_epoch=200000"],
        ),
        make_run(tmp_path / "three-literal", {"qat": HIGH}, changes=[*phases, literal]),
        make_run(tmp_path / "alone-literal", {"qat": [2.0, 1] * 10}, changes=[*alone, literal]),
    ]
    found = results(*runs)
    assert compared(found["phase-3-scaled"]) == [("alone", "three")]
    assert compared(found["phase-3"]) == [("alone-literal", "three-literal")]
    assert found["phase-3-scaled"].verdict == Verdict.failed  # 50% is far above 10%
    assert found["phase-3"].verdict == Verdict.held  # 1.5%
    # A run without phase 1 is no student of the method.
    assert "alone" not in str(compared(found["above-400"]) + compared(found["half-percent"]))


def test_too_few_games_decide_nothing(tmp_path: Path) -> None:
    half = make_run(tmp_path / "half", {"distilled": [100.0]})
    one = make_run(tmp_path / "one", {"distilled": [1.0]}, changes=LAMBDA_1)
    found = results(half, one)["critic-fp32"]
    assert (found.verdict, found.why) == (
        Verdict.undecided,
        "only 1 games on one side; at least 10 are needed",
    )


def test_what_was_not_evaluated_is_named_before_new_runs(tmp_path: Path) -> None:
    half = make_run(tmp_path / "half", {"distilled": HIGH})
    one = make_run(tmp_path / "one", {}, changes=LAMBDA_1)
    without = results(half, one)["critic-fp32"]
    assert without.why == f"one: `qpd run {one}/recipe.yaml -o runs/one-again`"
    source = REFERENCE / "quickstart" / "distilled.safetensors"
    (one / "distilled.safetensors").write_bytes(source.read_bytes())
    found = results(half, one)["critic-fp32"]
    assert found.verdict == Verdict.unmeasured
    assert found.why == f"one: `qpd evaluate {one} --policy distilled`"


def test_every_command_for_what_is_missing_would_be_understood(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "two words" / "a", {"distilled": HIGH, "qat": HIGH}),
        make_run(tmp_path / "s", {"qat": HIGH}, changes=["student.size=S", "distill.epochs=9"]),
    ]
    commands = [
        command
        for result in results(*runs).values()
        if result.verdict == Verdict.unmeasured
        for command in re.findall(r"`(.*?)`", result.why)
    ]
    assert len(commands) >= 8
    for command in commands:
        qpd, verb, target, *rest = shlex.split(command)
        if verb == "evaluate":
            assert (Path(target).is_dir(), rest) == (True, ["--policy", "teacher"])
            continue
        assert (qpd, verb) == ("qpd", "run")
        changes = [rest[place + 1] for place, word in enumerate(rest) if word == "--set"]
        load_recipe(target, changes)  # raises where a file, a key or a value is wrong


def test_a_suggested_run_decides_the_claim(tmp_path: Path) -> None:
    half = make_run(tmp_path / "tau-3", {"distilled": HIGH})
    (command,) = re.findall(r"`(.*?)`", results(half)["tau-1"].why)
    words = shlex.split(command)
    changes = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    made = make_run(tmp_path / "tau-1", {"distilled": LOW}, changes=changes)
    assert results(half, made)["tau-1"].verdict == Verdict.held
