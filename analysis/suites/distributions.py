"""Distributions of an agent's weights and activations, layer by layer, and what rounding does.

Weights of the layers that act; activations are what each layer sees in games of the agent's own,
quantized nowhere. QuaRL's Figures 3 to 6 show weights of whole networks under one symmetric grid;
here each layer has its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from qpd.agents.agent_games import AgentGames
from qpd.agents.quantized_agent import agent_policy, has_one_scale
from qpd.analysis.figure_style import COLOURS, PAGE_WIDTH, new_figure
from qpd.analysis.returns.return_rows import ShownTable
from qpd.quantization.quantization_error import sqnr_db
from qpd.quantization.weight_quantizer import GRANULARITIES, WeightQuantizer
from qpd.runs.played_environment import EnvironmentWish, environment_of
from qpd.runs.progress import Progress
from qpd.teachers import Teacher
from qpd.teachers.networks.actor import activate, actor_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BITS = (8, 4)
_BINS, _MOST_STATES = 60, 1024


@dataclass(frozen=True)
class LayerDistribution:
    """A layer's `weights`, float `[out, in, ...]`, and the `inputs` that it sees, float `[n, ...]`.

    `sqnr` are decibels by number of bits and what shares a range.
    """

    name: str
    weights: np.ndarray
    inputs: np.ndarray
    sqnr: dict[tuple[int, str], float]


def layer_distributions(
    teacher: Teacher, wish: EnvironmentWish, progress: Progress
) -> list[LayerDistribution]:
    """Return the acting layers of an agent; it plays 16 games for the activations."""
    actor = actor_of(teacher.network, teacher.activation)
    games = AgentGames(teacher, environment_of(teacher, wish).source, 1, 0)
    try:
        states = games.visited_states(agent_policy(teacher, actor), progress)[:_MOST_STATES]
    finally:
        games.close()
    found = []
    with torch.no_grad():
        values = teacher.preprocess(torch.from_numpy(states))
        for layer in actor.layers:
            sqnr: dict[tuple[int, str], float] = {}
            for bits in BITS:
                for per in GRANULARITIES:
                    rounded = WeightQuantizer("affine", bits, per).quantized(
                        layer.weight, columns=layer.columns, one_scale=has_one_scale(teacher, layer)
                    )
                    sqnr[bits, per] = sqnr_db(layer.weight, rounded)
            found.append(LayerDistribution(layer.name, layer.weight.numpy(), values.numpy(), sqnr))
            values = activate(layer, layer(values))
    return found


def distribution_rows(agent: str, layers: list[LayerDistribution]) -> pd.DataFrame:
    """Return a row for each layer: ranges over sigma, zeros among its inputs, SQNR in dB."""
    rows = []
    for layer in layers:
        row: dict[str, object] = {
            "agent": agent,
            "layer": layer.name,
            "weights": layer.weights.size,
            "weight_range_per_sigma": _range_per_sigma(layer.weights),
            "input_range_per_sigma": _range_per_sigma(layer.inputs),
            "input_zeros": float((layer.inputs == 0.0).mean()),
            "columns_apart": _columns_apart(layer.weights),
        }
        row |= {f"sqnr_{bits}_{per}": value for (bits, per), value in layer.sqnr.items()}
        rows.append(row)
    return pd.DataFrame(rows)


def distribution_tables(table: pd.DataFrame) -> list[ShownTable]:
    """Return the rows as text, a table for each agent."""
    header = ["layer", "range / sigma", "of inputs", "zeros", "columns apart"]
    header += [f"{bits}, {per}" for bits in BITS for per in GRANULARITIES]
    shown = []
    for agent, mine in table.groupby("agent", sort=False):
        rows = [
            [
                row["layer"],
                f"{row['weight_range_per_sigma']:.1f}",
                f"{row['input_range_per_sigma']:.1f}",
                f"{row['input_zeros']:.0%}",
                f"{row['columns_apart']:,.0f}x",
                *[f"{row[f'sqnr_{bits}_{per}']:.1f}" for bits in BITS for per in GRANULARITIES],
            ]
            for row in mine.to_dict("records")
        ]
        shown.append(ShownTable(f"{agent}: weights, inputs, and SQNR in dB", header, rows))
    return shown


def distributions_figure(agent: str, layers: list[LayerDistribution]) -> Figure:
    """Draw histograms of weights (left) and inputs (right) of each layer, counts on a log scale."""
    figure = new_figure(PAGE_WIDTH, 1.2 * len(layers) + 0.4)
    axes = figure.subplots(len(layers), 2, squeeze=False)
    for line, layer in zip(axes, layers, strict=True):
        for axis, values, colour in zip(line, (layer.weights, layer.inputs), COLOURS, strict=False):
            axis.hist(values.ravel(), bins=_BINS, color=colour, log=True)
        line[0].set_ylabel(f"{layer.name}\nrange / sigma {_range_per_sigma(layer.weights):.1f}")
    axes[0][0].set_title(f"{agent}: weights")
    axes[0][1].set_title("inputs of the layer in its own games")
    return figure


def _range_per_sigma(values: np.ndarray) -> float:
    sigma = float(values.std())
    return float(np.ptp(values)) / sigma if sigma > 0.0 else float("nan")


def _columns_apart(weights: np.ndarray) -> float:
    """Return the widest column's range over the narrowest one's: why one range may not fit all."""
    by_column = np.moveaxis(weights, 1, 0).reshape(weights.shape[1], -1)
    widths = np.maximum(by_column.max(1), 0.0) - np.minimum(by_column.min(1), 0.0)
    positive = widths[widths > 0.0]
    return float(positive.max() / positive.min()) if len(positive) else float("nan")
