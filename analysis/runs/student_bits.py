"""The bits of a run's quantized student, from its recipe and the layers that a file tells."""

from __future__ import annotations

from typing import Any

from qpd.quantization.bit_widths import configured_widths
from qpd.recipe.schema import Recipe
from qpd.runs.run_directory import RunDirectory
from qpd.student_files.distilled import stored_architecture
from qpd.students import StudentArchitecture


def run_architecture(run: RunDirectory) -> StudentArchitecture | None:
    """Return the architecture that all of a run's students have; None if it keeps no file of one.

    Raises StudentFileError.
    """
    # Committed runs may hold only one of the files.
    files = (file for file in run.student_files.values() if file.is_file())
    return next(map(stored_architecture, files), None)


def bit_columns(recipe: Recipe, architecture: StudentArchitecture | None) -> dict[str, Any]:
    """Return `weight_bits`, `layer_bits` and `mean_bits` of a table's row.

    These are the fewest of any layer, a text with those of every layer if they differ (`8/2/8`),
    and the mean over weights. Without an architecture the inner layers stand as one (`8/2.../8`)
    and the mean of layers that differ is NaN.
    """
    settings = recipe.quantize
    bits, ends = settings.weight_bits, (settings.first_layer_bits, settings.last_layer_bits)
    if architecture is not None:
        widths = configured_widths(architecture.layer_shapes(), bits, *ends)
        return _columns(widths.fewest, widths.by_layer, widths.mean)
    first, last = (end or bits for end in ends)
    if {first, last} == {bits}:
        return _columns(bits, str(bits), float(bits))
    return _columns(min(first, bits, last), f"{first}/{bits}.../{last}", float("nan"))


def _columns(fewest: int, by_layer: str, mean: float) -> dict[str, Any]:
    return {"weight_bits": fewest, "layer_bits": by_layer, "mean_bits": mean}
