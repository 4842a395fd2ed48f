"""Return by bits and scheme, after phase 2 alone (PTQ) and after phase 3 (QAT).

The bend of each line shows how few bits a scheme can do with before the return drops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qpd.analysis.figure_style import (
    NEUTRAL,
    PAGE_WIDTH,
    error_lengths,
    new_figure,
    say_below,
    series_look,
)
from qpd.analysis.returns.return_rows import ShownTable
from qpd.analysis.runs.distilled_student import (
    distilled_identity,
    distilled_settings,
    student_label,
)
from qpd.analysis.runs.run_frame import distinct_names, evaluation_interval
from qpd.analysis.runs.run_identity import agent_title
from qpd.analysis.runs.student_bits import bit_columns, run_architecture
from qpd.evaluation.return_words import interval_text
from qpd.recipe.schema import QuantizeSettings
from qpd.runs.run_directory import RunDirectory
from qpd.runs.target import TargetError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

_LONGEST_OF_TWO = 60  # letters of a name in a legend of two columns
_STUDENTS = {"ptq": "PTQ", "qat": "QAT"}
_REFERENCES = {"teacher": "teacher", "distilled": "fp32 student"}


@dataclass(frozen=True)
class QuantizationReturns:
    """The data behind the figure; `left_out` maps each run that is missing to the reason.

    `table` has one row per evaluated quantized student: run, student (the distilled one it was made
    from; trainings of one recipe and seed count as one), agent, env_id, policy (`ptq` or `qat`),
    quantizer (scheme and settings except the weights' bits), weight_bits (the fewest of any layer),
    layer_bits, mean_bits (over weights), activation_bits, mean, low, high (95% bootstrap
    interval), episodes.
    `references` has one row per student and reference: student, policy (`teacher`, `distilled`),
    mean, low, high, episodes; of several evaluations the one with the most games. `trainings`
    counts how often each student's phase 1 was trained, which is once for forks.
    """

    table: DataFrame
    references: DataFrame
    left_out: dict[str, str]
    trainings: dict[str, int]


def quantization_returns(runs: Sequence[Path]) -> QuantizationReturns:
    """Read the returns of each run's quantized students.

    Raises RunDirectoryError, and TargetError if none was evaluated.
    """
    import pandas as pd

    opened = [RunDirectory.open(path, read_only=True) for path in runs]
    students = _student_names(opened)
    rows: list[dict[str, Any]] = []
    references: dict[tuple[str, str], dict[str, Any]] = {}
    left_out = {}
    trainings: dict[str, set[str]] = {}
    for run in opened:
        results = {str(name): result for name, result in run.manifest.evaluations.items()}
        student, settings = students[distilled_settings(run)], run.recipe.quantize
        trainings.setdefault(student, set()).add(distilled_identity(run))
        _note_references(references, student, results)
        teacher = run.manifest.teacher
        agent = agent_title(teacher.algo, teacher.env_id) if teacher is not None else ""
        env_id = teacher.env_id if teacher is not None else ""
        about = {"run": str(run.path), "student": student, "agent": agent, "env_id": env_id}
        bits = bit_columns(run.recipe, run_architecture(run))
        if bits["mean_bits"] != bits["mean_bits"]:  # NaN
            left_out[str(run.path)] = "no return by bits, as no file tells the layers' sizes"
            continue
        bits |= {"activation_bits": settings.activation_bits}
        found = [
            about
            | {"policy": policy, "quantizer": quantizer_label(settings)}
            | bits
            | _score(score)
            for policy, score in results.items()
            if policy in _STUDENTS
        ]
        rows += found
        if not found:
            left_out[str(run.path)] = "no return by bits, as no quantized student was evaluated"
    if not rows:
        raise TargetError("no quantized student was evaluated; `qpd evaluate RUN` does that")
    table = pd.DataFrame(rows).sort_values(["student", "policy", "quantizer", "mean_bits"])
    columns = ["student", "policy", "mean", "low", "high", "episodes"]
    return QuantizationReturns(
        table.reset_index(drop=True),
        pd.DataFrame(list(references.values()), columns=columns),
        left_out,
        {name: len(identities) for name, identities in trainings.items()},
    )


def _note_references(
    references: dict[tuple[str, str], dict[str, Any]], student: str, results: dict[str, Any]
) -> None:
    """Keep a run's reference policies if they played more games than those known so far."""
    for policy in _REFERENCES:
        if policy in results:
            row = {"student": student, "policy": policy} | _score(results[policy])
            known = references.setdefault((student, policy), row)
            if row["episodes"] > known["episodes"]:
                references[student, policy] = row


def _student_names(runs: Sequence[RunDirectory]) -> dict[str, str]:
    """Title each distilled student by its size, with a run's folder if ambiguous.

    That is the first run with the student itself, or the first at all.
    """
    # Backwards, so that the first run is the one that stays; the sort is stable.
    ordered = sorted(runs, key=lambda run: not run.distilled_file.is_file())
    first = {distilled_settings(run): run for run in reversed(ordered)}
    labels = {identity: student_label(run) for identity, run in first.items()}
    folders = distinct_names([run.path for run in first.values()])
    return {
        identity: f"{label} ({folders[first[identity].path]})"
        if list(labels.values()).count(label) > 1
        else label
        for identity, label in labels.items()
    }


# Of quantize.*: the horizontal axis, and what `quantizer_label` says in words.
_NAMED = {
    "scheme", "weight_bits", "activation_bits", "first_layer_bits", "last_layer_bits",
    "per_channel",
}  # fmt: skip


def quantizer_label(settings: QuantizeSettings) -> str:
    """Name a line of the figure by what sets it apart: `dorefa_scaled, 4-bit activations`."""
    parts: list[str] = [settings.scheme]
    if settings.activation_bits != 8:
        parts.append(f"{settings.activation_bits}-bit activations")
    for bits, layer in ((settings.first_layer_bits, "first"), (settings.last_layer_bits, "last")):
        if bits is not None:
            parts.append(f"{bits}-bit {layer} layer")
    if settings.scheme != "dorefa":
        parts += [] if settings.per_channel else ["per layer"]
        parts += [] if settings.equalization else ["not equalized"]
    unsaid = set(_NAMED)
    if settings.scheme == "dorefa" or not settings.equalization:
        unsaid.add("equalization")
    usual = QuantizeSettings()
    for name in QuantizeSettings.model_fields:
        value = getattr(settings, name)
        if name not in unsaid and value != getattr(usual, name):
            parts.append(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}")
    return ", ".join(parts)


def _score(result: dict[str, Any]) -> dict[str, Any]:
    low, high = evaluation_interval(result)
    return {"mean": result["mean"], "low": low, "high": high, "episodes": result["episodes"]}


def shown_returns(table: DataFrame) -> list[ShownTable]:
    """Tabulate the returns for a terminal, a table for each distilled student."""
    header = ["run", "policy", "quantizer", "bits of weights", "of activations", "return", "games"]
    shown = []
    for student, mine in table.groupby("student", sort=False):
        names = distinct_names([Path(run) for run in mine["run"]])
        rows = [
            [
                names[Path(row["run"])],
                _STUDENTS[row["policy"]],
                row["quantizer"],
                f"{row['mean_bits']:.3g}",
                str(row["activation_bits"]),
                f"{row['mean']:,.1f} {interval_text((row['low'], row['high']), row['episodes'])}",
                str(row["episodes"]),
            ]
            for row in mine.to_dict("records")
        ]
        shown.append(ShownTable(f"{student}, student of {mine['agent'].iloc[0]}", header, rows))
    return shown


def draw_returns(returns: QuantizationReturns) -> Figure:
    """Draw a panel per distilled student, a line per quantizer; inside `paper_style()`.

    Of several returns at equal bits the one with the most games is drawn.
    """
    table = returns.table
    students = list(dict.fromkeys(table["student"]))
    lines = list(table[["policy", "quantizer"]].drop_duplicates().itertuples(index=False))
    looks = {tuple(line): place for place, line in enumerate(lines)}
    columns = min(2, len(students))
    rows = -(-len(students) // columns)
    across = 1 if max(len(" ".join(look)) for look in looks) > _LONGEST_OF_TWO else 2
    figure = new_figure(PAGE_WIDTH, 2.4 * rows + 0.3 + 0.15 * -(-len(looks) // across))
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    entries: dict[str, Any] = {}
    for ax, student in zip(axes, students, strict=False):
        mine = table[table["student"] == student]
        _draw_student(ax, mine, looks)
        references = returns.references[returns.references["student"] == student]
        _draw_references(ax, references)
        ax.set_title(f"{student},\nstudent of {mine['agent'].iloc[0]}")
        found, labels = ax.get_legend_handles_labels()
        entries |= dict(zip(labels, found, strict=True))
    for ax in axes[::columns]:
        ax.set_ylabel("return")
    for ax in axes[len(students) :]:
        ax.set_axis_off()
    env_ids = table.drop_duplicates("student").set_index("student")["env_id"]
    for _, alike in env_ids.groupby(env_ids):
        lows = [
            part["low"][part["student"].isin(alike.index)].min()
            for part in (table, returns.references)
        ]
        _share_scale([axes[students.index(student)] for student in alike.index], lows)
    # sorted() is stable: quantizers keep their order, references move to the end.
    order = sorted(entries, key=lambda label: label in _REFERENCES.values())
    handles = [entries[label] for label in order]
    figure.legend(handles, order, ncols=across, loc="outside lower center")
    say_below(figure, "bars and bands: 95% intervals")
    return figure


def _share_scale(axes: Sequence[Any], lows: Sequence[float]) -> None:
    """Give panels of one environment one scale; returns of others have another unit.

    It begins at 0 where nothing is below (`lows`; NaN is nothing): a cut axis would exaggerate
    what a bit costs.
    """
    for ax in axes[1:]:
        ax.sharey(axes[0])
    axes[0].autoscale_view()
    if not any(low < 0 for low in lows):
        axes[0].set_ylim(bottom=0)


def _draw_student(ax: Any, table: DataFrame, looks: dict[tuple[str, str], int]) -> None:
    for (policy, quantizer), line in table.groupby(["policy", "quantizer"], sort=False):
        place = looks[policy, quantizer]
        line = line.sort_values("episodes").drop_duplicates("mean_bits", keep="last")
        line = line.sort_values("mean_bits")
        ax.errorbar(
            # Shifted a little, so that intervals at equal bits stand side by side.
            line["mean_bits"] + 0.06 * (place - (len(looks) - 1) / 2),
            line["mean"],
            error_lengths(line["mean"], line["low"], line["high"]),
            linestyle="-" if policy == "ptq" else "--",
            elinewidth=0.8,
            capsize=2,
            label=f"{_STUDENTS[policy]}, {quantizer}",
            **series_look(place),
        )
    ax.set(xlabel="bits per weight, mean over layers' weights", xticks=range(2, 9), xlim=(1.7, 8.3))


def _draw_references(ax: Any, references: DataFrame) -> None:
    for row in references.itertuples():
        style = "-" if row.policy == "teacher" else ":"
        ax.axhline(row.mean, color=NEUTRAL, linestyle=style, label=_REFERENCES[row.policy])
        ax.axhspan(row.low, row.high, color=NEUTRAL, alpha=0.12, linewidth=0)
