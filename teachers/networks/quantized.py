"""An agent that was trained to be quantized plays as it learned: its layers in few bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from qpd.quantization.controller_layer import attach_frozen_controller
from qpd.quantization.layer_quantizer import attach_frozen
from qpd.teachers.archive.stored_controller import StoredController
from qpd.teachers.archive.stored_quantization import StoredQuantization, check_shapes


@torch.no_grad()
def quantize_layers(
    layers: Sequence[nn.Module], stored: StoredQuantization | StoredController
) -> None:
    """Round the weights of acting layers once, and let each round its inputs.

    Raises TeacherError where the ranges are not of these layers.
    """
    weights = [layer.weight for layer in layers]
    first = weights[0]
    check_shapes(stored, weights, None if first.dim() == 4 else first.shape[1])  # type: ignore
    if isinstance(stored, StoredController):
        attach_frozen_controller(layers, stored.quantizers())
        return
    attach_frozen(layers, stored.layers)
