"""Offer names on Tab: those that QPD knows. Files are completed by the shell itself."""

from __future__ import annotations


def complete_recipe(incomplete: str) -> list[tuple[str, str]]:
    """Return the shipped recipes that begin so, each with what it does."""
    from qpd.recipe.shipped import list_recipes

    shipped = list_recipes()
    return [(one.name, one.description) for one in shipped if one.name.startswith(incomplete)]


def complete_grid(incomplete: str) -> list[str]:
    """Return the shipped grids that begin so."""
    from qpd.recipe.shipped import list_grids

    return [name for name in list_grids() if name.startswith(incomplete)]


def complete_setting(incomplete: str) -> list[str]:
    """Return the keys of a recipe that begin so, `=` included; for some keys their values too."""
    from qpd.recipe.mistakes import all_key_paths
    from qpd.recipe.value_types import CNN_SIZES

    settings = [f"{key}=" for key in all_key_paths()]
    settings += [f"student.size={size}" for size in CNN_SIZES] if "=" in incomplete else []
    return [setting for setting in settings if setting.startswith(incomplete)]


def complete_policy(incomplete: str) -> list[str]:
    """Return the policies of a run that begin so."""
    policies = ("teacher", "distilled", "ptq", "qat")
    return [name for name in policies if name.startswith(incomplete)]


def complete_sizes(incomplete: str) -> list[str]:
    """Return the student sizes that continue a list such as `XXS,S`."""
    from qpd.recipe.value_types import CNN_SIZES

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{size}" for size in CNN_SIZES if size.startswith(last)]
