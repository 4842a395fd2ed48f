"""`qpd show` and `qpd recipes`: what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qpd.commands.output import AsJson, print_json, print_run, print_table
from qpd.commands.train import print_training


def show(
    run_path: Annotated[Path, typer.Argument(help="run directory")], as_json: AsJson = False
) -> None:
    """Print a run's results: returns, parameters, bytes; or how a training is."""
    from qpd.runs.training_run import is_training

    if is_training(run_path):
        print_training(run_path, as_json)
    else:
        print_run(run_path, as_json)


def recipes(as_json: AsJson = False) -> None:
    """List the recipes that come with QPD."""
    from qpd.recipe.loading import list_recipes

    shipped = list_recipes()
    if as_json:
        print_json({"recipes": [{"name": r.name, "description": r.description} for r in shipped]})
        return
    print_table(["recipe", "what it does"], [[r.name, r.description] for r in shipped])
