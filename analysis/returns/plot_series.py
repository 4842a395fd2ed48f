"""Series of a table of returns: which rows belong together, their name and their style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qpd.analysis.figure_style import COLOURS
from qpd.analysis.returns.policy_returns import TEACHERS
from qpd.quantization.bit_widths import FLOAT_BITS
from qpd.teachers.archive.agent_identity import algorithm_name

if TYPE_CHECKING:
    from pandas import DataFrame

_SCHEMES = {
    "dorefa": "DoReFa as written",
    "dorefa_scaled": "scaled",
    "narrow": "narrow",
    "float": "fp32",
}
# Markers and dashes by bits per weight; any other number of bits takes a spare one.
_MARKS = {FLOAT_BITS: ("o", "-"), 8: ("s", "--"), 6: ("^", "-."), 4: ("D", ":"), 2: ("v", "-.")}
_SPARE = (("P", "--"), ("X", ":"), ("<", "-."), (">", "--"), ("h", ":"), ("p", "-."))


@dataclass(frozen=True)
class SeriesStyle:
    """The style of a series, in matplotlib's names."""

    colour: str
    marker: str
    dashes: str
    filled: bool

    def line(self) -> dict[str, Any]:
        """Return keywords for `Axes.plot` and `Axes.errorbar`."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.dashes,
            "markerfacecolor": self.colour if self.filled else "white",
            "markersize": 8 if self.marker == "*" else 4,
        }


def precision_name(row: Any) -> str:
    """Name a precision: `fp32`, `8-bit`, `8/2/8-bit` (by layer), `4-bit (activations 8)`.

    Activations are named where their bits are not those of all weights.
    """
    weights, activations = str(row["layer_bits"]), int(row["activation_bits"])
    if weights == str(FLOAT_BITS):
        return "fp32"
    name = f"{weights}-bit"
    return name if weights == str(activations) else f"{name} (activations {activations})"


def bits_text(row: Any) -> str:
    """Return `precision_name` with the mean over weights where layers differ in bits."""
    name, mean = precision_name(row), row["mean_bits"]
    # A mean that is not known is NaN, which equals nothing.
    return f"{name}, mean {mean:.1f}" if mean == mean and "/" in str(row["layer_bits"]) else name


def with_series(table: DataFrame, places: Sequence[str] = ("size",)) -> DataFrame:
    """Add the columns `source` (teacher and settings), `precision` and `series` (both) to `table`.

    A series is a teacher's algorithm and a precision. If that leaves two rows of an environment in
    one place (equal in the columns `places`), lambda is added to the name, then the scheme; if that
    is not enough, the experiment's name stands for all settings (for a teacher the digest of its
    file, and how it acts).
    """
    import pandas as pd

    table = table.reset_index(drop=True)
    precision = pd.Series([precision_name(row) for _, row in table.iterrows()], dtype=object)
    base = table["teacher"].map(algorithm_name).astype(object)
    is_teacher = table["policy"].isin(TEACHERS)
    sharpened = table["policy"] == "teacher_sharpened"
    source = base.mask(is_teacher, base + " teacher").mask(sharpened, base + " teacher, sharpened")
    lambdas = [f"{x}, λ {value:g}" for x, value in zip(source, table["lambda"], strict=True)]
    with_lambda = source.where(table["lambda"].isna(), pd.Series(lambdas, dtype=object))
    with_scheme = with_lambda + ", " + table["scheme"].map(_SCHEMES)
    # Two teachers of one algorithm: six digits of the digest tell files apart.
    which = source + " " + table["teacher_sha256"].str[:6] + ", " + table["acting"]
    experiment = which.where(is_teacher, base + ": " + table["experiment"])
    settings = [with_lambda, with_scheme, experiment] if "lambda" not in places else [experiment]
    where = table[list(places)].astype(str).agg("|".join, axis=1)
    # Names grow only where they clash: most tables need no more than "PPO, 8-bit".
    for longer in settings:
        name = table["env_id"] + "|" + source + "|" + precision
        clashing = set(name[(name + "|" + where).duplicated(keep=False)])
        source = source.where(~name.isin(clashing), longer)
    series = source.where(is_teacher, source + ", " + precision)
    return table.assign(source=source, precision=precision, series=series)


def series_styles(table: DataFrame) -> dict[str, SeriesStyle]:
    """Return a style per series of `with_series`: colour by source, marker and dashes by precision.

    In the legend's order: teachers last, more bits first. A teacher is a star in the colour of its
    students, if they share one.
    """
    students = table[~table["policy"].isin(TEACHERS)]
    # Plain sources take the first colours, so that adding an experiment to a figure recolours
    # nothing.
    plain_first = sorted(dict.fromkeys(students["source"]), key=lambda source: ": " in source)
    sources = list(dict.fromkeys([*plain_first, *table["source"]]))
    marks = _marks(students)
    styles = {}
    for _, row in _legend_order(table, sources).iterrows():
        source, policy = row["source"], row["policy"]
        # "PPO teacher" takes the colour of "PPO", if its students are one source of that name.
        if policy in TEACHERS:
            source = source.split(" teacher")[0]
            source = source if source in sources else row["source"]
        place = sources.index(source)
        marker, dashes = ("*", "") if policy in TEACHERS else marks[row["precision"]]
        styles[row["series"]] = SeriesStyle(
            COLOURS[place % len(COLOURS)],
            marker,
            dashes,
            # Past the seventh source colours repeat; hollow marks tell the second round apart.
            place < len(COLOURS) and policy != "teacher_sharpened",
        )
    return styles


def _legend_order(table: DataFrame, sources: Sequence[str]) -> DataFrame:
    """Return one row of `table` per series, in the legend's order."""
    order = {
        "is_teacher": table["policy"].isin(TEACHERS),
        "place": table["source"].map(sources.index),
        "bits": -table["mean_bits"],
    }
    ordered = table.assign(**order).sort_values([*order, "series"])
    return ordered.drop_duplicates("series")


def _marks(students: DataFrame) -> dict[str, tuple[str, str]]:
    """Return marker and dashes of each precision; no two share both while spare ones last."""
    ordered = students.sort_values(["mean_bits", "precision"], ascending=[False, True])
    marks: dict[str, tuple[str, str]] = {}
    for precision, bits in zip(ordered["precision"], ordered["weight_bits"], strict=True):
        if precision not in marks:
            free = [mark for mark in (_MARKS.get(bits), *_SPARE) if mark not in marks.values()]
            marks[precision] = next((mark for mark in free if mark is not None), _SPARE[-1])
    return marks
