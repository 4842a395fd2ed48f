"""Recipes from YAML files: lookup, inheritance by `base`, overrides, validation.

Mistakes are collected over the whole chain of files and all overrides, and raised together.
"""

import difflib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import CodedLine
from qpd.files.bounded_read import TooLargeError, read_file
from qpd.recipe.differences import flat_settings
from qpd.recipe.merging import merge_mappings, merge_sections
from qpd.recipe.mistakes import accepts_text, describe_errors, recipe_field
from qpd.recipe.schema import EMBEDDED_TEACHER, Recipe, RecipeError
from qpd.recipe.section import RecipeSection
from qpd.recipe.shipped import list_recipes, name_of, recipes_folder
from qpd.recipe.yaml_text import MAX_RECIPE_BYTES, KeyPath, parse_recipe_text, parse_value

AnyRecipe = TypeVar("AnyRecipe", bound=RecipeSection)

OVERRIDE = "--set"
_AGENTS = ("pretrained/", "sb3/")  # folders of agents' names
_RECIPE_SUFFIXES = (".yaml", ".yml")
# Far more than anyone writes: a longer chain is a mistake or an attack.
_MAX_CHAIN = 8


@dataclass
class Layer:
    """The settings that one file, or all overrides together, contribute."""

    label: str
    data: dict[str, Any]
    line_of: dict[KeyPath, int] = field(default_factory=dict)

    def place(self, path: KeyPath) -> str:
        """Return `file:line` of a key that this layer sets, or the layer's label."""
        line = self.line_of.get(path)
        return f"{self.label}:{line}" if line else self.label


def load_recipe(
    path_or_name: str | Path, overrides: Sequence[str] = (), ignored: Sequence[KeyPath] = ()
) -> Recipe:
    """Read a recipe file, or a shipped recipe by name, with what it inherits, and check it all.

    Args:
        path_or_name: A YAML file, or a name such as `quickstart` or `paper/ppo-xxs`.
        overrides: Assignments such as `distill.lr=1e-3`, applied last, in order.
        ignored: Keys such as `("distill", "processes")` that are read as if they were not there.

    Raises:
        RecipeError: With one line per mistake: file, key, value, what is valid.
    """
    return load_typed_recipe(Recipe, path_or_name, overrides, ignored)


def load_typed_recipe(
    model: type[AnyRecipe],
    path_or_name: str | Path | None,
    overrides: Sequence[str] = (),
    ignored: Sequence[KeyPath] = (),
    beneath: Mapping[str, Any] | None = None,
) -> AnyRecipe:
    """Read a recipe of any type, as `load_recipe` does; without a file, of overrides alone.

    `beneath` are settings that everything else replaces.
    """
    mistakes: list[str] = []
    path, layers = None, []
    if path_or_name is not None:
        path = _find(str(path_or_name), Path.cwd(), str(path_or_name), mistakes)
        layers = _read_chain(path, mistakes) if path else []
    # Read even if the file is unreadable, so that one call reports all mistakes.
    layers.append(_read_overrides(overrides, mistakes, model))
    merged: dict[str, Any] = dict(beneath or {})
    for layer in layers:
        merged = merge_sections(merged, layer.data, model)
    for section, key in ignored:
        if isinstance(merged.get(section), dict):
            merged[section].pop(key, None)
    if path is not None:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).lstrip(".-_") or "recipe"
        # A file's stem may have characters that a run's name may not.
        merged.setdefault("name", stem)
    if path is not None and not mistakes:
        _check_kind(path, merged, model)
    recipe = _validate(merged, layers, mistakes, model)
    if recipe is None or mistakes:
        raise RecipeError(mistakes)
    return recipe


def _check_kind(path: Path, merged: Mapping[str, Any], model: type[RecipeSection]) -> None:
    """Raise RecipeError, one line, for a grid, or a run's recipe in place of a training's."""
    if "axes" in merged and "axes" not in model.model_fields:
        line = f"{file_label(path)}: is a grid: `qpd sweep {path}`"
        raise RecipeError([CodedLine(line, ErrorCode.RECIPE_UNKNOWN_KEY)])
    # One of the two is in every recipe, and the other in none of its kind.
    for own, other in (("train", "student"), ("student", "train")):
        if own in model.model_fields and own not in merged and other in merged:
            command = "train" if other == "train" else "run"
            line = (
                f"{file_label(path)}: is a recipe of another kind: it has {other}, not {own}: "
                f"`qpd {command} {path}`"
            )
            raise RecipeError([CodedLine(line, ErrorCode.RECIPE_UNKNOWN_KEY)])


def override_recipe(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """Return a resolved recipe with assignments such as `finetune.lr=1e-4` applied.

    Raises:
        RecipeError: With one line per mistake.
    """
    return load_typed_recipe(Recipe, None, overrides, beneath=recipe.model_dump(mode="json"))


def _validate(
    merged: Mapping[str, Any],
    layers: Sequence[Layer],
    mistakes: list[str],
    model: type[AnyRecipe],
) -> AnyRecipe | None:
    def place(path: KeyPath) -> str:
        # From the key itself up to its section, and in each from the last layer down: the line that
        # won.
        for end in range(len(path), 0, -1):
            for layer in reversed(layers):
                if any(key[:end] == path[:end] for key in layer.line_of):
                    return layer.place(path[:end])
        files = [layer for layer in layers if layer.label != OVERRIDE]
        return files[-1].label if files else OVERRIDE

    try:
        return model.model_validate(merged)
    except ValidationError as error:
        # What an unreadable file leaves out is no mistake of its own.
        mistakes += describe_errors(error, place, with_missing=not mistakes, model=model)
        return None


def _find(name: str, folder: Path, asked_by: str, mistakes: list[str]) -> Path | None:
    """Return the file that a path relative to `folder`, or a shipped recipe's name, stands for."""
    short = name.removeprefix("recipes/").removesuffix(".yaml")
    shipped = recipes_folder()
    try:
        # Files come before shipped recipes, so that a user's own quickstart.yaml is the one that is
        # run.
        for candidate in (folder / name, folder / f"{name}.yaml", shipped / f"{short}.yaml"):
            if candidate.is_file():
                return candidate
    except (OSError, ValueError):  # too long, or a NUL byte: no such file either
        pass
    names = [item.name for item in list_recipes()]
    names += [name_of(path) for path in _base_files()]
    # The name without its folder comes first: core-3 is controllers/core-3.
    close = [each for each in names if each.rpartition("/")[2] == short]
    close = close or difflib.get_close_matches(short, names, n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]}?" if close else "; `qpd recipes` lists what is shipped"
    if os.path.isdir(name) or name == "embedded" or name.startswith(_AGENTS):
        hint = f"; of an agent: `qpd run --teacher {name}`"
        if os.path.isfile(os.path.join(name, "recipe.yaml")):
            hint = f"; to go on with a run: `qpd run {name}/recipe.yaml -o {name}`"
    what = f"base: {name!r}" if asked_by != name else "this"
    line = f"{asked_by}: {what} is neither a recipe file nor a shipped recipe{hint}"
    mistakes.append(CodedLine(line, ErrorCode.RECIPE_NOT_FOUND))
    return None


def _base_files() -> list[Path]:
    return sorted(recipes_folder().rglob("base.yaml"))


def _read_chain(path: Path, mistakes: list[str]) -> list[Layer]:
    """Return the layers of a file and of all it inherits from, the most basic one first."""
    layers: list[Layer] = []
    seen: list[Path] = []
    current: Path | None = path
    while current is not None:
        resolved = current.resolve()
        label = file_label(current)
        if resolved in seen:
            chain = " -> ".join(file_label(item) for item in [*seen, resolved])
            line = f"{label}: base: recipes inherit from each other: {chain}"
            mistakes.append(CodedLine(line, ErrorCode.RECIPE_CONTRADICTION))
            break
        if len(seen) >= _MAX_CHAIN:
            line = f"{label}: base: more than {_MAX_CHAIN} recipes inherit in a row"
            mistakes.append(CodedLine(line, ErrorCode.RECIPE_WRONG_VALUE))
            break
        # Resolved, so that a link to a file that was already read counts as a circle.
        seen.append(resolved)
        layer = read_layer(current, label, mistakes)
        if layer is None:
            break
        _name_files_from_root(layer, resolved.parent)
        base = layer.data.pop("base", None)
        if layers:  # a name belongs to its own file
            layer.data.pop("name", None)
        layers.insert(0, layer)
        current = _base_of(base, resolved.parent, layer, mistakes)
    return layers


# Of students and trainings: agents, and VecNormalize's statistics.
FILE_KEYS = (("teacher", "source"), ("teacher", "vecnormalize"), ("train", "start_from"))


def _name_files_from_root(layer: Layer, folder: Path) -> None:
    """Take paths as relative to the recipe's `folder` where they lead to something from there.

    Else they are relative to the working directory, or hub ids. What a run has recorded stays.
    """
    if (folder / "manifest.json").exists():
        return
    for section, key in FILE_KEYS:
        settings = layer.data.get(section)
        if not isinstance(settings, dict) or key not in settings:
            continue
        settings[key] = file_from(folder, settings.get(key))


def file_from(folder: Path, value: Any) -> Any:
    """Return the path of a file or folder that `value` leads to from `folder`, else `value`."""
    if not isinstance(value, str) or not value or "\0" in value:
        return value
    if value == EMBEDDED_TEACHER or value.startswith("pretrained/"):  # QPD's own agents
        return value
    path = folder / value
    is_there = path.exists() or Path(f"{path}.zip").is_file()
    return os.path.abspath(path) if is_there else value


def _base_of(base: Any, folder: Path, layer: Layer, mistakes: list[str]) -> Path | None:
    if base is None:
        return None
    place = layer.place(("base",))
    if not isinstance(base, str) or not base:
        line = f"{place}: base: {base!r} must be a path or a shipped recipe's name"
        mistakes.append(CodedLine(line, ErrorCode.RECIPE_WRONG_TYPE))
        return None
    path = _find(base, folder, place, mistakes)
    if path is not None and path.suffix not in _RECIPE_SUFFIXES:
        line = f"{place}: base: {base!r} must be a .yaml file or a shipped recipe's name"
        mistakes.append(CodedLine(line, ErrorCode.RECIPE_WRONG_VALUE))
        return None
    return path


def file_label(path: Path) -> str:
    """Return a path as the user would write it."""
    resolved = path.resolve()
    for root in (Path.cwd(), recipes_folder().resolve().parent):
        if resolved.is_relative_to(root):
            return resolved.relative_to(root).as_posix()
    return str(path)


def read_layer(path: Path, label: str, mistakes: list[str]) -> Layer | None:
    """Return what a file says, or None; `mistakes` gets a line for each thing that is wrong."""
    try:
        # -sig: editors on Windows begin UTF-8 files with a byte order mark.
        text = read_file(path, MAX_RECIPE_BYTES).decode("utf-8-sig")
    except OSError as error:
        line = f"{label}: cannot be read: {error.strerror}"
        mistakes.append(CodedLine(line, ErrorCode.FILE_SYSTEM))
        return None
    except TooLargeError:
        why = "is larger than 64 KiB; this is not a recipe"
        mistakes.append(_no_yaml(label, f"{why}; of an agent: `qpd run --teacher {label}`"))
        return None
    except UnicodeDecodeError:
        agent = f"; of an agent: `qpd run --teacher {label}`" * (path.suffix == ".zip")
        mistakes.append(_no_yaml(label, f"is not UTF-8 text; this is not a recipe{agent}"))
        return None
    parsed = parse_recipe_text(text)
    mistakes += [_no_yaml(label, mistake) for mistake in parsed.mistakes]
    if parsed.mistakes and not parsed.data:
        return None
    return Layer(label, parsed.data, parsed.line_of)


def _no_yaml(label: str, mistake: str) -> CodedLine:
    return CodedLine(f"{label}: {mistake}", ErrorCode.RECIPE_NOT_YAML)


def refuse_repeated(own: Sequence[str], overrides: Sequence[str]) -> None:
    """Raise RecipeError for an override of a key that an option or argument, in `own`, sets too."""
    keys = {line.partition("=")[0].strip() for line in own}
    twice = [line for line in overrides if line.partition("=")[0].strip() in keys]
    if twice:
        raise RecipeError(
            [f"--set {line}: an option sets this key, too; give one of them" for line in twice],
            ErrorCode.COMMAND_LINE,
        )


def with_arguments(overrides: Sequence[str], **values: int | str | None) -> list[str]:
    """Add the keys that arguments give a value. Raises RecipeError for one of `overrides`."""
    own = [f"{key}={value}" for key, value in values.items() if value is not None]
    refuse_repeated(own, overrides)
    return [*overrides, *own]


def override_lines(overrides: Mapping[str, Any] | Sequence[str] | None) -> list[str]:
    """Return overrides as lines `key=value`; a mapping's values become JSON, which YAML reads.

    A mapping may be nested by section. Raises RecipeError for values that no recipe can hold.
    """
    if overrides is None:
        return []
    if isinstance(overrides, str):  # a sequence of characters otherwise
        return [overrides]
    if not isinstance(overrides, Mapping):
        return list(overrides)
    lines: list[str] = []
    mistakes: list[str] = []
    for key, value in flat_settings(overrides, keeps_empty=True).items():
        field = recipe_field(tuple(key.split(".")))
        if value is None and field is not None and field.is_required():
            line = f"{key}: None: a value is required"
            mistakes.append(CodedLine(line, ErrorCode.RECIPE_WRONG_VALUE))
            continue
        try:
            lines.append(override_line(key, value))
        except RecipeError as error:
            mistakes += error.lines
    if mistakes:
        raise RecipeError(mistakes)
    return lines


def override_line(key: str, value: Any) -> str:
    """Return `key=value`. Raises RecipeError for a value that no recipe can hold."""
    try:
        return f"{key}={value_text(value)}"
    except (TypeError, ValueError):
        line = f"{key}: {value!r:.40}: must be a number, text, a list or None"
        raise RecipeError([CodedLine(line, ErrorCode.RECIPE_WRONG_VALUE)]) from None


def value_text(value: Any) -> str:
    """Return a value as the right side of an override; text is quoted, so that it stays text.

    Infinity and NaN are no text of JSON's, but YAML's numbers.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return json.dumps(value, ensure_ascii=False, default=_plain, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return NumPy's and PyTorch's scalars as Python's, a path as text; TypeError for the rest."""
    return value.item() if hasattr(value, "item") else os.fspath(value)


def _read_overrides(
    overrides: Sequence[str], mistakes: list[str], model: type[RecipeSection]
) -> Layer:
    layer = Layer(OVERRIDE, {})
    for text in overrides:
        key, equals, raw = text.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            mistakes.append(_no_override(text, "must be key=value, for example distill.lr=1e-3"))
            continue
        if path == ("base",):
            mistakes.append(_no_override(text, "base can be set in a file only"))
            continue
        try:
            value = _override_value(path, raw.strip(), model)
        except ValueError as error:
            mistakes.append(_no_override(text, str(error)))
            continue
        _assign(layer, path, value)
    return layer


def _no_override(text: str, mistake: str) -> CodedLine:
    return CodedLine(f"{OVERRIDE} {text}: {mistake}", ErrorCode.RECIPE_OVERRIDE)


def _override_value(path: KeyPath, raw: str, model: type[RecipeSection]) -> Any:
    """Parse a value, except that a key which takes any text takes it literally."""
    quoted = raw[:1] in ("'", '"')
    # `--set name=123` or `student.size=XXS`: what takes text need not be quoted in a shell.
    if accepts_text(path, model) and not quoted:
        optional = recipe_field(path, model)
        is_null = raw in ("null", "~") and optional is not None and not optional.is_required()
        return None if is_null else raw
    return parse_value(raw)


def _assign(layer: Layer, path: KeyPath, value: Any) -> None:
    node = layer.data
    for key in path[:-1]:
        child = node.get(key)
        if not isinstance(child, dict):
            child = node[key] = {}
        node = child
    before = node.get(path[-1])
    if len(path) == 1 and isinstance(before, dict) and (value is None or isinstance(value, dict)):
        value = merge_mappings(before, value or {})  # a section: merged, as those of files are
    node[path[-1]] = value
    # Known, but on no line: `place` then names the label alone.
    layer.line_of[path] = 0
