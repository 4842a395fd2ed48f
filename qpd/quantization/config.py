"""The settings of quantization: bits, scheme, granularity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from qpd.students import LayerShape


@dataclass(frozen=True)
class QuantizationConfig:
    """Bits per weight (2 to 8, the first and last layer separately settable) and per activation.

    `scheme` is `dorefa` (Eq. 5 as written, per layer, scale lost) or `dorefa_scaled` (the scale
    kept, per output channel unless `per_channel` is off; the actor head always has a single
    scale, so that its accumulators compare), or `narrow`, the same with a zero among the weights.
    With `learned_ranges` phase 3 also trains the ranges of the activations and the scales of the
    weights. `input_bits` are those of a vector's features; frames are bytes, which have 8.
    """

    weight_bits: int = 8
    activation_bits: int = 8
    first_layer_bits: int | None = None
    last_layer_bits: int | None = None
    scheme: Literal["dorefa_scaled", "narrow", "dorefa"] = "dorefa_scaled"
    per_channel: bool = True
    learned_ranges: bool = True
    input_bits: int = 8

    @property
    def has_scales(self) -> bool:
        """Tell whether weights keep their scale; literal Eq. 5 drops it."""
        return self.scheme != "dorefa"

    @property
    def has_zero_weight(self) -> bool:
        """Tell whether 0 is a weight."""
        return self.scheme == "narrow"

    @property
    def input_levels(self) -> int:
        """Return the largest level of an input, `2^input_bits - 1`."""
        return int(2**self.input_bits - 1)

    @property
    def activation_levels(self) -> int:
        """Return the largest level of an activation, `2^activation_bits - 1`."""
        return int(2**self.activation_bits - 1)

    def layer_bits(self, shapes: Sequence[LayerShape]) -> tuple[int, ...]:
        """Return the bits per weight of each layer, the actor head last."""
        # DoReFa-Net leaves the first and last layer in full precision; here they may get more bits.
        bits = [self.weight_bits] * len(shapes)
        bits[0] = self.first_layer_bits or self.weight_bits
        bits[-1] = self.last_layer_bits or self.weight_bits
        return tuple(bits)
