"""Updates of a phase in few bits: the paper's procedure, by hand and where it matters."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor

from qpd.actions import Discrete
from qpd.losses.objective import Objective
from qpd.numerics.float_format import FloatFormat
from qpd.numerics.loss_scale import LossScale
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.recipe.training_phases import (
    DistillSettings,
    FinetuneSettings,
    RewardSettings,
    TrainingPhase,
)
from qpd.replay.sample import ReplaySample
from qpd.students import Student, architecture_for
from qpd.training.gradient_scaling import GradientScaling
from qpd.training.optimizer import make_optimizer
from qpd.training.plan import PhasePlan
from qpd.training.step import TrainStep

torch.set_num_threads(1)
FP16 = FloatFormat.parse("fp16")
FEATURES, ACTIONS = 3, 4


def never() -> Any:
    raise AssertionError("a step does not play")


def batch(size: int = 8, seed: int = 0) -> ReplaySample:
    rng = torch.Generator().manual_seed(seed)
    return ReplaySample(
        torch.rand(size, FEATURES, generator=rng),
        3 * torch.randn(size, ACTIONS, generator=rng),
        torch.randn(size, generator=rng),
        torch.randint(0, ACTIONS, (size,), generator=rng),
        torch.log(torch.rand(size, generator=rng)),
        torch.randn(size, generator=rng),
    )


def student(seed: int = 0) -> Student:
    return Student(architecture_for("mlp-16", (FEATURES,), ACTIONS), seed)


def step_of(
    module: torch.nn.Module, settings: TrainingPhase, reward: RewardSettings | None = None
) -> tuple[TrainStep, GradientScaling]:
    plan = PhasePlan(
        "distill", settings, Discrete(ACTIONS), 0.5, 3.0, 1.0, 1, never, never, "divergence", reward
    )
    scaling = GradientScaling.of(settings)
    assert scaling is not None
    return TrainStep(plan, module, make_optimizer(module, settings), scaling), scaling


def weights(module: torch.nn.Module) -> Tensor:
    return torch.cat([each.detach().flatten() for each in module.parameters()])


def test_an_update_is_the_papers_by_hand() -> None:
    """Float16 tensors, products in float32, one rounding on each write; S = 128; plain SGD."""
    settings = DistillSettings(precision="fp16", loss_scale=128.0, optimizer="sgd", lr=0.25)
    module, sample = student(), batch()
    before = copy.deepcopy(module)
    step, _ = step_of(module, settings)
    step(sample)

    def half(x: Tensor) -> Tensor:
        return x.half().float()

    w, b = half(before.layers["linear1"].weight), half(before.bias("linear1"))
    heads = [before.actor, before.critic]
    matrix = half(torch.cat([each.weight for each in heads]).detach())
    bias = half(torch.cat([each.bias for each in heads]).detach())
    levels = half(half(sample.inputs) * 255.0)  # the input range is [0, 1]
    x = half(levels / 255.0)
    hidden = half(x @ w.t() + b).relu()
    both = half(hidden @ matrix.t() + bias)
    outputs = (both[:, :-1], both[:, -1])
    objective = Objective(Discrete(ACTIONS), "forward_kl", 0.5, 3.0, 1.0)
    (actors, by_outputs), (critics, by_values) = objective.gradients(outputs, sample)
    slopes = objective.slopes(float(actors.mean()), float(critics.mean()))
    given = torch.cat([by_outputs * slopes[0], by_values[:, None] * slopes[1]], dim=1)
    given = half(given / len(sample.values) * 128.0)
    by_hidden = half(given @ matrix) * (hidden > 0)
    expected = {
        "layers.linear1.weight": half(by_hidden.t() @ x),
        "layers.linear1.bias": half(by_hidden.sum(0)),
        "actor.weight": half(given.t() @ hidden)[:-1],
        "critic.weight": half(given.t() @ hidden)[-1:],
    }
    masters, after = dict(before.named_parameters()), dict(module.named_parameters())
    for name, gradient in expected.items():
        # float32 sums in another order may round to the neighbouring float16: one unit, 2^-10.
        moved = (masters[name] - after[name]).detach()
        torch.testing.assert_close(moved, 0.25 * gradient / 128.0, rtol=2e-3, atol=1e-6, msg=name)
    # The masters are no float16 numbers.
    assert not torch.equal(FP16.round(weights(module)), weights(module))


KINDS: dict[str, tuple[Any, RewardSettings | None]] = {
    "distill": (DistillSettings, None),
    "finetune": (FinetuneSettings, None),
    "reward": (FinetuneSettings, RewardSettings(imitation=0.5)),
}


def made(kind: str, **changes: Any) -> tuple[torch.nn.Module, TrainStep, GradientScaling]:
    """A student of phase 1 or 3, under fp16 and SGD unless changed."""
    settings, reward = KINDS[kind]
    module: torch.nn.Module = student()
    if kind != "distill":
        module = QuantizedStudent(student(), QuantizationConfig())
    chosen = settings(**{"precision": "fp16", "optimizer": "sgd", "lr": 1.0, **changes})
    return module, *step_of(module, chosen, reward)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_below_the_format_are_lost_and_a_scale_keeps_them(kind: str) -> None:
    moved = {}
    # Gradients by the outputs are below 2^11: times 2^-36 they are below half of 2^-24.
    for factor, scale in ((2.0**-12, 2.0**-24), (2.0**-12, 2.0**10), (1.0, 1.0)):
        module, step, _ = made(kind, loss_scale=scale, lr=8.0)
        before, given = weights(module), step._mixed.backward
        step._mixed.backward = lambda outputs, slopes, given=given, factor=factor: given(  # type: ignore[method-assign]
            outputs, [each * factor for each in slopes]
        )
        step(batch())
        moved[factor, scale] = weights(module) - before
    assert not moved[2.0**-12, 2.0**-24].any()
    whole = moved[1.0, 1.0].norm()
    kept = moved[2.0**-12, 2.0**10] * 2.0**12
    assert (kept - moved[1.0, 1.0]).norm() < 0.02 * whole


@pytest.mark.parametrize("kind", KINDS)
def test_overflow_skips_the_update_and_halves_the_scale(kind: str) -> None:
    module, step, scaling = made(kind, loss_scale="dynamic")
    scaling.loss_scale = LossScale(2.0**24, is_dynamic=True)
    before = weights(module)
    step(batch())
    assert torch.equal(weights(module), before)
    assert scaling.loss_scale == LossScale(2.0**23, is_dynamic=True, skipped=1)
    for _ in range(16):
        step(batch())
    assert scaling.loss_scale.skipped < 17
    assert weights(module).isfinite().all() and not torch.equal(weights(module), before)


@pytest.mark.parametrize("kind", KINDS)
def test_masters_keep_the_small_updates_that_rounded_weights_lose(kind: str) -> None:
    """Half an update's unit is 2^-12 of a weight of about 1/2: steps of 1e-6 leave it alone."""
    for masters in (True, False):
        module, step, _ = made(kind, lr=1e-6, master_weights=masters, loss_scale=16.0)
        with torch.no_grad():
            for each in module.parameters():
                each.copy_(FP16.round(each.sign().where(each != 0, 1.0) * (0.5 + each.abs())))
        learner = module.student if isinstance(module, QuantizedStudent) else module
        before = weights(learner)
        for _ in range(3):
            step(batch())
        assert torch.equal(weights(learner), before) is not masters
        assert torch.equal(FP16.round(weights(learner)), weights(learner)) is not masters


def test_phase_3_computes_on_the_integer_grid_whatever_the_format() -> None:
    losses = {}
    for precision in ("fp32", "e5m2"):
        _, step, _ = made("finetune", precision=precision, loss_scale=2.0)
        losses[precision] = step(batch())
    assert torch.equal(losses["fp32"], losses["e5m2"])


def test_phase_1_computes_in_the_format() -> None:
    _, exact, _ = made("distill", precision="fp32", loss_scale=2.0)
    _, coarse, _ = made("distill", precision="e5m2", loss_scale=2.0)
    assert not torch.equal(exact(batch()), coarse(batch()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_counting_changes_no_number(kind: str, precision: str) -> None:
    module, step, scaling = made(kind, precision=precision, gradient_exponents=2)
    settings, reward = KINDS[kind]
    plain: torch.nn.Module = student()
    if kind != "distill":
        plain = QuantizedStudent(student(), QuantizationConfig())
    chosen = settings(precision=precision, optimizer="sgd", lr=1.0)
    assert GradientScaling.of(chosen) is None
    plan = PhasePlan(
        "distill", chosen, Discrete(ACTIONS), 0.5, 3.0, 1.0, 1, never, never, "divergence", reward
    )
    other = TrainStep(plan, plain, make_optimizer(plain, chosen))
    for seed in range(3):
        assert torch.equal(step(batch(seed=seed)), other(batch(seed=seed)))
    assert torch.equal(weights(module), weights(plain))
    # Updates 1 and 3 were counted: every weight, and what the hidden layer returns.
    learning = sum(each.numel() for each in module.parameters() if each.requires_grad)
    used = learning if kind != "reward" else scaling.weights.total // 2
    assert scaling.weights.total == 2 * used
    assert scaling.activations.total >= 2 * 8 * 16


def test_counts_are_of_the_gradients_without_the_scale() -> None:
    counted = []
    for scale in (1.0, 1024.0):
        _, step, scaling = made("distill", precision="fp32", loss_scale=scale, gradient_exponents=1)
        step(batch())
        counted.append((scaling.weights, scaling.activations))
    assert counted[0] == counted[1]


def test_progress_survives_a_checkpoint() -> None:
    _, step, scaling = made("distill", gradient_exponents=1)
    step(batch())
    scaling.end_epoch(1)
    other = GradientScaling(LossScale(), 1)
    other.load_json(json.loads(json.dumps(scaling.to_json())))
    assert other == scaling and other.epochs[0].weights.total > 0


@pytest.mark.parametrize("kind", ["distill", "finetune"])
def test_the_second_update_computes_with_what_the_first_learned(kind: str) -> None:
    _, step, _ = made(kind, loss_scale=16.0, lr=0.05)
    losses = [float(step(batch())[0]) for _ in range(6)]
    assert losses[1] < losses[0] and losses[-1] < losses[1]
