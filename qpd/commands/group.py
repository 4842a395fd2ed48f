"""`qpd distill --students --seeds`: several students in one process, on one play."""

from __future__ import annotations

from pathlib import Path

from qpd.commands.output import print_json, print_run, progress, stdout
from qpd.errors.codes import ErrorCode
from qpd.recipe.schema import Recipe, RecipeError


def distill_group(
    recipe: Recipe, folder: Path, students: str | None, seeds: str | None, as_json: bool
) -> None:
    """Run phase 1 for every size and seed, each with a run directory in `folder`."""
    from qpd.analysis.runs.run_table import run_summary
    from qpd.phases.distill import distill_together
    from qpd.phases.student_group import finish_group, member_recipes, open_group

    members = member_recipes(recipe, _listed(students), _seeds(seeds))
    with progress() as display, open_group(members, folder, recipe.device, display) as sessions:
        distill_together(sessions)
        finish_group(sessions)
    if as_json:
        print_json({"runs": {label: run_summary(folder / label) for label in members}})
        return
    for label in members:
        stdout.print(str(folder / label), style="bold")
        print_run(folder / label, as_json=False)


def _listed(text: str | None) -> list[str]:
    if text is None:
        return []
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise RecipeError(
            [f"--students {text!r}: names separated by commas, such as XXS,S"],
            ErrorCode.COMMAND_LINE,
        )
    return items


def _seeds(text: str | None) -> list[int]:
    if text is None:
        return []
    items = [item.strip() for item in text.split(",")]
    if not all(item.isdecimal() for item in items):
        raise RecipeError(
            [f"--seeds {text!r}: whole numbers separated by commas, such as 0,1,2"],
            ErrorCode.COMMAND_LINE,
        )
    return [int(item) for item in items]
