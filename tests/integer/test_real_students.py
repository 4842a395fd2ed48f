"""Trained Breakout students on frames of the real game: the integers against their simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from qpd.actions import ActingRule
from qpd.environments.registry import make_vector_env
from qpd.integer.integer_student import IntegerEngine, IntegerStudent, reference_outputs
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.student_files.quantized import load_integer_student
from qpd.students import Student

RUNS = Path(__file__).parents[2] / "runs-reference"
COUNT = 4_000


@pytest.fixture(scope="module")
def observations() -> np.ndarray:
    """Observations from the games of an 8-bit student, uint8 `[COUNT, 4, 84, 84]`."""
    engine = IntegerEngine(
        load_integer_student(RUNS / "breakout-ppo-xxs" / "quantized.safetensors")
    )
    env, rng = make_vector_env("BreakoutNoFrameskip-v4", 16), np.random.default_rng(0)
    rule = ActingRule("sample")
    env.reset(0)
    seen: list[np.ndarray] = []
    while sum(map(len, seen)) < COUNT:
        seen.append(env.observations[env.acting])
        actions = np.zeros(16, np.int64)
        actions[env.acting] = engine.actions.act(engine(seen[-1]), rule, rng)
        env.step(actions)
    return np.concatenate(seen)[:COUNT]


def simulation_of(integers: IntegerStudent) -> QuantizedStudent:
    """The float simulation, as phase 3 has it, whose integers are these.

    With steps of 1 between layers, a channel's scale is its requantization gain.
    """
    student = Student(integers.architecture)
    bits = [layer.bits for layer in integers.layers]
    levels = integers.layers[0].levels
    config = QuantizationConfig(bits[1], int(levels).bit_length(), bits[0], bits[-1])
    simulation = QuantizedStudent(student, config)
    with torch.no_grad():
        simulation.activation_ranges.fill_(float(levels))
        step = 1.0 / 255.0
        for layer in integers.layers:
            unit = np.full(1, integers.output_scale)
            if layer.multiplier is not None and layer.shift is not None:
                unit = layer.multiplier.astype(np.float64) * 0.5 ** layer.shift.astype(np.float64)
            scale, module = torch.from_numpy(unit / step), student.layer(layer.shape.name)
            top = 2**layer.bits - 1
            view = (-1,) + (1,) * (layer.weight.ndim - 1)
            module.weight.copy_(torch.from_numpy(layer.weight) * (scale * top).view(view) / top)
            module.bias.copy_(torch.from_numpy(layer.bias * unit))
            simulation.weight_scales[layer.shape.name].copy_((scale * top).float())
            step = 1.0
    return simulation


@pytest.mark.parametrize(
    "run", ["breakout-ppo-xxs", "breakout-ppo-xxs-4bit", "breakout-ppo-xxs-2bit"]
)
def test_simulation_and_integers_agree_on_the_real_game(run: str, observations: np.ndarray) -> None:
    """The same action on 99.9% of 4,000 observations; logits within 1% of their spread."""
    integers = load_integer_student(RUNS / run / "quantized.safetensors")
    found = IntegerEngine(integers)(observations)
    with torch.no_grad():
        batches = torch.from_numpy(observations).split(512)
        simulation = simulation_of(integers)
        simulated = torch.cat([simulation(batch).actor for batch in batches]).numpy()
    assert (found.argmax(1) == simulated.argmax(1)).mean() >= 0.999
    spread = found.std()
    assert np.abs(found - simulated).max() <= 0.25 * spread
    assert np.abs(found - simulated).mean() <= 0.001 * spread
    np.testing.assert_array_equal(
        IntegerEngine(integers).integer_outputs(observations[:64]),
        reference_outputs(integers, observations[:64]),
    )
