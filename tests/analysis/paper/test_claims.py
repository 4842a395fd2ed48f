"""The paper's claims on made-up runs: what is compared, what the verdict is, what is missing."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from qpd.analysis.paper.claims import paper_claims
from qpd.analysis.paper.results import ClaimResult, claim_results
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
    return {result.claim.key: result for result in claim_results(paper_claims(), groups)}


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
    assert found.verdict == Verdict.undecided
    # Shown is the student that leaves it open: 50.5 / 50.
    assert found.ratio is not None and found.ratio.value == pytest.approx(1.01)
    assert found.why.startswith("the interval of the ratio contains 1")


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
    # Six students; one is 3 standard errors (20 / sqrt(40)) below 100. Student's t gives it a
    # one-sided p of 0.0024. Two claims are tested, of every student: 2 sides * 2 claims * 0.0024 is
    # below 5% for one student, and 6 times as much is not.
    below = 100 - 3 * 20 / 40**0.5
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
    levels = {"XXS": (100.0, 72.0), "XS": (100.0, 90.0), "S": (120.0, 110.0), "M": (130.0, 120.0)}
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
    assert ratios["above-400"] == pytest.approx(120 / 400)
    held = ("xs-s", "xxs-xs", "small-8-bit", "s-8-bit")
    assert {found[key].verdict for key in held} == {Verdict.held}
    assert found["above-400"].verdict == Verdict.failed


def test_phase_3_alone_needs_the_same_budget_and_quantizers(tmp_path: Path) -> None:
    phases = [
        "distill.epochs=20", "finetune.epochs=5", "distill.lr=1e-3",
        "distill.recycle_dormant=false",
    ]  # fmt: skip
    alone = ["distill.epochs=0", "finetune.epochs=25", "finetune.lr=1e-3"]
    literal = "quantize.scheme=dorefa"
    written = [literal, "collection.student_fraction=0", "student.sharpness=1"]
    ours = ["finetune.lr=4e-3", "finetune.recycle_dormant=true"]
    runs = [
        make_run(tmp_path / "three", {"qat": HIGH}, changes=phases),
        make_run(tmp_path / "alone", {"qat": LOW}, changes=alone),
        make_run(tmp_path / "longer", {"qat": HIGH}, changes=["distill.epochs=90"]),
        make_run(  # as many epochs, but shorter ones
            tmp_path / "shorter",
            {"qat": HIGH},
            changes=[*phases, "distill.samples_per_epoch=50000"],
        ),
        make_run(tmp_path / "three-written", {"qat": HIGH}, changes=[*phases, *written]),
        make_run(tmp_path / "alone-written", {"qat": [2.0, 1] * 10}, changes=[*alone, *written]),
        make_run(tmp_path / "three-literal", {"qat": HIGH}, changes=[*phases[:2], literal]),
        make_run(tmp_path / "alone-literal", {"qat": LOW}, changes=[*alone[:2], *ours, literal]),
    ]
    found = results(*runs)
    assert compared(found["phase-3-scaled"]) == [("alone", "three")]
    assert compared(found["phase-3"]) == [("alone-written", "three-written")]
    assert compared(found["phase-3-eq5"]) == [("alone-literal", "three-literal")]
    assert found["phase-3-scaled"].verdict == Verdict.failed  # 50% is far above 10%
    assert found["phase-3-eq5"].verdict == Verdict.failed
    assert found["phase-3"].verdict == Verdict.held  # 1.5%
    # A run without phase 1 is no student of the method.
    assert "alone" not in str(compared(found["above-400"]) + compared(found["half-percent"]))


def test_copies_of_a_game_decide_nothing(tmp_path: Path) -> None:
    """Greedy policies of Breakout play four games, however many are counted."""
    half = make_run(tmp_path / "half", {"distilled": HIGH})
    one = make_run(tmp_path / "one", {"distilled": [11.0, 12, 13, 14] * 25}, changes=LAMBDA_1)
    manifest = json.loads((one / "manifest.json").read_text())
    manifest["evaluations"]["distilled"]["distinct_games"] = 4
    (one / "manifest.json").write_text(json.dumps(manifest))
    found = results(half, one)["critic-fp32"]
    assert found.verdict == Verdict.undecided
    assert found.why == "different games on one side: 4; at least 10 are needed"


def test_seeds_are_compared_with_themselves(tmp_path: Path) -> None:
    """Seeds 40 apart, and lambda 0.5 worth 3% at each."""
    runs = []
    for seed, level in enumerate((300.0, 340.0, 380.0)):
        for name, changes, share in (("half", (), 1.03), ("one", LAMBDA_1, 1.0)):
            games = [share * level + off for off in np.linspace(-1, 1, 20)]
            path = tmp_path / f"{name}-{seed}"
            runs.append(make_run(path, {"distilled": games}, seed=seed, changes=changes))
    found = results(*runs)["critic-fp32"]
    assert found.verdict == Verdict.held and found.ratio is not None
    assert 1.0 < found.ratio.low < 1.03 < found.ratio.high < 1.05


def test_too_few_games_decide_nothing(tmp_path: Path) -> None:
    half = make_run(tmp_path / "half", {"distilled": [100.0]})
    one = make_run(tmp_path / "one", {"distilled": [10.0]}, changes=LAMBDA_1)
    found = results(half, one)["critic-fp32"]
    assert (found.verdict, found.why) == (
        Verdict.undecided,
        "different games on one side: 1; at least 10 are needed",
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


def test_pairs_of_other_code_or_another_share_of_play_are_shown_but_not_judged(
    tmp_path: Path,
) -> None:
    half = make_run(tmp_path / "half", {"distilled": HIGH}, commit="a" * 40)
    later = make_run(tmp_path / "later", {"distilled": LOW}, changes=LAMBDA_1, commit="b" * 40)
    found = results(half, later)["critic-fp32"]
    assert (found.verdict, found.p) == (Verdict.unmatched, None)
    assert found.why == "commits aaaaaaa against bbbbbbb"
    for run in (half, later):  # one commit, with changes that may differ
        manifest = json.loads((run / "manifest.json").read_text())
        manifest |= {"git_commit": "c" * 40, "git_dirty": True}
        (run / "manifest.json").write_text(json.dumps(manifest))
    found = results(half, later)["critic-fp32"]
    assert found.why == "changes that no commit has: ccccccc+ against ccccccc+"
    assert found.ratio is not None and found.ratio.value == 2.0
    # A student of three that share the play has a third of the students' half.
    shared = make_run(
        tmp_path / "shared", {"distilled": HIGH}, seed=1, distilled={"students_sharing": 3}
    )
    alone = make_run(tmp_path / "alone", {"distilled": LOW}, changes=LAMBDA_1)
    found = results(shared, alone)["critic-fp32"]
    assert (found.verdict, found.why) == (
        Verdict.unmatched,
        "share of student play 0.167 against 0.5",
    )
    # Where students play no games, there is nothing to share.
    plain = ("collection.student_fraction=0",)
    shared = make_run(
        tmp_path / "s", {"distilled": HIGH}, changes=plain, distilled={"students_sharing": 3}
    )
    alone = make_run(tmp_path / "o", {"distilled": LOW}, changes=[*plain, *LAMBDA_1])
    assert results(shared, alone)["critic-fp32"].verdict == Verdict.held


def test_only_matched_pairs_are_judged(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "half", {"distilled": HIGH}),
        make_run(tmp_path / "one", {"distilled": LOW}, changes=LAMBDA_1),
        make_run(tmp_path / "s", {"distilled": LOW}, changes=["student.size=S"], commit="a" * 40),
        make_run(tmp_path / "s-one", {"distilled": HIGH}, changes=["student.size=S", *LAMBDA_1]),
    ]
    found = results(*runs)["critic-fp32"]
    assert (len(found.comparisons), len(found.judged)) == (2, 1)
    more = make_run(tmp_path / "half-1", {"distilled": HIGH}, seed=1)
    also = make_run(tmp_path / "one-1", {"distilled": LOW}, changes=LAMBDA_1, seed=1)
    # The unmatched pair is of one run a side; those that decide are of two.
    assert results(*runs, more, also)["critic-fp32"].fewest_runs == 2
    assert found.verdict == Verdict.held and found.ratio is not None and found.ratio.value == 2.0


def test_a_side_without_skill_is_not_judged(tmp_path: Path) -> None:
    other = ("distill.temperature=0.01", "finetune.temperature=0.01")
    good = make_run(tmp_path / "good", {"distilled": HIGH})
    bad = make_run(tmp_path / "bad", {"distilled": [2.0, 3] * 10}, changes=other)
    found = results(good, bad)["tau-0.01"]
    assert (found.verdict, found.why) == (
        Verdict.unmatched,
        "a return of 2.5 shows no skill (at random: 1.4)",
    )


def test_levels_are_judged_by_students_of_enough_samples(tmp_path: Path) -> None:
    games, plain = {"teacher": LOW, "distilled": HIGH, "qat": HIGH}, "student.sharpness=1"
    enough, short = (
        make_run(tmp_path / str(epochs), games, changes=[f"distill.epochs={epochs}", plain])
        for epochs in (40, 20)  # 4 and 2 million
    )
    found = results(enough, short)
    for key in ("teacher", "half-percent", "small-8-bit"):
        assert [first for first, _ in compared(found[key])] == ["40"]


def test_students_that_learned_from_rewards_are_none_of_the_papers(tmp_path: Path) -> None:
    games, plain = {"teacher": LOW, "distilled": HIGH, "qat": HIGH}, "student.sharpness=1"
    run = make_run(tmp_path / "played", games, changes=["finetune.reward.imitation=0.1", plain])
    found = results(run)
    assert [first for first, _ in compared(found["teacher"])] == ["played"]  # before any reward
    for key in ("half-percent", "small-8-bit"):
        assert not found[key].comparisons


def test_phase_3_alone_has_to_be_trained_as_phase_1_is(tmp_path: Path) -> None:
    phases = make_run(tmp_path / "three", {"qat": HIGH}, changes=["distill.epochs=20"])
    changes = ["distill.epochs=0", "finetune.epochs=26", "finetune.lr=1e-3"]
    alone = make_run(tmp_path / "alone", {"qat": LOW}, changes=changes)
    found = results(phases, alone)["phase-3-scaled"]
    assert found.why == (
        "lr of the first training 0.001 against 0.004; "
        "recycle_dormant of the first training false against true"
    )


def test_phase_3_alone_with_phase_1s_rate_and_recycling_is_judged(tmp_path: Path) -> None:
    phases = make_run(tmp_path / "three", {"qat": HIGH}, changes=["distill.epochs=20"])
    changes = ["distill.epochs=0", "finetune.epochs=26", "finetune.lr=4e-3"]
    changes.append("finetune.recycle_dormant=true")
    alone = make_run(tmp_path / "alone", {"qat": LOW}, changes=changes)
    assert results(phases, alone)["phase-3-scaled"].verdict == Verdict.failed  # 50%, not 10%


def test_claims_are_corrected_for_being_many(tmp_path: Path) -> None:
    """2.3 standard errors decide a claim alone, and not beside two others that are as close."""
    off = 2.3 * 20 / 40**0.5 * (39 / 40) ** 0.5
    games = [100 - off + 20, 100 - off - 20] * 20
    constant = [100.0] * 40
    runs = [
        make_run(tmp_path / "half", {"distilled": games, "qat": games}),
        make_run(tmp_path / "one", {"distilled": constant, "qat": constant}, changes=LAMBDA_1),
    ]
    groups = policy_groups(run_frame(runs))
    (alone,) = claim_results(paper_claims()[:1], groups)
    assert alone.verdict == Verdict.failed and alone.p is not None
    two = claim_results(paper_claims()[:2], groups)
    assert [result.p for result in two] == [2 * alone.p] * 2
    assert {result.verdict for result in two} == {Verdict.undecided}
    assert two[0].why.endswith("as one of all the claims, above 0.05")
