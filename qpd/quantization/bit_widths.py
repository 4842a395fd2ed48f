"""Bits per weight as people are told of them: layer by layer, and the mean over all weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from qpd.quantization.config import QuantizationConfig
from qpd.students import LayerShape

FLOAT_BITS = 32


@dataclass(frozen=True)
class BitWidths:
    """The bits of each layer's weights, actor head last, and their mean over weights (no biases).

    Written `8` where all layers agree, else `8/2/8, mean 2.3`.
    """

    layers: tuple[int, ...]
    mean: float

    @property
    def fewest(self) -> int:
        """The fewest bits of any layer."""
        return min(self.layers)

    @property
    def by_layer(self) -> str:
        """The bits of all layers if they agree, else of each: `8` or `8/2/8`."""
        return str(self.fewest) if self.is_uniform else "/".join(map(str, self.layers))

    def __str__(self) -> str:
        """Return `by_layer`, with the mean if layers differ."""
        return self.by_layer + ("" if self.is_uniform else f", mean {self.mean:.1f}")

    @property
    def is_uniform(self) -> bool:
        """Tell whether all layers have equally many bits."""
        return len(set(self.layers)) == 1

    def to_json(self) -> dict[str, Any]:
        """Return `weight_bits` (the fewest), `layer_bits` and `mean_bits` as plain data."""
        return {
            "weight_bits": self.fewest,
            "layer_bits": list(self.layers),
            "mean_bits": self.mean,
        }


def bit_widths(shapes: Sequence[LayerShape], bits: Sequence[int]) -> BitWidths:
    """Return the widths of layers with these `shapes` and `bits`, one for each, in one order."""
    counts = [prod(shape.weight_shape) for shape in shapes]
    total = sum(count * b for count, b in zip(counts, bits, strict=True))
    return BitWidths(tuple(bits), total / sum(counts))


def configured_widths(
    shapes: Sequence[LayerShape],
    weight_bits: int,
    first_layer_bits: int | None = None,
    last_layer_bits: int | None = None,
) -> BitWidths:
    """Return the widths that these settings (`QuantizationConfig`) give to layers of `shapes`."""
    config = QuantizationConfig(
        weight_bits, first_layer_bits=first_layer_bits, last_layer_bits=last_layer_bits
    )
    return bit_widths(shapes, config.layer_bits(shapes))


def float_widths(shapes: Sequence[LayerShape]) -> BitWidths:
    """Return the widths of a student in fp32."""
    return bit_widths(shapes, [FLOAT_BITS] * len(shapes))
