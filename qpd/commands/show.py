"""`qpd show` and `qpd recipes`: what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qpd.commands.completion import complete_recipe
from qpd.commands.output import AsJson, print_json, print_run, print_table
from qpd.commands.train import print_training


def show(
    runs: Annotated[list[Path], typer.Argument(help="run directories")], as_json: AsJson = False
) -> None:
    """Print runs' results: returns, parameters, bytes; or how trainings are.

    With --json an object a line, of several runs.
    """
    from qpd.runs.run_folder import require_manifest
    from qpd.runs.training_run import is_training

    # All are looked at first. PyTorch need not be waited for to hear that one is no run.
    trainings = [is_training(path) for path in runs]
    for path, is_a_training in zip(runs, trainings, strict=True):
        if not is_a_training:
            require_manifest(path)
    for path, is_a_training in zip(runs, trainings, strict=True):
        (print_training if is_a_training else print_run)(path, as_json)


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(help="a recipe or grid to print", autocompletion=complete_recipe),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes that come with QPD, or print one: `qpd recipes quickstart > mine.yaml`."""
    from qpd.recipe.shipped import list_recipes, shipped_text

    if name is not None:
        text = shipped_text(name)
        if as_json:
            print_json({"name": name, "text": text})
        else:
            print(text, end="")
        return
    shipped = list_recipes()
    if as_json:
        print_json({"recipes": [{"name": r.name, "description": r.description} for r in shipped]})
        return
    print_table(["recipe", "what it does"], [[r.name, r.description] for r in shipped])
