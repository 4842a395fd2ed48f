"""Full-precision weights against the quantized ones, layer by layer, with their errors.

Quantized weights are read from the packed integers. Under `dorefa` (Eq. 5 as written) an integer n
stands for n / M; the layer's scale is lost. Otherwise it depends on the layer before: the
activation that one level stands for differs by channel, because phase 2 equalizes channels
(`qpd.quantization.equalization`), and no file records it. The biases reveal it up to their
rounding, as they are the same numbers in both students; the rest is a least-squares fit of the
channel's weights. The head has no such freedom: its scale is stored. Students with tables of
activations are not equalized: for them the fit is all. For Breakout's XXS student the errors found
this way are within 0.1 dB of the true ones at 4 bits and more, within 0.7 dB at 2 bits; channels of
few weights (an environment of 4 features) at 4 bits or less determine their scale less well.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from qpd.analysis.figure_style import COLOURS, PAGE_WIDTH, as_label, new_figure, series_look
from qpd.analysis.runs.distilled_student import find_distilled
from qpd.integer.integer_student import IntegerLayer, IntegerStudent
from qpd.runs.run_directory import RunDirectory
from qpd.runs.target import TargetError
from qpd.student_files.distilled import load_student
from qpd.student_files.quantized import load_integer_student
from qpd.students import Student
from qpd.students.student import FIRST_LINEAR, INPUT_LEVELS

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

_BINS = 60


@dataclass(frozen=True)
class LayerWeights:
    """One layer: `weight` of the distilled student, `quantized` in the same units and shape.

    `step` is the distance between neighbouring levels, float64, broadcastable to their shape.
    """

    name: str
    bits: int
    weight: np.ndarray
    quantized: np.ndarray
    step: np.ndarray

    @property
    def sqnr_db(self) -> float:
        """Signal-to-quantization-noise ratio, 10 log10(sum w^2 / sum (w - w_q)^2); inf if equal."""
        noise = float(np.square(self.weight - self.quantized).sum())
        signal = float(np.square(self.weight).sum())
        return float("inf") if noise == 0.0 else 10.0 * float(np.log10(signal / noise))

    @property
    def max_error_steps(self) -> float:
        """The largest |w - w_q| in steps: at most 0.5 unless a weight was clipped."""
        return float((np.abs(self.weight - self.quantized) / self.step).max())


def layer_weights(
    student: Student, quantized: IntegerStudent, scheme: str, phase: str = "ptq"
) -> list[LayerWeights]:
    """Pair the layers of a distilled student with those of the integer student made from it.

    `phase` is `ptq` or `qat`: phase 3 moves biases too, so they no longer reveal a scale.
    """
    if quantized.input_low is not None and quantized.input_high is not None:
        # Phase 2 begins with it: layer 1's weights go with the range of the features.
        student = copy.deepcopy(student)
        low, high = (torch.from_numpy(x) for x in (quantized.input_low, quantized.input_high))
        student.move_input_range(low, high)
    layers = []
    has_image = student.architecture.image_shape is not None
    # The activation that one level of each channel means.
    inputs = np.array([1.0 / (INPUT_LEVELS if has_image else quantized.input_levels)])
    beside = np.full(student.architecture.num_features, 1.0 / quantized.input_levels)
    for layer in quantized.layers:
        name = layer.shape.name
        weight = student.layer(name).weight.detach().double().numpy()
        # Layers are walked in order: each one's output scale is the next one's input scale.
        if scheme == "dorefa":
            unit = np.full((1,) * weight.ndim, 1.0 / (2**layer.bits - 1))
        elif quantized.tables:
            unit = _fitted_units(layer, weight)
        else:
            # The flattened convolution output keeps a channel's positions together, in blocks.
            joins = student.architecture.joins_features and name == FIRST_LINEAR
            features = beside if joins else beside[:0]
            positions = (weight.shape[1] - len(features)) // len(inputs)
            per_input = np.concatenate([np.repeat(inputs, positions), features])
            share = 1.0 / per_input.reshape(1, -1, *(1,) * (weight.ndim - 2))
            bias = student.bias(name).detach().double().numpy() if phase == "ptq" else None
            scales = _accumulator_scales(layer, weight, share, bias, quantized.output_scale)
            unit = scales.reshape(-1, *(1,) * (weight.ndim - 1)) * share
            if layer.multiplier is not None and layer.shift is not None:
                gain = layer.multiplier / 2.0**layer.shift
                # A dead channel has a gain of 0; any scale does for it, as nothing downstream
                # reads it.
                inputs = np.divide(scales, gain, out=np.ones_like(scales), where=gain > 0)
        # Levels are integers 2n - M, so neighbours are two units apart.
        layers.append(LayerWeights(name, layer.bits, weight, layer.weight * unit, 2.0 * unit))
    return layers


def _fitted_units(layer: IntegerLayer, weight: np.ndarray) -> np.ndarray:
    """Return what an integer weight stands for, float64 `[out, 1]`: one number in the head."""
    rows = np.ones(len(weight), int) if layer.multiplier is None else np.arange(len(weight))
    integers = layer.weight.astype(np.float64)
    products = np.bincount(rows, (weight * integers).sum(1))
    squares = np.bincount(rows, np.square(integers).sum(1))
    units: np.ndarray = (products[rows] / squares[rows])[:, None]
    return units


def _accumulator_scales(
    layer: IntegerLayer,
    weight: np.ndarray,
    share: np.ndarray,
    bias: np.ndarray | None,
    logit_scale: float,
) -> np.ndarray:
    """Return the value of one accumulator unit in each output channel, float64 `[out]`.

    A weight is integer * scale * share, and a bias is integer * scale, rounded: that confines the
    scale to a narrow interval, in which the least-squares fit of the channel's weights is taken.
    """
    if layer.multiplier is None:
        return np.full(len(weight), logit_scale)
    shared = (layer.weight * share).reshape(len(weight), -1)
    fitted = (weight.reshape(len(weight), -1) * shared).sum(1) / np.square(shared).sum(1)
    if bias is None:
        return fitted
    # bias / scale rounded to `rounded`, so scale lies in [|b| / (r + 1/2), |b| / (r - 1/2)]; a
    # bias that rounds to 0 sets no upper end.
    size, rounded = np.abs(bias), np.abs(layer.bias.astype(np.float64))
    most = np.divide(size, rounded - 0.5, out=np.full_like(size, np.inf), where=rounded > 0)
    scales: np.ndarray = np.clip(fitted, size / (rounded + 0.5), most)
    return scales


@dataclass(frozen=True)
class WeightTables:
    """The data behind the figures; `left_out` maps each run that is missing to the reason.

    `errors` has one row per run and layer: run, student (`ptq`, or `qat`, whose weights phase 3 has
    moved too), scheme, layer, bits, num_weights, sqnr_db, max_error_steps.
    `histograms` has one row per run, layer and bin: run, layer, left, right, distilled, quantized
    (shares of the layer's weights).
    """

    errors: DataFrame
    histograms: DataFrame
    left_out: dict[str, str]


def weight_tables(runs: Sequence[Path]) -> WeightTables:
    """Compare each run's quantized weights with those of its distilled student.

    A fork without a distilled.safetensors of its own uses that of the run it was forked from, if
    that is among `runs`. Raises RunDirectoryError or StudentFileError, and TargetError if no run
    has both files.
    """
    import pandas as pd

    opened = [RunDirectory.open(path, read_only=True) for path in runs]
    errors: list[dict[str, Any]] = []
    histograms, left_out = [], {}
    for run in opened:
        distilled, (kind, file) = find_distilled(run, opened), _quantized_file(run)
        if distilled is None or not file.is_file():
            missing = "distilled.safetensors" if distilled is None else file.name
            left_out[str(run.path)] = f"no weights compared, as it has no {missing}"
            continue
        scheme = run.recipe.quantize.scheme
        layers = layer_weights(load_student(distilled), load_integer_student(file), scheme, kind)
        about = {"run": str(run.path), "student": kind, "scheme": scheme}
        for layer in layers:
            errors.append(about | _error_row(layer))
            histograms.append(pd.DataFrame({"run": str(run.path)} | _histogram(layer)))
    if not errors:
        raise TargetError("no run has both distilled.safetensors and a quantized student")
    return WeightTables(pd.DataFrame(errors), pd.concat(histograms, ignore_index=True), left_out)


def _quantized_file(run: RunDirectory) -> tuple[str, Path]:
    """Return (`ptq` or `qat`, file): phase 2's student wherever the run still has it."""
    # Best epoch 0 means that phase 3 never beat what it began with: its file holds phase 2's
    # student.
    kept = run.phase("finetune").metrics.get("best_epoch") == 0
    if run.ptq_file.is_file() or run.phase("finetune").state != "done":
        return "ptq", run.ptq_file
    return ("ptq" if kept else "qat"), run.quantized_file


def _error_row(layer: LayerWeights) -> dict[str, Any]:
    return {
        "layer": layer.name,
        "bits": layer.bits,
        "num_weights": layer.weight.size,
        "sqnr_db": layer.sqnr_db,
        "max_error_steps": layer.max_error_steps,
    }


def _histogram(layer: LayerWeights) -> dict[str, Any]:
    """Bin both weights on common edges, from the smallest to the largest of either."""
    both = np.concatenate([layer.weight.ravel(), layer.quantized.ravel()])
    edges = np.linspace(both.min(), both.max(), _BINS + 1)
    shares = [np.histogram(w, edges)[0] / w.size for w in (layer.weight, layer.quantized)]
    columns = {"left": edges[:-1], "right": edges[1:], "distilled": shares[0]}
    return {"layer": layer.name} | columns | {"quantized": shares[1]}


def draw_distributions(tables: WeightTables, runs: Sequence[str]) -> Figure:
    """Draw histograms, one row per run and one column per layer; inside `paper_style()`."""
    layers = sorted(set(tables.errors["layer"]), key=_depth)
    figure = new_figure(PAGE_WIDTH, 1.25 * len(runs) + 0.5)
    axes = figure.subplots(len(runs), len(layers), squeeze=False)
    for row, run in zip(axes, runs, strict=True):
        mine = tables.histograms[tables.histograms["run"] == run]
        errors = tables.errors[tables.errors["run"] == run].set_index("layer")
        for ax, layer in zip(row, layers, strict=True):
            if layer not in errors.index:
                ax.set_axis_off()
                continue
            _draw_histogram(ax, mine[mine["layer"] == layer])
            error = errors.loc[layer]
            ax.set_title(f"{layer}, {error['bits']} bit\n{error['sqnr_db']:.1f} dB", fontsize=7)
        row[0].set_ylabel(f"{Path(run).name}\nshare of weights", fontsize=6)
    figure.supxlabel("weight", fontsize=7)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=2, loc="outside lower center")
    return figure


def _depth(layer: str) -> tuple[int, int]:
    """Return what sorts layers from the input to the head: conv1, linear1, linear2, actor."""
    kind = layer.rstrip("0123456789")
    order = ("conv", "linear", "actor")
    return order.index(kind) if kind in order else len(order), int(layer[len(kind) :] or 0)


def _draw_histogram(ax: Any, bins: DataFrame) -> None:
    edges = [*bins["left"], bins["right"].iloc[-1]]
    ax.stairs(bins["quantized"], edges, fill=True, color=COLOURS[4], lw=0, label="quantized")
    ax.stairs(bins["distilled"], edges, color=COLOURS[6], linewidth=0.8, label="full precision")
    # Linear counts would hide the tails, where weights are clipped.
    ax.set_yscale("log")
    ax.tick_params(labelsize=5.5)
    ax.locator_params(axis="x", nbins=3)


def draw_errors(errors: DataFrame) -> Figure:
    """Draw a column per scheme: SQNR in dB above, the largest error in steps below.

    `errors` is that of `WeightTables`. Call it inside `paper_style()`.
    """
    schemes = list(dict.fromkeys(errors["scheme"]))
    runs = {run: Path(run).name for run in errors["run"]}
    places = {run: place for place, run in enumerate(runs)}  # the legend is one for all columns
    depths = {name: x for x, name in enumerate(sorted(set(errors["layer"]), key=_depth))}
    figure = new_figure(PAGE_WIDTH, 3.6 + 0.15 * len(runs) / 4)
    axes = figure.subplots(2, len(schemes), squeeze=False, sharex="col")
    for (upper, lower), scheme in zip(axes.T, schemes, strict=True):
        # A column of its own for each scheme: DoReFa as written loses the layer's scale, and its
        # errors are of another order.
        mine = errors[errors["scheme"] == scheme]
        for run, layers in mine.groupby("run", sort=False):
            look = series_look(places[run])
            x = layers["layer"].map(depths)
            upper.plot(x, layers["sqnr_db"], label=as_label(runs[run]), **look)
            lower.plot(x, layers["max_error_steps"], **look)
        upper.set_title(scheme)
        lower.set_xticks(list(depths.values()), list(depths))
        lower.set_yscale("log")
    axes[0, 0].set_ylabel("SQNR (dB)")
    axes[1, 0].set_ylabel("largest error (steps)")
    entries = [ax.get_legend_handles_labels() for ax in axes[0]]
    handles, labels = ([item for entry in entries for item in entry[part]] for part in (0, 1))
    figure.legend(
        handles, labels, ncols=4, loc="outside lower center", fontsize=6, handlelength=3.5
    )
    return figure
