"""One agent at one precision: the policy, and what can be said of it without playing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qpd.actions import ActingRule, Box
from qpd.agents.agent_run import IntegerAgent, integer_agent
from qpd.agents.agent_student import why_no_student
from qpd.agents.precision import Precision
from qpd.agents.quantized_agent import (
    activation_ranges,
    agent_policy,
    has_one_scale,
    quantized_actor,
)
from qpd.agents.results import Arithmetic, Cell, LayerNoise
from qpd.environments.policy import Policy
from qpd.integer.constant_bytes import constant_bytes
from qpd.integer.integer_student import IntegerEngine
from qpd.quantization.quantization_error import dequantized_weight, sqnr_db
from qpd.quantization.weight_quantizer import WeightQuantizer
from qpd.teachers import Teacher
from qpd.teachers.networks.actor import Actor, actor_of

_FLOAT_BYTES = 4
_RANGE_BYTES = 8  # both ends, float32


@dataclass(frozen=True)
class QuantizedAgent:
    """A policy, and its cell but for the games; `integers` where it runs in integers."""

    policy: Policy
    cell: Cell
    integers: IntegerAgent | None = None


def float_cell(teacher: Teacher) -> Cell:
    """Return the cell of the agent as it is."""
    actor = actor_of(teacher.network, teacher.activation)
    layers = tuple(_noise(layer.name, layer.weight, layer.weight) for layer in actor.layers)
    return Cell("fp32", num_bytes=_FLOAT_BYTES * actor.num_parameters, layers=layers)


def arithmetic_of(teacher: Teacher, precision: Precision) -> Arithmetic:
    """Return what computes an agent at a precision."""
    if precision.activation_bits is None:
        return "float"
    has_integers = precision.asks_for_integers and why_no_student(teacher) is None
    return "integers" if has_integers else "simulated"


def quantize_agent(
    teacher: Teacher,
    precision: Precision,
    states: np.ndarray,
    episodes: int,
    seed: int,
    stacks_frames: bool | None = None,
) -> QuantizedAgent:
    """Quantize an agent; `states` `[n, ...]` are what it visits in fp32.

    `stacks_frames` is as in StudentArchitecture. Raises HalfRangeError and AgentQuantizationError.
    """
    quantizer, bits = precision.quantizer, precision.activation_bits
    assert quantizer is not None
    if arithmetic_of(teacher, precision) == "integers":
        assert bits is not None
        agent = integer_agent(teacher, states, quantizer, bits, episodes, seed, stacks_frames)
        policy: Policy = IntegerEngine(agent.integers)
        layers, num_bytes = _integer_layers(agent), _integer_bytes(agent)
    else:
        agent = None
        actor = quantized_actor(teacher, quantizer)
        ranges = None if bits is None else activation_ranges(teacher, actor, states, bits)
        policy = agent_policy(teacher, actor, ranges)
        exact = actor_of(teacher.network, teacher.activation).layers
        pairs = zip(exact, actor.layers, strict=True)
        layers = tuple(_noise(own.name, own.weight, mine.weight) for own, mine in pairs)
        num_bytes = _bytes(teacher, actor, quantizer, bits)
    flips, error = action_changes(teacher, policy, states)
    cell = Cell(
        precision.name,
        precision.scheme,
        precision.per,
        arithmetic_of(teacher, precision),
        num_bytes,
        flips,
        error,
        layers,
    )
    return QuantizedAgent(policy, cell, agent)


def action_changes(
    teacher: Teacher, policy: Policy, states: np.ndarray
) -> tuple[float | None, float | None]:
    """Return flips of the best action, or the error of continuous ones; the other is None.

    The error is the mean of |difference| over states and actions, as a share of the range.
    """
    greedy, rng = ActingRule("greedy"), np.random.default_rng(0)
    own = agent_policy(teacher, actor_of(teacher.network, teacher.activation))
    taken = []
    for each in (own, policy):
        outputs = [each(part) for part in np.array_split(states, -(-len(states) // 256))]
        taken.append(each.actions.act(np.concatenate(outputs), greedy, rng))
    if isinstance(teacher.actions, Box):
        low, high = teacher.actions.bounds
        apart = np.abs(taken[0] - taken[1]).reshape(len(states), -1)
        return None, float((apart / (high - low)).mean())
    return float(1.0 - teacher.actions.same(*taken).mean()), None


def _noise(name: str, exact: Tensor, quantized: Tensor) -> LayerNoise:
    deviation = float(exact.std(correction=0))
    spread = float(exact.max() - exact.min())
    found = sqnr_db(exact, quantized)
    return LayerNoise(
        name,
        spread / deviation if deviation > 0 else None,
        found if np.isfinite(found) else None,
        len(torch.unique(quantized)),
    )


def _integer_layers(agent: IntegerAgent) -> tuple[LayerNoise, ...]:
    """Return the noise of the weights that were rounded: balanced, in the inputs' units."""
    student, found = agent.simulation.student, []
    for position, layer in enumerate(agent.integers.layers):
        exact = student.layer(layer.shape.name).weight
        noise = _noise(layer.shape.name, exact, dequantized_weight(agent.simulation, position))
        distinct = len(np.unique(layer.weight))
        found.append(LayerNoise(noise.name, noise.range_per_sigma, noise.sqnr_db, distinct))
    return tuple(found)


def _integer_bytes(agent: IntegerAgent) -> int:
    layers, low = agent.integers.layers, agent.integers.input_low
    thresholds = agent.integers.action_thresholds
    found = constant_bytes(
        [layer.shape for layer in layers],
        [layer.bits for layer in layers],
        agent.integers.architecture.num_tables,
        0 if thresholds is None else len(thresholds),
    )
    return found + (0 if low is None else _RANGE_BYTES * len(low))


def _bytes(
    teacher: Teacher, actor: Actor, quantizer: WeightQuantizer, activation_bits: int | None
) -> int:
    """Return bytes of packed weights, float biases, and ranges."""
    total = sum(
        quantizer.num_bytes(
            layer.weight, columns=layer.columns, one_scale=has_one_scale(teacher, layer)
        )
        + _FLOAT_BYTES * len(layer.bias)
        for layer in actor.layers
    )
    if activation_bits is None:
        return total
    inputs = 0 if teacher.is_image else teacher.observation_shape[0]
    return total + _RANGE_BYTES * (inputs + len(actor.layers) - 1)
