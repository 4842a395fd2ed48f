"""`qpd sweep`: a grid of runs on a pool of workers, and the two commands its workers start."""

from __future__ import annotations

import os
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from qpd.commands.completion import complete_grid
from qpd.commands.output import (
    AsJson,
    Quiet,
    console,
    print_json,
    print_table,
    print_text,
    progress,
)
from qpd.errors.codes import ErrorCode


def sweep(
    grid: Annotated[
        str,
        typer.Argument(
            help="grid file, or the name of a shipped one", autocompletion=complete_grid
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="folder; default runs/<grid's name>")
    ] = None,
    address: Annotated[
        str, typer.Option(help="Ray cluster: auto, HOST:PORT or ray://HOST:PORT")
    ] = "local",
    cpus_per_cell: Annotated[
        float | None, typer.Option(help="cores per cell; default: the grid's resources.cpus")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="print the cells and exit")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run every cell of a grid of recipes; finished cells are skipped, the others resume.

    On a cluster the output folder must be on a file system that all nodes share.
    """
    from qpd.sweep.cells import check_folders, make_cells
    from qpd.sweep.grid import load_grid
    from qpd.sweep.ray_pool import require_ray
    from qpd.sweep.run import Sweep, open_output
    from qpd.sweep.sharing import plan_batches

    loaded = load_grid(grid)
    cells = make_cells(loaded)
    folder = output or Path("runs") / loaded.path.stem
    wants = loaded.file.resources
    if cpus_per_cell is not None:
        wants = _with_cpus(wants, cpus_per_cell)
    check_folders(cells, folder)
    if list_:
        _print_outcome(Sweep(cells, [], folder, wants), as_json)
        return
    if not folder.exists():  # else its cells may all be done, which needs no Ray
        require_ray()
    _check_fit(cells, folder)
    with open_output(folder):
        batches = plan_batches(cells, folder.resolve(), loaded.file.share_stream)
        work = Sweep(cells, batches, folder, wants)
        _run(work, address, quiet)
    if as_json or not quiet:
        _print_outcome(work, as_json)
    if any(status.state != "done" for status in work.cells.values()):
        raise typer.Exit(1)


def _check_fit(cells: list[Any], folder: Path) -> None:
    """Raise UserError with a line for each way in which agents, sizes and environments misfit.

    Of cells that differ in nothing that fits or does not, such as the seed, the first is looked at.
    """
    from qpd.errors.user_error import CodedLine, UserError
    from qpd.phases.preparation import PreparationError, prepare
    from qpd.runs.played_environment import recipe_wish
    from qpd.sweep.cells import CellProgress, cell_progress

    # What `prepare` looks at.
    fitting: dict[str, Any] = dict.fromkeys(
        ("teacher", "environment", "student", "collection", "replay", "evaluation"), True
    )
    labels = {"loss", "temperature", "actor_weight"}
    fitting |= {"distill": labels, "finetune": labels | {"reward"}}
    fitting["quantize"] = {"input_bits", "scheme"}
    looked_at: set[str] = set()
    mistakes: dict[str, CodedLine] = {}
    for cell in cells:
        if cell_progress(folder / cell.name) != CellProgress():  # begun: it did fit
            continue
        key = cell.recipe.model_dump_json(include=fitting)
        if key in looked_at:
            continue
        looked_at.add(key)
        recipe_wish(cell.recipe).allow_modules()
        try:
            prepare(cell.recipe, "cpu")
        except UserError as error:
            for line in error.lines:
                code = getattr(line, "code", error.code)
                mistakes.setdefault(line, CodedLine(f"{cell.name}: {line}", code))
    if mistakes:
        raise PreparationError(list(mistakes.values()))


def sweep_cell(
    recipe: Path,
    output: Annotated[Path, typer.Option("-o", "--output")],
    distilled: Annotated[Path | None, typer.Option()] = None,
    memory: Annotated[Path | None, typer.Option()] = None,
    games: Annotated[Path | None, typer.Option()] = None,
) -> None:
    """Run one cell, in the process that a worker of the pool started for it."""
    from qpd.phases.shared_games import SharedGames
    from qpd.phases.whole_run import DistilledElsewhere, run_all_phases
    from qpd.sweep.worker import begin_supervised

    begin_supervised()
    source = DistilledElsewhere(distilled, memory) if distilled and memory else None
    shared_games = SharedGames(games) if games else None
    with progress() as display:
        run_all_phases(_users_recipe(recipe), output, display, source, shared_games)


def sweep_group(folder: Path) -> None:
    """Run phase 1 of the students in FOLDER/recipes, in a process that a worker started."""
    from qpd.phases.distill import distill_together
    from qpd.phases.student_run import open_students
    from qpd.sweep.worker import begin_supervised

    begin_supervised()
    files = sorted((folder / "recipes").glob("*.yaml"))
    members = {file.stem: _users_recipe(file) for file in files}
    device = next(iter(members.values())).device
    with progress() as display, open_students(members, folder, device, display) as (students, play):
        distill_together(students, play, display)


def _users_recipe(file: Path) -> Any:
    """Load a recipe that the user's grid made: what it names may be imported."""
    from qpd.recipe.loading import load_recipe
    from qpd.runs.played_environment import recipe_wish

    recipe = load_recipe(file)
    recipe_wish(recipe).allow_modules()
    return recipe


def _with_cpus(wants: Any, cpus: float) -> Any:
    from pydantic import ValidationError

    from qpd.recipe.schema import RecipeError
    from qpd.sweep.grid import CellResources

    try:
        return CellResources(cpus=cpus, gpus=wants.gpus)
    except ValidationError as error:
        message = error.errors()[0]["msg"].replace("Input should be", "must be")
        raise RecipeError(
            [f"--cpus-per-cell {cpus:g}: {message}"], ErrorCode.COMMAND_LINE
        ) from None


def _run(work: Any, address: str, quiet: bool) -> None:
    """Run the unfinished cells, if there are any."""
    from qpd.sweep.display import SweepDisplay
    from qpd.sweep.ray_pool import open_pool

    if all(status.state == "done" for status in work.cells.values()):
        return
    wants = work.wants
    # Ray prints a paragraph on stdout for every lost worker; the display tells of it in a word.
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        with open_pool(address, work.output, wants.cpus, wants.gpus) as pool:
            with SweepDisplay(console(quiet)) as display:
                work.run(pool, display)


def _print_outcome(work: Any, as_json: bool) -> None:
    """Print the table that a sweep ends with, or one JSON object."""
    from qpd.analysis.runs.sweep_table import sweep_caption, sweep_rows, sweep_summary

    summary = sweep_summary(work.statuses)
    if as_json:
        print_json({"output": str(work.output), **summary})
        return
    header, rows = sweep_rows(summary)
    print_table(header, rows)
    for line in sweep_caption(summary):
        print_text(line)
