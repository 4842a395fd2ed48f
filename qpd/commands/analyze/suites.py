"""`qpd analyze errors`, `bits`, `losses`, `exploration`: QuaRL's questions about agents."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from qpd.commands.analyze.extra import analysis_extra
from qpd.commands.analyze.output import Output, print_analysis, save_analysis
from qpd.commands.environment_options import environment_wish
from qpd.commands.output import (
    AsJson,
    EnvKwargs,
    EnvOption,
    FrameStack,
    Quiet,
    VecNormalize,
    WrapperOption,
    progress,
)

Suites = Annotated[
    list[Path], typer.Argument(help="folders of `qpd quantize AGENT... -o FOLDER`, or of such")
]


def add_suite_commands(app: typer.Typer) -> None:
    """Register the commands of this file on `qpd analyze`."""
    app.command("errors")(analyze_errors)
    app.command("bits")(analyze_bits)
    app.command("losses")(analyze_losses)
    app.command("weights")(analyze_weights)
    app.command("exploration")(analyze_exploration)


def analyze_errors(suites: Suites, output: Output = None, as_json: AsJson = False) -> None:
    """Tabulate what rounding costs agents and algorithms: QuaRL's Tables 2, 3 and 5 to 8."""
    with analysis_extra():
        from qpd.analysis.suites.relative_errors import (
            NOTES,
            errors_tables,
            mean_errors,
            relative_errors,
        )
        from qpd.analysis.suites.suite_frame import suite_frame, suite_results

        frame = suite_frame(suite_results(suites))
        table, means = relative_errors(frame), mean_errors(frame)
        tables = {"errors": table, "errors_by_algorithm": means}
        written = save_analysis(tables, {}, output)
    print_analysis(tables, errors_tables(table, means), NOTES, written, as_json)


def analyze_bits(suites: Suites, output: Output = None, as_json: AsJson = False) -> None:
    """Show returns over bits, and each agent's sweet spot: QuaRL's Figures 2 and 7."""
    with analysis_extra():
        from qpd.analysis.suites.suite_frame import suite_results
        from qpd.analysis.suites.sweet_spot import (
            MOST_PANELS,
            bits_figure,
            returns_by_bits,
            sweet_spot_table,
            sweet_spots,
        )

        results = suite_results(suites)
        table, spots = returns_by_bits(results), sweet_spots(results)
        tables = {"returns_by_bits": table, "sweet_spots": spots}
        figures = {"returns_by_bits": lambda: bits_figure(table)} if len(table) else {}
        written = save_analysis(tables, figures, output)
    notes = [
        "sweet spot: numbers of bits whose paired games are not worse than the best one's, at 5% "
        "for all pairs of an agent's together (Holm); fewest: it and all higher ones keep 95% of "
        "R_fp32 - R_random"
    ]
    if few := sorted({each.name for each in results} - set(spots["agent"] if len(spots) else [])):
        notes.append(f"no sweet spot of fewer than three numbers of bits: {', '.join(few)}")
    count = table["agent"].nunique() if len(table) else 0
    if output is not None and count > MOST_PANELS:
        notes.append(
            f"the first {MOST_PANELS} of {count} agents are drawn; returns_by_bits.csv has all"
        )
    print_analysis(tables, [sweet_spot_table(spots)], notes, written, as_json)


def analyze_losses(suites: Suites, output: Output = None, as_json: AsJson = False) -> None:
    """Tell which of weight range, SQNR and changed actions predicts what an agent loses."""
    with analysis_extra():
        from qpd.analysis.suites.loss_predictors import (
            loss_predictors,
            predictors_figure,
            predictors_table,
            with_changed_actions,
        )
        from qpd.analysis.suites.suite_frame import suite_frame, suite_results

        frame = suite_frame(suite_results(suites))
        table = loss_predictors(frame)
        tables = {"loss_predictors": table, "losses": with_changed_actions(frame)}
        written = save_analysis(tables, {"losses": lambda: predictors_figure(frame)}, output)
    notes = ["of fewer than 5 agents no correlation is given"] if table.empty else []
    print_analysis(tables, [predictors_table(table)], notes, written, as_json)


def analyze_weights(
    agents: Annotated[list[str], typer.Argument(help="SB3 zips, RL Zoo folders or hub ids")],
    output: Output = None,
    env: EnvOption = None,
    env_kwargs: EnvKwargs = None,
    wrapper: WrapperOption = None,
    frame_stack: FrameStack = None,
    vecnormalize: VecNormalize = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show distributions of an agent's weights and activations, and what rounding does."""
    with analysis_extra():
        import pandas as pd

        from qpd.analysis.suites.distributions import (
            distribution_rows,
            distribution_tables,
            distributions_figure,
            layer_distributions,
        )
        from qpd.teachers import load_teacher
        from qpd.teachers.archive.agent_identity import agent_name, free_name

        wish = environment_wish(env, env_kwargs, wrapper, frame_stack)
        wish.allow_modules()
        rows, figures, names = [], {}, set[str]()
        with progress(quiet) as display:
            for source in agents:
                teacher = load_teacher(source, env_id=wish.env_id, vec_normalize=vecnormalize)
                name = free_name(agent_name(teacher.algo, teacher.env_id), names)
                names.add(name)
                layers = layer_distributions(teacher, wish, display)
                rows.append(distribution_rows(name, layers))
                figures[f"weights_{name}"] = partial(distributions_figure, name, layers)
        table = pd.concat(rows, ignore_index=True)
        written = save_analysis({"weights": table}, figures, output)
    notes = [
        "SQNR in dB of affine weights at 8 and 4 bits, by what shares a range; columns apart: the "
        "widest input column's range over the narrowest one's"
    ]
    print_analysis({"weights": table}, distribution_tables(table), notes, written, as_json)


def analyze_exploration(
    runs: Annotated[list[Path], typer.Argument(help="trainings with train.keep_checkpoints=true")],
    games: Annotated[int, typer.Option(min=1, max=1000, help="greedy, of each checkpoint")] = 16,
    output: Output = None,
    env: EnvOption = None,
    env_kwargs: EnvKwargs = None,
    wrapper: WrapperOption = None,
    frame_stack: FrameStack = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show action variance and entropy while agents learn in few bits: QuaRL's Figure 1."""
    with analysis_extra():
        from qpd.analysis.suites.exploration import (
            exploration,
            exploration_figure,
            exploration_table,
            paired_with_float,
        )

        wish = environment_wish(env, env_kwargs, wrapper, frame_stack)
        wish.allow_modules()
        with progress(quiet) as display:
            table = exploration(runs, games, display, wish)
        paired = paired_with_float(table)
        tables = {"exploration": table, "exploration_last": paired}
        written = save_analysis(tables, {"exploration": lambda: exploration_figure(table)}, output)
    notes = [
        "variance over actions of the probabilities, mean over states of greedy play: 0 if "
        "uniform; common states: those of the float agent of the same seed; differences over "
        "seeds, t's 95%"
    ]
    print_analysis(tables, [exploration_table(paired)], notes, written, as_json)
