"""Return by lambda, the weight of the actor's loss in Eq. 2: the paper's Figure 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qpd.analysis.figure_style import error_lengths
from qpd.analysis.returns.environment_panels import panel_figure
from qpd.analysis.returns.plot_series import SeriesStyle, with_series
from qpd.analysis.returns.policy_returns import final_students

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame


def lambda_returns(table: DataFrame) -> DataFrame:
    """Return the students of `policy_returns` that differ only in lambda (and the seed).

    With the columns of `with_series`, sorted by lambda; empty if no two runs differ in lambda
    alone. Teachers of Q-values have no critic, hence no lambda.
    """
    students = final_students(table)
    students = students[students["lambda"].notna()]
    keys = ["env_id", "teacher_sha256", "policy", "acting", "recipe_key_but_lambda"]
    number = students.groupby(keys)["lambda"].transform("nunique")
    compared = students[number > 1]
    if compared.empty:
        return compared.assign(source="", precision="", series="")
    # Runs at different lambdas are different experiments; their line needs a single name.
    first = compared.groupby(keys)["experiment"].transform("first")
    named = with_series(compared.assign(experiment=first), ("lambda", "size"))
    named = named.assign(
        series=named["series"] + ", " + named["size"], experiment=list(compared["experiment"])
    )
    return named.sort_values(["env_id", "series", "lambda"], ignore_index=True)


def draw_lambda_returns(rows: DataFrame, axes: Axes, styles: dict[str, SeriesStyle]) -> None:
    """Draw one environment's rows of `lambda_returns`: return against lambda, with intervals."""
    for name, mine in rows.groupby("series", sort=False):
        around = error_lengths(mine["mean"], mine["mean_low"], mine["mean_high"])
        style = styles[str(name)].line()
        axes.errorbar(mine["lambda"], mine["mean"], around, label=str(name), capsize=2, **style)
    axes.set_xlabel("λ: 0 critic only, 1 actor only")
    axes.set_ylabel("return")
    axes.set_xticks(sorted(rows["lambda"].unique()))


def lambda_figure(table: DataFrame) -> Figure:
    """Draw `lambda_returns(...)`, one panel per environment."""
    return panel_figure(table, draw_lambda_returns)
