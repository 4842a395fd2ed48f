"""`quantization.json` of an integer controller: its bits, and the scales that it learned."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from qpd.files.atomic import write_json
from qpd.quantization.controller_layer import WARM_UP, ControllerBits, ControllerQuantizers
from qpd.quantization.integer_grid import WeightGrid

CONTROLLER_FORMAT = "qpd-quantized-agent-2"
_MOST_LAYERS = 64
_LEAST, _MOST = 1e-30, 1e30  # of scales, which are used as float32


@dataclass(frozen=True)
class StoredController:
    """Hold what the file says of an integer controller (Kresse & Lampert, arXiv 2511.07046).

    `scales`: of each layer's inputs, then of the outputs, float32. `calls`: batches that they were
    averaged over, after WARM_UP of which they are learned. `begun_at`: agent steps before it was
    quantized; None while it learns, and plays, in float.
    """

    widths: ControllerBits
    grid: WeightGrid
    begun_at: int | None
    scales: tuple[float, ...]
    calls: int

    @property
    def bits(self) -> int:
        """The core's bits."""
        return self.widths.core

    @property
    def is_active(self) -> bool:
        """Tell whether the agent plays quantized."""
        return self.begun_at is not None and self.calls > 0

    def __str__(self) -> str:
        """Return how it plays, in a few words."""
        if not self.is_active:
            return f"float, to be quantized to {self.widths}"
        return (
            f"trained as an integer controller, {self.widths} bits, from step {self.begun_at:,} on"
        )

    @property
    def sha256(self) -> str:
        """The digest of all it says."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def quantizers(self) -> ControllerQuantizers:
        """Return the quantizers that it describes."""
        return ControllerQuantizers(
            self.widths, self.grid, self.scales, self.calls, is_active=self.begun_at is not None
        )

    def to_json(self) -> dict[str, Any]:
        """Return the file's content, JSON types; floats are float32, exactly."""
        return {
            "format": CONTROLLER_FORMAT,
            "input_bits": self.widths.input,
            "core_bits": self.widths.core,
            "output_bits": self.widths.output,
            "grid": self.grid,
            "begun_at": self.begun_at,
            "scales": list(self.scales),
            "calls": self.calls,
        }

    def write_to(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_json(path, self.to_json())


def controller_of_json(content: Mapping[str, Any]) -> StoredController:
    """Check a file's content. Raises KeyError and ValueError for what QPD does not write."""
    bits = [content[f"{part}_bits"] for part in ("input", "core", "output")]
    if any(type(each) is not int or not 2 <= each <= 8 for each in bits):
        raise ValueError("input_bits, core_bits, output_bits: expected 2 to 8")
    if content["grid"] not in get_args(WeightGrid):
        raise ValueError(f"grid: expected {', '.join(get_args(WeightGrid))}")
    begun_at, calls, scales = (content[key] for key in ("begun_at", "calls", "scales"))
    if begun_at is not None and (type(begun_at) is not int or begun_at < 0):
        raise ValueError("begun_at: expected agent steps, or null")
    if type(calls) is not int or not 0 <= calls <= WARM_UP:
        raise ValueError(f"calls: expected 0 to {WARM_UP}")
    if not isinstance(scales, list) or not 2 <= len(scales) <= _MOST_LAYERS + 1:
        raise ValueError("scales: expected a list of numbers")
    if not all(type(each) in (int, float) and _LEAST <= each <= _MOST for each in scales):
        raise ValueError(f"scales: expected numbers from {_LEAST:g} to {_MOST:g}")
    found = tuple(float(each) for each in scales)
    return StoredController(ControllerBits(*bits), content["grid"], begun_at, found, calls)
