"""`qpd analyze umap`, `outputs`, `actions`, `quantization`: figures that run or read networks."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qpd.commands.analyze.extra import analysis_extra
from qpd.commands.environment_options import environment_wish
from qpd.commands.output import (
    AsJson,
    EnvKwargs,
    EnvOption,
    FrameStack,
    VecNormalize,
    WrapperOption,
    print_json,
    print_table,
    print_text,
    reason_lines,
)
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TargetError
from qpd.recipe.bounds import MAX_SEED, MAX_STATES

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from qpd.analysis.returns.return_rows import ShownTable

Runs = Annotated[list[Path], typer.Argument(help="run directories")]
Output = Annotated[Path, typer.Option("-o", "--output", help="folder for PNG, SVG and CSV files")]
States = Annotated[
    int, typer.Option("--states", min=50, max=MAX_STATES, help="states of the teacher's play")
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, max=MAX_SEED, help="seed of the play and of UMAP")
]

_MOST_HISTOGRAMS = 4  # rows of panels that fit a page


class Critic(StrEnum):
    """The network whose values colour the states."""

    teacher = "teacher"
    student = "student"


def add_network_commands(app: typer.Typer) -> None:
    """Register the commands of this file on `qpd analyze`."""
    app.command("umap")(analyze_umap)
    app.command("outputs")(analyze_outputs)
    app.command("actions")(analyze_actions)
    app.command("quantization")(analyze_quantization)


def analyze_umap(
    runs: Runs,
    output: Output = Path("figures"),
    states: States = 2000,
    critic: Annotated[Critic, typer.Option(help="whose values colour the states")] = (
        Critic.teacher
    ),
    clusters: Annotated[
        int, typer.Option(min=2, max=12, help="clusters; a frame of each is shown")
    ] = 8,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Draw a UMAP of the last shared layer, coloured by critic value: the paper's Fig. 5."""
    with analysis_extra():
        from qpd.analysis.figure_style import paper_style
        from qpd.analysis.networks.feature_umap import draw_features, feature_map
        from qpd.analysis.networks.state_thumbnails import draw_thumbnails

        features = feature_map(runs, states, critic=critic.value, seed=seed)
        with paper_style():
            figures = {"umap": draw_features(features)}
            thumbnails = draw_thumbnails(features, clusters, seed)
            notes = [] if thumbnails else ["no frames drawn: the observations are vectors"]
            figures |= {"umap_states": thumbnails} if thumbnails else {}
            tables = {"umap": features.table, "umap_summary": features.summary}
            _finish(figures, tables, output, notes, features.summary, as_json)


def analyze_outputs(
    teachers: Annotated[
        list[str], typer.Argument(help="run directories, SB3 zips, zoo folders, hub ids, embedded")
    ],
    output: Output = Path("figures"),
    states: States = 2000,
    temperatures: Annotated[
        str, typer.Option("--temperatures", help="divisors of the outputs before softmax")
    ] = "0.01,0.1,1,3,5",
    env: EnvOption = None,
    env_kwargs: EnvKwargs = None,
    wrapper: WrapperOption = None,
    frame_stack: FrameStack = None,
    vecnormalize: VecNormalize = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Draw teachers' outputs before and after softmax at several temperatures: Figs. 2 and 3."""
    with analysis_extra():
        from qpd.analysis.figure_style import paper_style
        from qpd.analysis.networks.teacher_outputs import draw_outputs, teacher_outputs

        taus = _numbers(temperatures)
        wish = environment_wish(env, env_kwargs, wrapper, frame_stack)
        found = teacher_outputs(
            teachers, states, taus, env=wish, vec_normalize=vecnormalize, seed=seed
        )
        keys = ["teacher", "algo", "temperature"]
        means = found.softmax.groupby(keys, sort=False)[["max_probability", "entropy"]].mean()
        with paper_style():
            figures = {"teacher_outputs": draw_outputs(found)}
            tables = {"teacher_outputs": found.outputs, "teacher_softmax": found.softmax}
            _finish(figures, tables, output, [], means.reset_index(), as_json)


def analyze_actions(
    run: Annotated[Path, typer.Argument(help="run directory")],
    output: Output = Path("figures"),
    policy: Annotated[
        str | None, typer.Option(help="distilled, ptq or qat; default: the last that was made")
    ] = None,
    steps: Annotated[
        int, typer.Option(min=1, max=MAX_STATES, help="decisions of the game, at most")
    ] = 1000,
    as_json: AsJson = False,
) -> None:
    """Draw what a student does in one game, and what its teacher would do there.

    Continuous actions are lines over time, choices the share of steps that each is taken.
    """
    with analysis_extra():
        from qpd.analysis.figure_style import paper_style
        from qpd.analysis.networks.action_traces import action_traces, draw_actions, traces_notes

        traces = action_traces(run, policy, steps)
        with paper_style():
            figures = {"actions": draw_actions(traces)}
            tables = {"actions": traces.table, "actions_summary": traces.summary}
            shown = traces.summary.dropna(axis="columns")  # without a teacher its columns are empty
            _finish(figures, tables, output, traces_notes(traces), shown, as_json)


def analyze_quantization(
    runs: Runs, output: Output = Path("figures"), as_json: AsJson = False
) -> None:
    """Draw returns by bits, weights and their errors, and QAT curves: the paper's Figs. 9, 10."""
    with analysis_extra():
        from qpd.analysis.figure_style import paper_style
        from qpd.analysis.returns.quantization_returns import shown_returns

        with paper_style():
            figures: dict[str, Figure] = {}
            tables: dict[str, DataFrame] = {}
            notes: list[str] = []
            for draw in (_returns, _weights, _curves):
                try:
                    draw(runs, figures, tables, notes)
                except TargetError as error:  # none of the runs has what this figure needs
                    notes.append(f"no {draw.__name__[1:]} figure: {error}")
            if not figures:
                raise TargetError(
                    f"{runs[0]}: no return by bits, no weights and no curves"
                    + (f" there, nor in the other {len(runs) - 1}" if len(runs) > 1 else "")
                )
            shown = tables.get("quantization_returns", tables[next(iter(tables))])
            is_returns = "quantization_returns" in tables
            text = shown_returns(shown) if is_returns else None
            _finish(figures, tables, output, notes, shown, as_json, text)


def _returns(runs: list[Path], figures: Any, tables: Any, notes: list[str]) -> None:
    from qpd.analysis.returns.quantization_returns import draw_returns, quantization_returns

    found = quantization_returns(runs)
    figures["quantization_returns"] = draw_returns(found)
    tables |= {"quantization_returns": found.table, "quantization_references": found.references}
    notes += reason_lines(found.left_out)
    notes += [
        f"{student}: {count} trainings of one recipe and seed share the panel"
        for student, count in found.trainings.items()
        if count > 1
    ]


def _weights(runs: list[Path], figures: Any, tables: Any, notes: list[str]) -> None:
    from qpd.analysis.networks.weight_distributions import (
        draw_distributions,
        draw_errors,
        weight_tables,
    )

    found = weight_tables(runs)
    names = list(dict.fromkeys(found.errors["run"]))
    figures["weight_distributions"] = draw_distributions(found, names[:_MOST_HISTOGRAMS])
    figures["weight_errors"] = draw_errors(found.errors)
    tables |= {"weight_errors": found.errors, "weight_histograms": found.histograms}
    notes += reason_lines(found.left_out)
    if len(names) > _MOST_HISTOGRAMS:
        left = f"weight_distributions: the first {_MOST_HISTOGRAMS} of {len(names)} runs are drawn"
        notes.append(f"{left}; weight_histograms.csv has all")


def _curves(runs: list[Path], figures: Any, tables: Any, notes: list[str]) -> None:
    from qpd.analysis.returns.qat_curves import draw_curves, qat_curves

    found = qat_curves(runs)
    figures["qat_curves"] = draw_curves(found)
    tables |= {"qat_curves": found.epochs, "qat_evaluations": found.evaluations}
    notes += reason_lines(found.left_out)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise TargetError(
            f"--temperatures {text!r}: numbers separated by commas, such as 0.01,1,3",
            ErrorCode.COMMAND_LINE,
        ) from error


def _finish(
    figures: dict[str, Figure],
    tables: dict[str, DataFrame],
    output: Path,
    notes: list[str],
    shown: DataFrame,
    as_json: bool,
    text: list[ShownTable] | None = None,
) -> None:
    """Write everything, print the table `shown` or its `text`, the notes and the files."""
    from qpd.analysis.figure_style import save_figure, save_tables

    written = save_tables(tables, output)
    for name, figure in figures.items():
        written += save_figure(figure, output, name)
    files = [str(path) for path in written]
    if as_json:
        rows = shown.astype(object).where(shown.notna(), None).to_dict("records")
        print_json({"rows": rows, "notes": notes, "files": files})
        return
    if text is None:
        rounded = shown.apply(lambda column: column.round(3) if column.dtype == float else column)
        rows = [[str(cell) for cell in row] for row in rounded.to_numpy()]
        print_table(list(shown.columns), rows)
    for table in text or ():
        print_text(table.title)
        print_table(table.header, table.rows)
    for line in [*notes, ", ".join(files)]:
        print_text(line)
