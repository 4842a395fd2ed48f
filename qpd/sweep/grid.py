"""The grid file of `qpd sweep`: a base recipe, and axes of values for any of its keys.

The models here are as strict as the recipe's. The meaning of the values is checked when the cells'
recipes are made (`qpd.sweep.cells`).
"""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import CodedLine
from qpd.recipe.loading import Layer, file_label, read_layer, value_text
from qpd.recipe.mistakes import KeyPath, describe_error
from qpd.recipe.schema import RecipeError
from qpd.recipe.section import RecipeSection
from qpd.recipe.shipped import list_grids, recipes_folder

# A grid file may come from anybody: a few axes of a few hundred values each would fill the memory,
# and every selection is compared with every cell.
MAX_CELLS = 10_000
MAX_SELECTIONS = 500

Values = dict[str, Any]


class CellResources(RecipeSection):
    """The resources that the pool reserves for each cell."""

    cpus: float = Field(1.0, gt=0, le=1024, description="cores; the cell uses as many threads")
    gpus: float = Field(0.0, ge=0, le=64, description="GPUs, or a share of one; 0 = hide them all")

    # Ray hands out shares below 1 and whole units, nothing in between.
    @field_validator("cpus", "gpus")
    @classmethod
    def _whole_above_one(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise PydanticCustomError("whole", "must be a whole number, or a share below 1")
        return value


class GridFile(RecipeSection):
    """A grid file as written."""

    base: str | None = Field(
        None, min_length=1, description="recipe of all cells; or an axis called base"
    )
    set_: Values = Field(default_factory=dict, alias="set", description="what all cells change")
    axes: dict[str, list[Any]] = Field(
        min_length=1, description="recipe key -> values; a cell for each combination"
    )
    exclude: list[Values] = Field(
        default_factory=list, description="cells to leave out: all that have these values"
    )
    include: list[Values] = Field(
        default_factory=list, description="further cells: a value for every axis, and other keys"
    )
    resources: CellResources = Field(default_factory=CellResources, description="of each cell")
    share_stream: bool | Literal["per_seed"] = Field(
        False, description="one play for all cells of a teacher; per_seed: only within a seed"
    )


@dataclass(frozen=True)
class Grid:
    """A checked grid file; `combinations` holds each cell's values by key, axes first."""

    path: Path
    label: str
    file: GridFile
    combinations: list[Values]
    layer: Layer

    def place(self, *path: str) -> str:
        """Return `file:line` of a key, or of the nearest one above it that has a line."""
        return _place(self.layer, path)


def load_grid(name: str) -> Grid:
    """Read a grid file, or a shipped grid by name; RecipeError with a line per mistake."""
    path = _find(name)
    label = file_label(path)
    mistakes: list[str] = []
    layer = read_layer(path, label, mistakes)
    if layer is None or mistakes:
        raise RecipeError(mistakes)
    if "axes" not in layer.data and {"teacher", "student", "train"} & layer.data.keys():
        command = "train" if "train" in layer.data else "run"
        line = f"{label}: is a recipe, not a grid: `qpd {command} {path}`"
        raise RecipeError([CodedLine(line, ErrorCode.RECIPE_UNKNOWN_KEY)])
    try:
        file = GridFile.model_validate(layer.data)
    except ValidationError as error:
        found = error.errors(include_url=False)
        # A misspelt `axes` is unknown and leaves `axes` missing; one line about it is enough.
        unknown = any(item["type"] == "extra_forbidden" for item in found)
        kept = [item for item in found if not (unknown and item["type"] == "missing")]
        raise RecipeError(
            list(dict.fromkeys(_describe(dict(item), layer) for item in kept))
        ) from None
    mistakes = _axis_mistakes(file, layer)
    if mistakes:
        raise RecipeError(mistakes, ErrorCode.GRID_WRONG)
    combinations = _combinations(file)
    if not combinations:
        raise RecipeError(
            [f"{_place(layer, ('exclude',))}: exclude: leaves no cell"], ErrorCode.GRID_WRONG
        )
    return Grid(path, label, file, combinations, layer)


def _find(name: str) -> Path:
    shipped = recipes_folder() / f"{name.removeprefix('recipes/').removesuffix('.yaml')}.yaml"
    try:
        for candidate in (Path(name), Path(f"{name}.yaml"), shipped):
            if candidate.is_file():
                return candidate
    except (OSError, ValueError):  # too long, or a NUL byte: no such file either
        pass
    names = list_grids()
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else f"shipped grids: {', '.join(names)}"
    raise RecipeError(
        [f"{name}: is neither a grid file nor a shipped grid; {hint}"], ErrorCode.RECIPE_NOT_FOUND
    )


def _place(layer: Layer, path: KeyPath) -> str:
    for end in range(len(path), 0, -1):
        if path[:end] in layer.line_of:
            return layer.place(path[:end])
    return layer.label


def _describe(error: Mapping[str, Any], layer: Layer) -> str:
    """Return one finding of pydantic as one line."""
    path = tuple(str(part) for part in error["loc"])
    key = ".".join(path)
    if error["type"] == "extra_forbidden":
        model = CellResources if len(path) > 1 else GridFile
        valid = [field.alias or name for name, field in model.model_fields.items()]
        close = difflib.get_close_matches(path[-1], valid, n=1)
        hint = f"did you mean {close[0]}?" if close else f"valid here: {', '.join(valid)}"
        line = f"{_place(layer, path)}: {key}: unknown key; {hint}"
        return CodedLine(line, ErrorCode.RECIPE_UNKNOWN_KEY)
    if error["type"] == "missing" or (path == ("axes",) and error["type"] == "too_short"):
        line = f"{_place(layer, path)}: axes: name at least one, such as seed: [0, 1]"
        return CodedLine(line, ErrorCode.RECIPE_MISSING_KEY)
    if path[0] == "share_stream":
        return f"{_place(layer, path)}: share_stream: must be true, false or per_seed"
    wanted = {"list_type": "must be a list", "dict_type": "must be a mapping of keys to values"}
    if error["type"] in wanted:
        line = f"{_place(layer, path)}: {key}: {error['input']!r} {wanted[error['type']]}"
        return CodedLine(line, ErrorCode.RECIPE_WRONG_TYPE)
    return describe_error(error, lambda found: _place(layer, found))


def _axis_mistakes(file: GridFile, layer: Layer) -> list[str]:
    mistakes = []
    if (file.base is None) == ("base" not in file.axes):
        mistakes.append(f"{layer.label}: base: name one recipe, or give an axis called base")
    count = 1
    for key, values in file.axes.items():
        where = f"{_place(layer, ('axes', key))}: axes.{key}"
        texts = [value_text(value) for value in values]
        if not values:
            mistakes.append(f"{where}: has no values")
        # Compared as text: 1 and True are equal in Python, and would be one value of a set.
        twice = sorted(text for text, times in Counter(texts).items() if times > 1)
        mistakes += [f"{where}: {text} is given twice" for text in twice]
        if key in file.set_:
            mistakes.append(f"{_place(layer, ('set', key))}: set.{key}: is an axis too")
        count *= len(values)
    for key in ({"base", "name"} & set(file.set_)) | ({"name"} & set(file.axes)):
        mistakes.append(f"{layer.label}: {key}: cannot be set by a grid; cells are named by axes")
    if count > MAX_CELLS:
        mistakes.append(f"{layer.label}: axes: {count:,} cells; at most {MAX_CELLS:,}")
    return mistakes + _selection_mistakes(file, layer)


def _selection_mistakes(file: GridFile, layer: Layer) -> list[str]:
    """Return a line per mistake in `exclude` and `include`."""
    mistakes = [
        f"{_place(layer, (key,))}: {key}: {len(found):,} entries; at most {MAX_SELECTIONS}"
        for key, found in (("exclude", file.exclude), ("include", file.include))
        if len(found) > MAX_SELECTIONS
    ]
    if mistakes:
        return mistakes
    on_axis = {key: set(map(value_text, values)) for key, values in file.axes.items()}
    for index, chosen in enumerate(file.exclude):
        where = f"{_place(layer, ('exclude', str(index)))}: exclude.{index}"
        for key, value in chosen.items():
            if key not in file.axes:
                mistakes.append(f"{where}: {key} is not an axis; axes are {', '.join(file.axes)}")
            elif value_text(value) not in on_axis[key]:
                mistakes.append(f"{where}: {key}: {value_text(value)} is not on that axis")
    for index, added in enumerate(file.include):
        where = f"{_place(layer, ('include', str(index)))}: include.{index}"
        mistakes += [f"{where}: names no {key}" for key in file.axes if key not in added]
        if "name" in added:
            mistakes.append(f"{where}: name: cannot be set by a grid; cells are named by axes")
    return mistakes


def _combinations(file: GridFile) -> list[Values]:
    """Return each cell's values, the last axis varying fastest, then the included cells."""
    every = itertools.product(*file.axes.values())
    cells = [dict(zip(file.axes, values, strict=True)) for values in every]
    excluded = [_texts(out) for out in file.exclude]
    kept = [cell for cell in cells if not _is_excluded(_texts(cell), excluded)]
    return kept + [{key: added[key] for key in file.axes} | added for added in file.include]


def _is_excluded(cell: set[tuple[str, str]], excluded: list[set[tuple[str, str]]]) -> bool:
    return any(out <= cell for out in excluded)


def _texts(values: Values) -> set[tuple[str, str]]:
    return {(key, value_text(value)) for key, value in values.items()}
