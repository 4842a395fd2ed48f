"""The compiled step of vectors: the losses and gradients of the plain one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qpd.actions import ActionSpace, Box, Discrete
from qpd.losses.objective import Objective
from qpd.machine.compiled_graph import CompileError
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.recipe.training_phases import DistillSettings, FinetuneSettings
from qpd.replay.sample import ReplaySample
from qpd.students import Student
from qpd.students.size_grid import architecture_for
from qpd.training.compiled_backward import (
    LEAST_UPDATES,
    CompiledBackward,
    can_compile,
)
from qpd.training.mixed_precision import MixedPrecision
from qpd.training.step import backward

torch.set_num_threads(1)

FEATURES, BATCH = 11, 64
ARM = Box((-1.0, -1.0, -1.0), (1.0, 1.0, 1.0), "tanh")


def student(activation: str, is_quantized: bool) -> Student | QuantizedStudent:
    torch.manual_seed(0)
    found = Student(architecture_for("mlp-16-16", (FEATURES,), 3, activation=activation), 0)
    return QuantizedStudent(found, QuantizationConfig()) if is_quantized else found


def batch(actions: ActionSpace, seed: int) -> ReplaySample:
    rng = torch.Generator().manual_seed(seed)
    values = torch.randn(BATCH, generator=rng)
    labels = torch.randn(BATCH, actions.num_labels, generator=rng)
    seen = 1.4 * torch.rand(BATCH, FEATURES, generator=rng) - 0.2
    return ReplaySample(seen, labels, values, values, values, values)


def gradients(module: nn.Module) -> list[Tensor | None]:
    """Take the gradients away."""
    found = [parameter.grad for parameter in module.parameters()]
    for parameter in module.parameters():
        parameter.grad = None
    return found


def close(found: Tensor, expected: Tensor, is_quantized: bool) -> None:
    """Within rounding, or within a level that rounds the other way."""
    share = 0.02 if is_quantized else 1e-5
    bound = share * float(expected.abs().max()) + 1e-6
    torch.testing.assert_close(found, expected, rtol=0.0, atol=bound)


@pytest.mark.parametrize(
    ("activation", "is_quantized", "actions", "weight"),
    [
        ("relu", False, ARM, 0.5),
        ("relu", True, ARM, 0.5),
        pytest.param("relu", True, Discrete(3), 1.0, marks=pytest.mark.slow),
        pytest.param("tanh", False, Discrete(3), 0.5, marks=pytest.mark.slow),
        pytest.param("tanh", True, ARM, 1.0, marks=pytest.mark.slow),
    ],
)
def test_losses_and_gradients_are_the_plain_steps(
    activation: str, is_quantized: bool, actions: ActionSpace, weight: float
) -> None:
    module = student(activation, is_quantized)
    settings = FinetuneSettings() if is_quantized else DistillSettings()
    passes = MixedPrecision(module, settings, None)
    objective = Objective(actions, "forward_kl", weight, 1.0, 1.0)
    compiled = CompiledBackward(passes, objective, torch.float32)
    for seed in (0, 1):
        sample = batch(actions, seed)
        assert compiled.takes(sample)
        losses, by_compiler = compiled(sample), gradients(module)
        plain, by_autograd = backward(passes, sample, objective, torch.float32), gradients(module)
        close(losses, plain, is_quantized)
        for found, expected in zip(by_compiler, by_autograd, strict=True):
            assert (found is None) == (expected is None)
            if found is not None and expected is not None:
                close(found, expected, is_quantized)
        with torch.no_grad():  # what learns in between is seen
            for parameter in module.parameters():
                parameter.mul_(1.1)
    assert not compiled.takes(ReplaySample(*(field[:5] for field in vars(sample).values())))


@pytest.mark.parametrize(
    ("wanted", "updates", "expected"),
    [("auto", LEAST_UPDATES, True), ("auto", LEAST_UPDATES - 1, False),
     ("on", 1, True), ("off", LEAST_UPDATES, False)],
)  # fmt: skip
def test_what_is_compiled(wanted: str, updates: int, expected: bool) -> None:
    assert can_compile(student("relu", True), wanted, updates) is expected
    frames = Student(architecture_for("XXS", (4, 84, 84), 4), 0)
    assert not can_compile(frames, wanted, updates)


def test_without_a_compiler(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert not can_compile(student("relu", False), "auto", LEAST_UPDATES)
    with pytest.raises(CompileError, match=r"^compile: on needs a C\+\+ compiler: g\+\+"):
        can_compile(student("relu", False), "on", 1)


# A step that auto compiles, with a compiler that fails.
BROKEN = """
import torch
from tests.training.test_compiled_backward import batch, student, ARM
from qpd.recipe.training_phases import DistillSettings
from qpd.training.compiled_backward import LEAST_UPDATES
from qpd.training.optimizer import make_optimizer
from qpd.training.plan import PhasePlan
from qpd.training.step import TrainStep
module = student("relu", False)
for wanted in ("auto", "on"):
    settings = DistillSettings(compile=wanted)
    plan = PhasePlan("distill", settings, ARM, 0.5, 1.0, 1.0, 1, None, None, "return")
    step = TrainStep(plan, module, make_optimizer(module, settings), None, LEAST_UPDATES)
    print([bool(step(batch(ARM, seed)).isfinite().all()) for seed in (0, 1)], flush=True)
"""


def test_a_compiler_that_fails(tmp_path: Path) -> None:
    """auto goes on without it, and says so; on is an error."""
    env = os.environ | {"CXX": "false", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", BROKEN], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[True, True]\n"
    assert "; training goes on without it" in done.stderr
    assert "CompileError: torch.compile failed: " in done.stderr and done.returncode == 1
