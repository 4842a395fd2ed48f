"""pydantic's errors as one line each: place, key, value, what is valid, nearest valid name."""

import difflib
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import CodedLine
from qpd.recipe.schema import Recipe

KeyPath = tuple[str, ...]

_MAX_FINDINGS = 50  # to look for the nearest key takes a millisecond
_RIGHT = {
    "int_type": "must be a whole number, without point or exponent",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text; put it in quotes",
    "string_too_short": "must not be empty",
    "finite_number": "must be a finite number",
    "model_type": "must be a mapping of keys to values",
    "tuple_type": "must be a list of whole numbers",
}


def section_model(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a recipe section, None for a plain value."""
    annotation = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None


def recipe_field(path: KeyPath, model: type[BaseModel] = Recipe) -> FieldInfo | None:
    """Return the field that a key path such as ("distill", "lr") names, None if there is none."""
    section: type[BaseModel] | None = model
    field = None
    for key in path:
        field = section.model_fields.get(key) if section else None
        if field is None:
            return None
        section = section_model(field)
    return field


def accepts_text(path: KeyPath, model: type[BaseModel] = Recipe) -> bool:
    """Return whether the key takes any text (names, paths, sizes), so that `123` is text too."""
    field = recipe_field(path, model)
    if field is None:
        return False
    annotation = field.annotation
    choices = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ()
    # Annotated[str, ...] has its validators in __metadata__ and the bare type as first argument.
    plain = [get_args(c)[0] if hasattr(c, "__metadata__") else c for c in choices or [annotation]]
    return str in plain


def all_key_paths(model: type[BaseModel] = Recipe) -> list[str]:
    """Return every valid dotted key of a recipe, sections included."""
    paths: list[str] = []
    for name, field in model.model_fields.items():
        paths.append(name)
        section = section_model(field)
        if section is not None:
            paths += [f"{name}.{key}" for key in section.model_fields]
    return paths


def nearest_key(path: KeyPath, model: type[BaseModel] = Recipe) -> str:
    """Return a hint that names the valid key nearest to an unknown one, or all valid ones."""
    dotted, known = ".".join(path), all_key_paths(model)
    parent = ".".join(path[:-1])
    prefix = f"{parent}." if parent else ""
    depth = prefix.count(".")
    siblings = [k for k in known if k.startswith(prefix) and k.count(".") == depth]
    names = [key.removeprefix(prefix) for key in siblings]
    close = difflib.get_close_matches(path[-1], names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {prefix}{close[0]}?"
    # A right key in the wrong section, as when `lr` stands at the top, comes before a similar name.
    elsewhere = [key for key in known if key.split(".")[-1] == path[-1]]
    elsewhere += difflib.get_close_matches(dotted, known, n=1, cutoff=0.75)
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    return f"valid here: {', '.join(names)}" if names else "no keys are valid here"


def _right_and_candidates(error: Mapping[str, Any]) -> tuple[str, list[str]]:
    context = error.get("ctx", {})
    if error["type"] == "literal_error":
        expected = context["expected"]
        # pydantic joins the choices into one text, "'a', 'b' or 'c'": they are read back from
        # there.
        return f"must be {expected.replace(chr(39), '')}", re.findall(r"'([^']*)'", expected)
    if error["type"] in ("too_short", "too_long"):
        wanted = context.get("min_length") or context.get("max_length")
        side = "at least" if error["type"] == "too_short" else "at most"
        return f"must be a list of {side} {wanted} whole numbers", []
    message = error["msg"].replace("Input should be", "must be").removeprefix("Value error, ")
    return _RIGHT.get(error["type"], message), list(context.get("candidates", []))


def _show(value: Any) -> str:
    if value is None:
        return "null"
    value = list(value) if isinstance(value, tuple) else value
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else text[:57] + "..."


def _code(error: Mapping[str, Any]) -> ErrorCode:
    """Return the code of one of pydantic's errors, by its type."""
    kind = error["type"]
    if kind == "extra_forbidden":
        return ErrorCode.RECIPE_UNKNOWN_KEY
    if kind == "missing":
        return ErrorCode.RECIPE_MISSING_KEY
    if kind in ("cross_field", "student_form"):
        return ErrorCode.RECIPE_CONTRADICTION
    # pydantic's types of error are part of its interface; its texts change from version to version.
    is_type = kind.endswith("_type") or kind in ("too_short", "too_long")
    return ErrorCode.RECIPE_WRONG_TYPE if is_type else ErrorCode.RECIPE_WRONG_VALUE


def describe_error(
    error: Mapping[str, Any], place: Callable[[KeyPath], str], model: type[BaseModel] = Recipe
) -> CodedLine:
    """Return one of pydantic's errors as one line; `place` gives the origin of a key path."""
    return CodedLine(_sentence(error, place, model), _code(error))


def _sentence(
    error: Mapping[str, Any], place: Callable[[KeyPath], str], model: type[BaseModel]
) -> str:
    context = error.get("ctx", {})
    path = tuple(str(part) for part in error["loc"])
    # A validator over several keys reports the section; ours say in `ctx` which key is at fault.
    if "key" in context:
        path = tuple(context["key"].split("."))
    key = ".".join(path)
    if error["type"] == "extra_forbidden":
        return f"{place(path)}: {key}: unknown key; {nearest_key(path, model)}"
    if error["type"] == "missing":
        field = recipe_field(path, model)
        hint = f" ({field.description})" if field and field.description else ""
        return f"{place(path)}: {key}: is missing{hint}"
    right, candidates = _right_and_candidates(error)
    given = error["input"]
    if isinstance(given, BaseModel | dict):  # a rule over several keys has no one value to show
        # A rule of the whole recipe names its keys itself.
        return ": ".join(part for part in (place(path), key, right) if part)
    close = difflib.get_close_matches(str(given).lower(), [c.lower() for c in candidates], n=1)
    by_lower = {c.lower(): c for c in candidates}
    hint = f"; did you mean {by_lower[close[0]]}?" if close else ""
    return f"{place(path)}: {key}: {_show(given)} {right}{hint}"


def _follows(item: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a list is too short only because one of its elements is wrong."""
    size = len(item["loc"])
    return item["type"] == "too_short" and any(
        len(other["loc"]) > size and other["loc"][:size] == item["loc"] for other in found
    )


def describe_errors(
    error: ValidationError,
    place: Callable[[KeyPath], str],
    *,
    with_missing: bool = True,
    model: type[BaseModel] = Recipe,
) -> list[str]:
    """Return a line for each of pydantic's errors; `place` gives the origin of a key.

    Missing keys are left out unless `with_missing`. `model` is the recipe's type.
    """
    # The URL is pydantic's documentation, which no user of ours needs.
    first = error.errors(include_url=False)[:_MAX_FINDINGS]
    found = [item for item in first if not _follows(item, first)]
    # A list that is too short reads as a missing element, named by its number.
    kept = [
        item
        for item in found
        if with_missing or item["type"] != "missing" or isinstance(item["loc"][-1], int)
    ]
    # The members of a union each report the same value: equal lines are shown once, in order.
    return list(dict.fromkeys(describe_error(dict(item), place, model) for item in kept))
