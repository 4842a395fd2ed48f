"""The training step: the compiled form and the fast arithmetic against the plain ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from qpd.actions import Discrete
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.recipe.training_phases import DistillSettings, FinetuneSettings, RewardSettings
from qpd.replay.sample import ReplaySample
from qpd.students import Student, architecture_for
from qpd.training.optimizer import make_optimizer
from qpd.training.plan import PhasePlan
from qpd.training.step import TrainStep

torch.set_num_threads(1)


def never() -> Any:
    raise AssertionError("a step does not play")


def batch(size: int, seed: int) -> ReplaySample:
    rng = torch.Generator().manual_seed(seed)
    return ReplaySample(
        torch.randint(0, 256, (size, 4, 21, 21, 16), generator=rng, dtype=torch.uint8),
        3 * torch.randn(size, 4, generator=rng),
        torch.randn(size, generator=rng),
        torch.randint(0, 4, (size,), generator=rng),
        torch.log(torch.rand(size, generator=rng)),
        torch.randn(size, generator=rng),
    )


def trained(module: torch.nn.Module, settings: Any, reward: Any = None) -> torch.Tensor:
    """The losses `[steps, 3]` of six steps, the last on a smaller batch."""
    plan = PhasePlan(
        "distill", settings, Discrete(4), 0.5, 3.0, 1.0, 1, never, never, "divergence", reward
    )
    step = TrainStep(plan, module, make_optimizer(module, settings, 3.0))
    return torch.stack([step(batch(8 if seed < 5 else 5, seed)) for seed in range(6)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("kind", ["distill", "finetune", "reward"])
def test_the_compiled_step_is_the_plain_one(kind: str) -> None:
    student: torch.nn.Module = Student(architecture_for("XXS", (4, 84, 84), 4), 0)
    settings: Any = DistillSettings(precision="fp32", compile="off")
    reward = None
    if kind != "distill":
        student = QuantizedStudent(student, QuantizationConfig(learned_ranges=True))
        student.activation_ranges.data.fill_(2.0)
        settings = FinetuneSettings(precision="fp32", compile="off", lr=1e-3)
        reward = RewardSettings(imitation=0.5) if kind == "reward" else None
    other = copy.deepcopy(student)
    plain = trained(student, settings, reward)
    compiled = trained(other, settings.model_copy(update={"compile": "on"}), reward)
    torch.testing.assert_close(compiled[0], plain[0], rtol=1e-4, atol=1e-5)
    # Sums in another order: a level may round the other way, and later steps start from there.
    torch.testing.assert_close(compiled, plain, rtol=0.02, atol=0.005)
    assert plain[0, 0] != plain[4, 0]  # it does train


@pytest.mark.parametrize(
    ("settings", "reward", "shared"),
    [
        (DistillSettings(compile="off"), None, True),
        (DistillSettings(compile="auto"), None, True),
        (DistillSettings(compile="on"), None, False),
        (FinetuneSettings(), None, True),
        (FinetuneSettings(), RewardSettings(), False),
    ],
)
def test_draws_are_shared_unless_compiled_or_rewarded(
    settings: Any, reward: RewardSettings | None, shared: bool
) -> None:
    module = torch.nn.Linear(2, 2)
    plan = PhasePlan(
        "distill", settings, Discrete(4), 0.5, 3.0, 1.0, 1, never, never, "divergence", reward
    )
    step = TrainStep(plan, module, torch.optim.SGD(module.parameters()))
    assert step.reads_shared_frames == shared


def test_bfloat16_trains_as_float32_does() -> None:
    """One step's losses agree to the 8 bits of bfloat16; four more do not run apart."""
    student = Student(architecture_for("XXS", (4, 84, 84), 4), 0)
    other = copy.deepcopy(student)
    exact = trained(student, DistillSettings(precision="fp32"))
    fast = trained(other, DistillSettings(precision="bf16"))
    torch.testing.assert_close(fast[0], exact[0], rtol=0.02, atol=0.01)
    torch.testing.assert_close(fast, exact, rtol=0.1, atol=0.05)
