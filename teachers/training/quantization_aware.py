"""Quantization-aware training in Stable-Baselines3's own algorithms: QuaRL's Algorithm 2."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.preprocessing import is_image_space
from torch import nn

from qpd.errors.codes import ErrorCode
from qpd.quantization.layer_quantizer import LayerQuantizer, attach
from qpd.recipe.train_schema import TrainQuantization
from qpd.students.activations import ACTIVATIONS, activation_of_module
from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.archive.stored_quantization import (
    QUANTIZATION_FILE,
    StoredQuantization,
    check_shapes,
    read_quantization,
)
from qpd.teachers.training.acting_layers import acting_layers, layer_names
from qpd.teachers.training.controller import AgentController


class AgentQuantizers:
    """The quantizers of a model that learns; its target networks share them.

    What acts is what learns: the same layers, seen through the same quantizers.
    """

    def __init__(self, model: BaseAlgorithm, settings: TrainQuantization) -> None:
        networks = acting_layers(model.policy)
        layers = networks[0]
        has_values = hasattr(model, "q_net") or hasattr(model, "quantile_net")
        is_image = isinstance(layers[0], nn.Conv2d) or is_image_space(model.observation_space)
        assert settings.bits is not None
        self.bits = settings.bits
        in_integers = settings.scheme == "dorefa_scaled"
        policy: Any = model.policy
        own, last = policy.activation_fn.__name__, len(layers) - 1
        # NatureCNN's layers have ReLU, whatever the policy's activation is.
        convolutions = sum(isinstance(layer, nn.Conv2d) for layer in layers)
        of_images = convolutions + 1 if convolutions else 0
        if in_integers:
            _check_integers(model.observation_space, convolutions, len(layers), own)
        normalize = model.get_vec_normalize_env()
        bound = math.inf
        if normalize is not None and normalize.norm_obs:
            # Some of a Dict's keys may not be normalized.
            bound = (
                math.inf if isinstance(model.observation_space, spaces.Dict) else normalize.clip_obs
            )
        self.begun_at: int | None = None
        self.layers = [
            LayerQuantizer(
                name,
                self.bits,
                per=settings.per,
                # Integers have one unit for all outputs.
                one_scale=(has_values or in_integers) and position == last,
                columns=_columns(layer, layers),
                input_kind="activations" if position else "bytes" if is_image else "features",
                gradient=settings.gradient,
                scheme=settings.scheme,
                follows="ReLU" if position <= of_images else own,
                bound=bound,
            )
            for position, (name, layer) in enumerate(zip(layer_names(layers), layers, strict=True))
        ]
        self._online = layers
        for each in networks:
            attach(each, self.layers)

    def begin(self, timesteps: int) -> None:
        """Fix all ranges: from now on the agent is quantized."""
        for layer, quantizer in zip(self._online, self.layers, strict=True):
            quantizer.fix(layer.weight)  # type: ignore[arg-type]
        self.begun_at = timesteps

    @property
    def are_ready(self) -> bool:
        """Tell whether the ranges of all inputs have been seen."""
        return all(quantizer.has_watched for quantizer in self.layers)

    def save(self, folder: Path) -> None:
        """Write `quantization.json` into a folder."""
        StoredQuantization(self.bits, self.begun_at, tuple(self.layers)).write(folder)

    def restore(self, folder: Path) -> None:
        """Go on with what a checkpoint holds. Raises TeacherError where it does not fit."""
        stored = read_quantization(folder / QUANTIZATION_FILE)
        if not isinstance(stored, StoredQuantization):
            raise TeacherError(f"{folder / QUANTIZATION_FILE}: is an integer controller's")
        weights = [layer.weight for layer in self._online]
        first = weights[0]
        check_shapes(stored, weights, None if first.dim() == 4 else first.shape[1])  # type: ignore
        self.begun_at = stored.begun_at
        for mine, its, weight in zip(self.layers, stored.layers, weights, strict=True):
            mine.weights, mine.inputs = its.weights, its.inputs
            mine.to(first.device)  # type: ignore[arg-type]
            if stored.is_active:
                mine.use_ranges(weight.shape)  # type: ignore[arg-type]


class QuantizationCallback(BaseCallback):
    """Begins to quantize after `delay`, a share of the training's steps.

    At the beginning of a rollout, so that no rollout is played half in float: the first after the
    delay of which something has been learned, as ranges are watched while learning.
    """

    def __init__(
        self, quantizers: AgentQuantizers | AgentController, delay: float, total: int
    ) -> None:
        super().__init__()
        self._quantizers = quantizers
        self._from = math.ceil(round(delay * total, 6))  # 0.07 of 100,000 is 7,000.000000000001

    def _on_rollout_start(self) -> None:
        quantizers, done = self._quantizers, self.model.num_timesteps
        if quantizers.begun_at is None and done >= self._from and quantizers.are_ready:
            quantizers.begin(done)

    def _on_step(self) -> bool:
        return True


def _check_integers(space: spaces.Space[Any], convolutions: int, layers: int, own: str) -> None:
    """Raise TeacherError where no integers have the agent's layers."""
    flat = not isinstance(space, spaces.Box) or len(space.shape) == 1
    has_own = layers > (convolutions + 2 if convolutions else 1)
    if convolutions and isinstance(space, spaces.Dict):
        reason = "the agent sees a Dict with images, and its layers are no chain"
    elif not convolutions and is_image_space(space):
        reason = "the agent sees images without convolutions"
    elif not convolutions and not flat:
        reason = f"observations have shape {space.shape}; integers know vectors and images"
    elif layers < 2:
        reason = "the agent has no hidden layer"
    elif has_own and activation_of_module(own) is None:
        known = ", ".join(entry.module.__name__ for entry in ACTIVATIONS.values())
        reason = f"hidden layers have {own}; integers know {known}"
    elif has_own and convolutions and own != "ReLU":
        reason = f"layers behind the convolutions have {own}; integers of images know ReLU"
    else:
        return
    raise TeacherError(f"quantization.scheme=dorefa_scaled: {reason}", ErrorCode.TEACHER_TRAINING)


def _columns(layer: Any, layers: list[nn.Module]) -> int:
    """Return input channels; a linear layer behind convolutions has several inputs for each."""
    if isinstance(layer, nn.Conv2d):
        return layer.in_channels
    convolutions = [each for each in layers if isinstance(each, nn.Conv2d)]
    after = layers.index(layer) == len(convolutions)
    return convolutions[-1].out_channels if convolutions and after else int(layer.in_features)
