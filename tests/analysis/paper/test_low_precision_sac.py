"""Claims of low-precision SAC: arms by seed, failures that are recorded, what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

import qpd
from qpd.analysis.paper.low_precision_sac import LowPrecisionEvidence, Seeds, judge
from qpd.analysis.paper.verdict import Verdict
from qpd.numerics.gradient_exponents import HIGHEST, LOWEST, GradientExponents
from qpd.recipe.train_schema import METHODS, TrainPrecision
from qpd.runs.training_run import TrainingRun
from tests.command_line import call
from tests.phases.small_trainings import low_precision_training

pytestmark = pytest.mark.filterwarnings("default")  # the zoo's own dependencies warn


def arm(mean: float, seeds: int = 5) -> Seeds:
    return {seed: mean + 0.2 * (seed - 2) for seed in range(seeds)}


def claims_of(arms: dict[str, Seeds]) -> dict[int, tuple[Verdict, str]]:
    found = judge(LowPrecisionEvidence({"Pendulum-v1": arms}))
    return {claim.number: (claim.verdict, claim.evidence) for claim in found}


def test_arms_are_compared_seed_by_seed() -> None:
    failed: Seeds = dict.fromkeys(range(5))
    arms = {"fp32": arm(-150.0), "fp16, six methods": arm(-148.0), "fp16, plain": failed}
    arms |= {f"fp16, without {method}": arm(-170.0) for method in METHODS}
    arms["fp16, without hadam"] = failed
    found = claims_of(arms)
    assert found[1][0] == Verdict.held and found[1][1].startswith("Pendulum-v1: +1.3%")
    assert found[2] == (Verdict.held, "5 of 5 trainings ended in NaN; no test")
    assert found[5][0] == Verdict.held and "hadam: NaN in all 5" in found[5][1]
    # One method whose removal changes nothing, and one training that ended.
    arms["fp16, without softplus"] = arm(-140.0)
    arms["fp16, plain"] = failed | {4: -1000.0}
    found = claims_of(arms)
    assert found[5][0] == Verdict.failed and found[2][0] == Verdict.failed
    assert found[3][0] == Verdict.unmeasured
    few = claims_of({"fp32": arm(-150.0, 2), "fp16, six methods": arm(-150.0, 2)})
    assert few[1] == (
        Verdict.unmeasured, "needs 3 seeds of fp32 and of qpd train sac TASK --precision fp16",
    )  # fmt: skip


def test_trainings_that_ended_in_nan_have_lost_all() -> None:
    failed, floats = dict.fromkeys(range(5)), arm(900.0)
    kept = {"fp32": floats, "fp16, six methods": arm(905.0)}
    lost = {"fp32": floats, "fp16, six methods": failed}
    found = judge(LowPrecisionEvidence({"cheetah": kept, "walker": lost}))[0]
    assert found.verdict == Verdict.failed and "walker: NaN in all 5" in found.evidence
    assert claims_of(lost)[1][0] == Verdict.failed
    some: Seeds = arm(900.0, 8) | dict.fromkeys(range(5))
    found = judge(
        LowPrecisionEvidence({"cheetah": {"fp32": arm(900.0, 8), "fp16, six methods": some}})
    )[0]
    # -1 of five seeds of eight.
    assert found.verdict != Verdict.held and "-62.5%" in found.evidence
    assert "8 seeds, 5 in NaN" in found.evidence
    # Where the float itself failed there is nothing to compare with.
    floats = arm(900.0) | {0: None}
    found = judge(LowPrecisionEvidence({"cheetah": kept | {"fp32": floats}}))[0]
    assert found.verdict == Verdict.held and "4 seeds, 1 in NaN of" in found.evidence


def test_a_method_that_makes_trainings_fail_has_not_helped() -> None:
    """What survives of an arm is better than what it is compared with, by its choice alone."""
    failing: Seeds = arm(905.0) | {0: None, 1: None}
    arms = {"fp16, six methods": failing}
    arms |= {f"fp16, without {method}": arm(800.0) for method in METHODS}
    verdict, said = claims_of(arms)[5]
    # Three seeds lose 104.8, 105 and 105.2 of 905.2 without a method, two lose all by it.
    assert verdict != Verdict.held and "hadam: +33.0%" in said and "5 seeds, 2 in NaN" in said
    rungs = ["fp16, plain", *(f"fp16, {' + '.join(METHODS[:n])}" for n in range(1, 5))]
    rungs += ["fp16, without kahan_gradients", "fp16, six methods"]
    ladder = {name: arm(500.0 + 50 * step) | {0: None} for step, name in enumerate(rungs)}
    assert claims_of(ladder | {rungs[0]: arm(500.0)})[4][0] != Verdict.held
    every: Seeds = dict.fromkeys(range(5))
    assert claims_of(arms | {"fp16, six methods": every})[5][0] == Verdict.failed


def test_five_bits_that_fail_are_steeper_than_six_that_do_not() -> None:
    arms = {"fp16, six methods": arm(500.0), "e5m6, six methods": arm(480.0)}
    found = claims_of(arms | {"e5m5, six methods": arm(470.0) | {0: None, 1: None}})[7]
    # (five - six) - (six - ten): -9.6, -9.2 and so on of seeds that ended; -480 of two of five.
    assert found[1].startswith("Pendulum-v1: 10 bits 500, 6 bits 480, 5 bits 470 (2 of 5 in NaN)")
    assert found[0] != Verdict.held
    assert claims_of(arms | {"e5m5, six methods": arm(300.0)})[7][0] == Verdict.held


def test_a_single_training_that_crashes_is_not_always() -> None:
    assert claims_of({"fp16, plain": {0: None}})[2][0] == Verdict.unmeasured
    assert claims_of({"fp16, plain": {0: -900.0}})[2][0] == Verdict.failed
    assert claims_of({"fp16, plain": dict.fromkeys(range(3))})[2][0] == Verdict.held


def test_baselines_and_the_ladder() -> None:
    failed: Seeds = dict.fromkeys(range(5))
    arms = {"fp32": arm(-150.0), "fp16, coercion": arm(-900.0), "fp16, loss scaling": failed}
    assert claims_of(arms)[3][0] == Verdict.unmeasured
    found = claims_of(arms | {"fp16, mixed precision": arm(-700.0)})[3]
    assert found[0] == Verdict.held and "loss scaling: NaN in all 5" in found[1]
    same = claims_of(arms | {"fp16, mixed precision": arm(-150.0)})[3]
    assert same[0] == Verdict.failed
    # Each rung is better than the one before; then two in a row end in NaN.
    names = [" + ".join(METHODS[:count]) for count in range(1, 5)]
    rungs = ["fp16, plain", *(f"fp16, {name}" for name in names)]
    rungs += ["fp16, without kahan_gradients", "fp16, six methods"]
    ladder = {name: arm(-900.0 + 100 * step) for step, name in enumerate(rungs)}
    assert claims_of(ladder)[4][0] == Verdict.held
    found = claims_of(ladder | {"fp16, plain": failed, "fp16, hadam": failed})[4]
    assert found[0] == Verdict.failed and "hadam: NaN with it, too" in found[1]


def test_the_ladder_with_an_eps_that_fp16_has() -> None:
    names = ["plain", *(" + ".join(METHODS[:count]) for count in range(1, 5))]
    rungs = [f"fp16, {name}, eps 0.0001" for name in names]
    rungs += ["fp16, without kahan_gradients", "fp16, six methods"]
    ladder = {name: arm(-900.0 + 100 * step) for step, name in enumerate(rungs)}
    found = claims_of(ladder)[4]
    assert found[0] == Verdict.held and "Pendulum-v1, eps 0.0001, hadam: -12.5%" in found[1]
    worse = ladder | {"fp16, hadam + softplus, eps 0.0001": arm(-950.0)}
    assert claims_of(worse)[4][0] == Verdict.failed


def test_constants_of_loss_scaling_and_sums_of_the_actor() -> None:
    failed: Seeds = dict.fromkeys(range(5))
    amp = "fp16, loss scaling, PyTorch's constants"
    assert claims_of({"fp16, loss scaling": failed})[6][0] == Verdict.unmeasured
    assert claims_of({"fp16, loss scaling": failed, amp: failed})[6][0] == Verdict.held
    arms = {"fp16, loss scaling": arm(-900.0), amp: arm(-899.0)}
    assert claims_of(arms)[6][0] == Verdict.held
    assert claims_of(arms | {amp: arm(-700.0)})[6][0] == Verdict.failed
    for one_side in ({amp: failed}, {"fp16, loss scaling": failed}):
        assert claims_of(arms | one_side)[6][0] == Verdict.failed
    assert claims_of(arms | {"fp16, loss scaling": arm(-900.0) | {0: None}})[6][0] != Verdict.held
    arms = {"fp16, six methods": arm(-150.0), "fp16, six methods and kahan_actor": arm(-151.0)}
    assert claims_of(arms)[13][0] == Verdict.held
    assert claims_of(arms | {"fp16, six methods": arm(-180.0)})[13][0] == Verdict.failed


def test_pixels_and_draws_are_claims_of_their_own() -> None:
    arms = {"fp32": arm(-150.0), "fp16, six methods": arm(-151.0)}
    found = judge(LowPrecisionEvidence({"Pendulum-v1 from pixels": arms}, {"Pendulum-v1": arms}))
    verdicts = {claim.number: claim.verdict for claim in found}
    assert (verdicts[1], verdicts[8], verdicts[12]) == (
        Verdict.unmeasured, Verdict.held, Verdict.held,
    )  # fmt: skip


def test_recipes_of_one_seed_each_are_draws(tmp_path: Path) -> None:
    for seed, rate in enumerate((1e-3, 2e-3, 3e-3)):
        for form in ("fp32", "fp16"):
            more = {"learning_rate": rate, "train.timesteps": 80}
            run = low_precision_training(tmp_path / f"{form}-{seed}", form, seed=seed, **more)
            games = qpd.evaluate(run, episodes=1).to_json()
            with TrainingRun.create(run.path, run.recipe) as opened:
                opened.record_evaluation("teacher", games)
    found = LowPrecisionEvidence.of([tmp_path])
    assert not found.tasks and set(found.draws) == {"Pendulum-v1"}
    assert {arm: len(seeds) for arm, seeds in found.draws["Pendulum-v1"].items()} == {
        "fp32": 3, "fp16, six methods": 3,
    }  # fmt: skip


def test_significands() -> None:
    arms = {"fp16, six methods": arm(-150.0), "e5m6, six methods": arm(-160.0)}
    assert claims_of(arms)[7][0] == Verdict.unmeasured
    steep = claims_of(arms | {"e5m5, six methods": arm(-900.0) | {0: -900.8, 4: -899.2}})[7]
    assert steep == (Verdict.held, "Pendulum-v1: 10 bits -150, 6 bits -160, 5 bits -900")
    assert claims_of(arms | {"e5m5, six methods": arm(-161.0)})[7][0] == Verdict.failed
    failed: Seeds = dict.fromkeys(range(5))
    assert claims_of(arms | {"e5m5, six methods": failed})[7][0] == Verdict.held
    # All that 10 bits have is lost at 6 already.
    lost = {"e5m6, six methods": failed, "e5m5, six methods": failed}
    assert claims_of(arms | lost)[7][0] == Verdict.failed
    none = claims_of(arms | lost | {"fp16, six methods": failed})
    assert none[7][0] == Verdict.unmeasured


def test_arms_have_names() -> None:
    assert TrainPrecision().named() == "fp32"
    assert TrainPrecision(format="fp16").named() == "fp16, six methods"
    assert TrainPrecision(format="e5m7", methods=[]).named() == "e5m7, plain"
    rest = [method for method in METHODS if method != "normal"]
    assert TrainPrecision(format="fp16", methods=rest).named() == "fp16, without normal"
    mixed = TrainPrecision(format="fp16", methods=[], baseline="mixed_precision")
    assert mixed.named() == "fp16, mixed precision"
    both = TrainPrecision(format="fp16", methods=["softplus", "hadam"], eps=1e-4)
    assert both.named() == "fp16, hadam + softplus, eps 0.0001"
    amp = mixed.model_copy(update={"baseline": "loss_scaling", "loss_scale": "dynamic"})
    assert amp.named() == "fp16, loss scaling, PyTorch's constants"
    more = TrainPrecision(format="fp16", methods=[*METHODS, "kahan_actor"])
    assert more.named() == "fp16, six methods and kahan_actor"


def test_a_failure_is_recorded_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(qpd.UserError, match="learning failed after"):
        low_precision_training(tmp_path / "plain", **{"precision.methods": []})
    assert (TrainingRun.open(tmp_path / "plain").phase.failed_at or 0) > 0
    code, out, err = call(capsys, "analyze", "paper", tmp_path, "--paper", "low-precision-sac")
    assert code == 0 and "1 of 1 trainings ended in NaN" in " ".join(out.split()), err
    low_precision_training(tmp_path / "whole")
    only = tmp_path / "whole"
    code, _, err = call(capsys, "analyze", "paper", only, "--paper", "low-precision-sac")
    assert code == 2 and "no training of SAC was evaluated" in err


@pytest.mark.parametrize(
    ("binades", "seeds", "verdict", "span"),
    [
        (20, 3, Verdict.held, "5.90"),  # 98% of 20 binades of as many gradients, log10(2) each
        (13, 3, Verdict.failed, "3.84"),
        (20, 2, Verdict.undecided, "5.90"),
    ],
)
def test_the_span_of_gradients(binades: int, seeds: int, verdict: Verdict, span: str) -> None:
    counts = [0] * (HIGHEST - LOWEST + 1)
    counts[100 : 100 + binades] = [1000] * binades
    found = GradientExponents(tuple(counts), 0, 0)
    evidence = LowPrecisionEvidence({}, {}, {f"seed {seed}": found for seed in range(seeds)})
    claim = judge(evidence)[10]
    assert claim.verdict == verdict and f"seed 0 {span}" in claim.evidence


def test_methods_are_counted_once_whatever_the_tasks() -> None:
    arms = {"fp32": arm(900.0), "fp16, coercion": arm(100.0), "fp16, six methods": arm(900.0)}
    arms |= {f"fp16, without {method}": arm(500.0) for method in METHODS[:2]}
    tasks = {name: arms for name in ("cheetah", "walker", "cup")}
    found = {claim.number: claim for claim in judge(LowPrecisionEvidence(tasks))}
    unmeasured = [claim.evidence for claim in found.values() if claim.verdict == Verdict.unmeasured]
    assert any("1 of 3 baselines" in text for text in unmeasured)
    assert any(f"2 of {len(METHODS)} methods" in text for text in unmeasured)


def test_an_arm_in_nan_is_below_none_that_is_in_nan_or_was_not_measured() -> None:
    failed: Seeds = dict.fromkeys(range(5))
    without = {f"fp16, without {method}": failed for method in METHODS}
    assert claims_of(without)[5][0] == Verdict.unmeasured
    assert claims_of(without | {"fp16, six methods": failed})[5][0] != Verdict.held
    assert claims_of(without | {"fp16, six methods": arm(500.0)})[5][0] == Verdict.held
    baselines = {
        f"fp16, {name}": failed for name in ("coercion", "loss scaling", "mixed precision")
    }
    assert claims_of(baselines | {"fp32": failed})[3][0] != Verdict.held
    assert claims_of(baselines | {"fp32": arm(500.0)})[3][0] == Verdict.held
