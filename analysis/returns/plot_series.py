"""Which rows of a table of returns are drawn as one series, what it is called and how it looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qpd.analysis.figure_style import COLOURS
from qpd.analysis.returns.policy_returns import TEACHERS
from qpd.analysis.runs.run_frame import FLOAT_BITS

if TYPE_CHECKING:
    from pandas import DataFrame

_SCHEMES = {"dorefa": "DoReFa as written", "dorefa_scaled": "scaled", "float": "fp32"}
_NAMES = {"ppo": "PPO", "a2c": "A2C", "trpo": "TRPO", "dqn": "DQN", "qrdqn": "QR-DQN"}
# Marks and dashes by bits per weight; what else occurs takes the spare ones.
_MARKS = {FLOAT_BITS: ("o", "-"), 8: ("s", "--"), 6: ("^", "-."), 4: ("D", ":"), 2: ("v", "-.")}
_SPARE = (("P", "--"), ("X", ":"), ("<", "-."), (">", "--"), ("h", ":"), ("p", "-."))


@dataclass(frozen=True)
class SeriesStyle:
    """How a series is drawn: matplotlib's names."""

    colour: str
    marker: str
    dashes: str
    filled: bool

    def line(self) -> dict[str, Any]:
        """Keywords for `Axes.plot` and `Axes.errorbar`."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.dashes,
            "markerfacecolor": self.colour if self.filled else "white",
            "markersize": 8 if self.marker == "*" else 4,
        }


def algorithm_name(algo: str) -> str:
    """`qrdqn` -> `QR-DQN`."""
    return _NAMES.get(algo, algo.upper())


def precision_name(row: Any) -> str:
    """`fp32`, `8-bit`, `8/4-bit` (weights, activations), `2-bit (ends 8)` (outer layers)."""
    weights, activations = int(row["weight_bits"]), int(row["activation_bits"])
    if weights == FLOAT_BITS:
        return "fp32"
    name = f"{weights}-bit" if weights == activations else f"{weights}/{activations}-bit"
    ends = {int(row["first_layer_bits"]), int(row["last_layer_bits"])}
    if ends == {weights}:
        return name
    shown = "/".join(str(int(row[f"{end}_layer_bits"])) for end in ("first", "last"))
    return f"{name} (ends {shown if len(ends) > 1 else ends.pop()})"


def with_series(table: DataFrame, places: Sequence[str] = ("size",)) -> DataFrame:
    """`table` with the columns `source` (who: teacher, settings), `precision` and `series` (both).

    A series is a teacher's algorithm and a precision. Where that leaves two rows of an environment
    at one place (equal in the columns `places`), lambda is added to its name, then the scheme;
    where that does not do, the experiment's name stands for all settings (for a teacher the digest
    of its file, and how it acts).
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
    which = source + " " + table["teacher_sha256"].str[:6] + ", " + table["acting"]
    experiment = which.where(is_teacher, base + ": " + table["experiment"])
    settings = [with_lambda, with_scheme, experiment] if "lambda" not in places else [experiment]
    where = table[list(places)].astype(str).agg("|".join, axis=1)
    for longer in settings:
        name = table["env_id"] + "|" + source + "|" + precision
        clashing = set(name[(name + "|" + where).duplicated(keep=False)])
        source = source.where(~name.isin(clashing), longer)
    series = source.where(is_teacher, source + ", " + precision)
    return table.assign(source=source, precision=precision, series=series)


def series_styles(table: DataFrame) -> dict[str, SeriesStyle]:
    """A style for each series of `with_series`: colour by source, marker and dashes by precision.

    In the order in which a legend names them: teachers last, more bits first.
    The teacher's is a star in the colour of its students where they have but one.
    """
    students = table[~table["policy"].isin(TEACHERS)]
    plain_first = sorted(dict.fromkeys(students["source"]), key=lambda source: ": " in source)
    sources = list(dict.fromkeys([*plain_first, *table["source"]]))
    marks = _marks(students)
    styles = {}
    for _, row in _legend_order(table, sources).iterrows():
        source, policy = row["source"], row["policy"]
        if policy in TEACHERS:
            source = source.split(" teacher")[0]
            source = source if source in sources else row["source"]
        place = sources.index(source)
        marker, dashes = ("*", "") if policy in TEACHERS else marks[row["precision"]]
        styles[row["series"]] = SeriesStyle(
            COLOURS[place % len(COLOURS)],
            marker,
            dashes,
            place < len(COLOURS) and policy != "teacher_sharpened",
        )
    return styles


def _legend_order(table: DataFrame, sources: Sequence[str]) -> DataFrame:
    """A row for each series."""
    order = {
        "is_teacher": table["policy"].isin(TEACHERS),
        "place": table["source"].map(sources.index),
        "bits": -table["weight_bits"],
    }
    ordered = table.assign(**order).sort_values([*order, "series"])
    return ordered.drop_duplicates("series")


def _marks(students: DataFrame) -> dict[str, tuple[str, str]]:
    """Mark and dashes of each precision; two of the same bits per weight have different ones."""
    ordered = students.sort_values(["weight_bits", "precision"], ascending=[False, True])
    marks: dict[str, tuple[str, str]] = {}
    for precision, bits in zip(ordered["precision"], ordered["weight_bits"], strict=True):
        if precision not in marks:
            free = [mark for mark in (_MARKS.get(bits), *_SPARE) if mark not in marks.values()]
            marks[precision] = next((mark for mark in free if mark is not None), _SPARE[-1])
    return marks
