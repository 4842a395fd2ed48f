"""SB3's NatureCNN on Atari frames, computed in the layout that is fastest on a CPU.

Stable-Baselines3 turns every byte of a batch of frames into a float32, divides it by 255, and runs
an 8x8 convolution of stride 4 over it. `qpd.students.student` computes the same function from the
bytes: a 2x2 convolution over 4x4 patches, channels last, in bfloat16, the division in the weights.
Where it learns from many at once, it multiplies what they have in common once.
"""

from __future__ import annotations

from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BaseModel
from stable_baselines3.common.torch_layers import NatureCNN
from torch import Tensor, nn

from qpd.students import StudentArchitecture
from qpd.students.shared_background import MIN_BATCH, SharedFrames
from qpd.students.student import INPUT_LEVELS, apply_layer, space_to_depth
from qpd.teachers.training.sized_cnn import SizedNatureCNN

_FRAMES = (4, 84, 84)


def use_blocked_frames(model: BaseAlgorithm, shares: bool = True) -> None:
    """Let the policy, and a target network, compute their NatureCNN from bytes, in bfloat16.

    Replaces `extract_features` of these objects, so that what SB3 saves is what it always saves.
    Extractors that are not of plain layers when they are called (such as those that learn in few
    bits), of other images, or separate for actor and critic are computed as before. `shares`: see
    `blocked_features`.
    """
    for module in model.policy.modules():
        if isinstance(module, BaseModel) and module.observation_space.shape == _FRAMES:
            _replace_extraction(module, shares)


def blocked_features(extractor: NatureCNN, frames: Tensor, shares: bool = True) -> Tensor:
    """Return the features of `frames`, uint8 `[batch, 4, 84, 84]`, as float32 `[batch, features]`.

    Differentiable in the extractor's parameters, which stay float32. What is learned from, of 64
    observations or more, is multiplied only where it differs from what they mostly show, if it
    `shares` that.
    """
    layers, values, apply = _layers(extractor), space_to_depth(frames), apply_layer
    if shares and torch.is_grad_enabled() and len(frames) >= MIN_BATCH:
        values, apply = SharedFrames.of(values).layers(apply_layer, torch.bfloat16)
    widths = tuple(layer.weight.shape[0] for layer in layers)
    shapes = StudentArchitecture(_FRAMES, 1, widths[:-1], widths[-1:]).layer_shapes()[:-1]
    for index, (shape, layer) in enumerate(zip(shapes, layers, strict=True)):
        weight, bias = (each.to(torch.bfloat16) for each in (layer.weight, layer.bias))
        levels = 1.0 if index else INPUT_LEVELS
        values = apply(shape, values, weight, bias, rectified=True, levels=levels)
    return values.float()


def _layers(extractor: NatureCNN) -> list[Any]:
    return [extractor.cnn[0], extractor.cnn[2], extractor.cnn[4], extractor.linear[0]]


def _is_plain(extractor: Any) -> bool:
    return type(extractor) in (NatureCNN, SizedNatureCNN) and all(
        type(layer) in (nn.Conv2d, nn.Linear) for layer in _layers(extractor)
    )


def _replace_extraction(module: Any, shares: bool) -> None:
    plain = module.extract_features

    def extract_features(observations: Tensor, features_extractor: nn.Module | None = None) -> Any:
        extractor: Any = features_extractor or getattr(module, "features_extractor", None)
        shared = getattr(module, "share_features_extractor", True)
        if shared and observations.dtype == torch.uint8 and _is_plain(extractor):
            return blocked_features(extractor, observations, shares)
        return plain(observations, features_extractor)

    module.extract_features = extract_features
