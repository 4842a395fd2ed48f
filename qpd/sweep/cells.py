"""A grid's cells: their recipes, their folders' names, and their progress."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import reworded
from qpd.recipe.differences import recipe_differences
from qpd.recipe.loading import FILE_KEYS, OVERRIDE, file_from, load_recipe, value_text
from qpd.recipe.schema import Recipe, RecipeError
from qpd.runs.manifest import PHASES
from qpd.runs.metrics_log import MetricsLogError, read_metrics
from qpd.runs.run_directory import RunDirectory, at_same_place
from qpd.sweep.grid import Grid, Values

_SHORT = {"quantize.weight_bits": "bits", "quantize.activation_bits": "activation_bits"}
_SHORT |= {"teacher.source": "teacher", "distill.actor_weight": "lambda"}
_MAX_VALUE, _MAX_NAME = 40, 200  # file systems allow 255 bytes, and QPD adds suffixes
_ENOUGH = 2000  # lines of mistakes; finding one may take a millisecond


@dataclass(frozen=True)
class Cell:
    """One run of a sweep; `name` is that of its folder."""

    name: str
    recipe: Recipe


def make_cells(grid: Grid) -> list[Cell]:
    """Return every cell with its valid recipe; RecipeError with a line per mistake."""
    # Single values first, each once: a wrong value would otherwise be reported by every cell that
    # has it.
    mistakes = _value_mistakes(grid)
    if mistakes:
        raise RecipeError(mistakes)
    cells, found = [], dict.fromkeys(mistakes)
    for name, values in zip(cell_names(grid), grid.combinations, strict=True):
        try:
            cells.append(Cell(name, _recipe(grid, name, values)))
        except RecipeError as error:
            found |= dict.fromkeys(
                reworded(line, f"{grid.label}: cell {name}: {_bare(line)}") for line in error.lines
            )
            if len(found) > _ENOUGH:
                break
    if found:
        raise RecipeError(list(found))
    return cells


def _recipe(grid: Grid, name: str, values: Values) -> Recipe:
    changes = {**grid.file.set_, **values}
    base = str(changes.pop("base", grid.file.base))
    for key in map(".".join, FILE_KEYS):
        if key in changes:
            changes[key] = file_from(grid.path.parent, changes[key])
    overrides = [f"{key}={value_text(value)}" for key, value in changes.items()]
    # Recipes allow fewer characters in a run's name than file systems do in a folder's.
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name.replace(",", "_"))[:100]
    return load_recipe(_base_path(grid, base), [*overrides, f"name={plain}"])


def _base_path(grid: Grid, base: str) -> str:
    """Return a file beside the grid file, else the name as it is, for `load_recipe` to find."""
    for candidate in (grid.path.parent / base, grid.path.parent / f"{base}.yaml"):
        if candidate.is_file():
            return str(candidate)
    return base


def _value_mistakes(grid: Grid) -> list[str]:
    """Return a line per mistake in single values, each tried in the first cell."""
    first = grid.combinations[0]
    tried: list[tuple[tuple[str, ...], str, Any]]
    tried = [(("axes", key), key, value) for key in grid.file.axes for value in grid.file.axes[key]]
    tried += [(("set", key), key, value) for key, value in grid.file.set_.items()]
    tried += [
        (("include", str(index), key), key, value)
        for index, added in enumerate(grid.file.include)
        for key, value in added.items()
    ]
    known = _lines(grid, first)
    mistakes: dict[str, None] = {}
    own, num_lines = set(first) | set(grid.file.set_), 0
    for path, key, value in tried:
        lines = _lines(grid, {**first, key: value})
        num_lines += len(lines)
        if num_lines > _ENOUGH:  # a base that is wrong itself is so in every cell
            break
        for line in lines:
            # A value may also break a rule about several keys; then only lines that the first cell
            # alone does not cause count.
            about = f"{key}:" in line or f"{key}=" in line or key == "base"
            if about or (line not in known and key not in own):
                placed = f"{grid.place(*path)}: {path[0]}: {_bare(line)}"
                mistakes[reworded(line, placed)] = None
    told = " ".join(mistakes)
    rest = [line for line in known if _bare(line) not in told]
    return [*mistakes, *(reworded(line, f"{grid.label}: {_bare(line)}") for line in rest)]


def _lines(grid: Grid, values: Values) -> list[str]:
    try:
        _recipe(grid, "cell", values)
    except RecipeError as error:
        return error.lines
    return []


def _bare(line: str) -> str:
    return re.sub(rf"^{OVERRIDE}:? ", "", line)


def cell_names(grid: Grid) -> list[str]:
    """Return each cell's folder, as `size=XXS,seed=0,bits=8`; unique even ignoring case.

    Raises RecipeError for a cell that is named twice, or a name too long for a folder.
    """
    label = _labels(grid)
    names: list[str] = []
    taken: set[str] = set()
    texts = {key: ShortTexts() for key in label}
    for values in grid.combinations:
        parts = [f"{label[key]}={texts[key].of(value)}" for key, value in values.items()]
        name = ",".join(parts)
        # Axes cannot clash with each other; an included cell may repeat one.
        if name in taken:
            raise RecipeError(
                [f"{grid.label}: include: the cell {name} exists already"], ErrorCode.GRID_WRONG
            )
        # In bytes, as file systems count them.
        if len(name.encode()) > _MAX_NAME:
            raise RecipeError(
                [f"{grid.label}: axes: too many; {name} is too long for a folder"],
                ErrorCode.GRID_WRONG,
            )
        taken.add(name)
        names.append(name)
    return names


def _labels(grid: Grid) -> dict[str, str]:
    """Return the short name of each key, or the key itself where two would be the same."""
    # `distill.lr` and `finetune.lr` as axes both shorten to `lr`; such keys keep their full name.
    axes = {key: _short(key) for key in grid.file.axes}
    times = Counter(axes.values())
    label = {key: name if times[name] == 1 else key for key, name in axes.items()}
    # Keys of included cells make way for those before them: cells that are added to a grid later
    # must not rename finished ones.
    for values in grid.file.include:
        for key in values:
            if key not in label:
                label[key] = key if _short(key) in times else _short(key)
                times[_short(key)] += 1
    return label


def _short(key: str) -> str:
    return _SHORT.get(key, key.rpartition(".")[2])


class ShortTexts:
    """The values of a key as parts of folder names, each with a text of its own, ignoring case.

    macOS and Windows have file systems on which `S` and `s` are one folder.
    """

    def __init__(self) -> None:
        """Start with no text taken."""
        self._known: dict[str, str] = {}
        self._taken: set[str] = set()
        self._numbers: Counter[str] = Counter()

    def of(self, value: Any) -> str:
        """Return the text of `value`, the same every time."""
        exact = value_text(value)
        if exact not in self._known:
            plain = value if isinstance(value, str) else exact
            text = re.sub(r"[^A-Za-z0-9._+-]+", "-", plain).strip("-.")[-_MAX_VALUE:] or "empty"
            free, folded = text, text.lower()
            while free.lower() in self._taken:
                self._numbers[folded] += 1
                free = f"{text}-{self._numbers[folded] + 1}"
            self._taken.add(free.lower())
            self._known[exact] = free
        return self._known[exact]


def check_folders(cells: list[Cell], output: Path) -> None:
    """Raise RecipeError naming all cells whose folder belongs to another recipe."""
    lines = []
    for cell in cells:
        path = output / cell.name
        if not (path / "recipe.yaml").is_file():
            continue
        found = RunDirectory.open(path, read_only=True).recipe
        differences = recipe_differences(at_same_place(found, cell.recipe), cell.recipe)
        if differences:
            more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
            lines.append(f"{path}: was made with another recipe: {differences[0]}{more}")
    if lines:
        raise RecipeError(
            [*lines, f"{output}: choose another -o, or remove those cells"],
            ErrorCode.RUN_OTHER_RECIPE,
        )


@dataclass(frozen=True)
class CellProgress:
    """The progress of a cell's run: `finished`, or the phase it is in and its last epoch."""

    finished: bool = False
    phase: str = ""
    epoch: int = 0

    def __str__(self) -> str:
        """Return `finetune, epoch 3`; empty if nothing has begun."""
        return f"{self.phase}, epoch {self.epoch}" if self.epoch else self.phase


def cell_progress(path: Path) -> CellProgress:
    """Read the progress of the run directory at `path`; without one nothing has begun."""
    if not (path / "manifest.json").is_file() or not (path / "recipe.yaml").is_file():
        return CellProgress()
    run = RunDirectory.open(path, read_only=True)
    open_phases = [name for name in PHASES if run.phase(name).state != "done"]
    if not open_phases:
        return CellProgress(finished=True)
    return CellProgress(False, open_phases[0], _last_epoch(run.metrics_file, open_phases[0]))


def _last_epoch(metrics: Path, phase: str) -> int:
    try:
        rows = [row for row in read_metrics(metrics) if row.get("phase") == phase]
        return int(rows[-1]["epoch"]) if rows else 0
    except (OSError, MetricsLogError):  # the run is writing to it at this moment
        return 0
