"""Generate the reference of recipe keys and the list of shipped recipes from the code."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from docs_build.markdown import markdown_table, number_text
from qpd.recipe.schema import Recipe
from qpd.recipe.shipped import list_recipes
from qpd.recipe.train_schema import TrainRecipe

HEADER = ("key", "type", "default", "meaning")
_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
}


def recipe_keys_page() -> str:
    """Return Markdown: every key of a run's recipe, a heading per section."""
    return _keys_page(
        Recipe,
        "# Recipe keys",
        "This page is generated from the typed recipe (`qpd/recipe/schema.py`) when the site is "
        "built. In a recipe file, a key is nested under its section; on the command line it is "
        "written with dots: `--set distill.lr=1e-3`. [Recipes](../recipes.md) explains recipes and "
        "inheritance. [Trainings](training-keys.md) have others.",
    )


def training_keys_page() -> str:
    """Return Markdown: every key of a training's recipe, a heading per section."""
    return _keys_page(
        TrainRecipe,
        "# Keys of trainings",
        "This page is generated from `qpd/recipe/train_schema.py` when the site is built: what "
        "`qpd train --set KEY=VALUE` and a [training's recipe](../training.md) take. A key that is "
        "none of these is a hyperparameter: `--set n_steps=3` is `train.hyperparameters.n_steps`.",
    )


def _keys_page(model: type[BaseModel], *head: str) -> str:
    """Return Markdown: each key's type, range, default and meaning, a heading per section."""
    schema = model.model_json_schema()
    parts = [*head]
    for prefix, section in _sections(schema, schema):
        rows = [
            _row(f"{prefix}{key}", schema, about)
            for key, about in section["properties"].items()
            if _section_of(schema, about) is None
        ]
        title = f"`{prefix.removesuffix('.')}`" if prefix else "The top level"
        intro = "" if not prefix else inspect.cleandoc(section.get("description", ""))
        parts += [f"## {title}", intro, markdown_table(HEADER, rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def shipped_recipes_page() -> str:
    """Return Markdown: the shipped recipes, as `qpd recipes` lists them."""
    rows = [[f"`{recipe.name}`", recipe.description] for recipe in list_recipes()]
    return (
        "# Shipped recipes\n\n`qpd recipes` prints this list. Run a recipe by its name, such as "
        "`qpd run quickstart`, or by path.\n\n" + markdown_table(("recipe", "content"), rows) + "\n"
    )


def recipe_keys(model: type[BaseModel] = Recipe) -> list[str]:
    """Return every dotted key that takes a value, as the reference names it."""
    schema = model.model_json_schema()
    return [
        f"{prefix}{key}"
        for prefix, section in _sections(schema, schema)
        for key, about in section["properties"].items()
        if _section_of(schema, about) is None
    ]


def _sections(
    schema: dict[str, Any], section: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the section, then those inside it, each with a prefix such as `finetune.reward.`."""
    yield prefix, section
    for key, about in section["properties"].items():
        inner = _section_of(schema, about)
        if inner is not None:
            yield from _sections(schema, inner, f"{prefix}{key}.")


def _section_of(schema: dict[str, Any], about: dict[str, Any]) -> dict[str, Any] | None:
    """Return the section of a property; None if the property is a plain value."""
    for choice in about.get("anyOf", [about]):
        if "$ref" in choice:
            found: dict[str, Any] = schema["$defs"][choice["$ref"].removeprefix("#/$defs/")]
            return found
    return None


def _row(path: str, schema: dict[str, Any], about: dict[str, Any]) -> list[str]:
    top_level_required = "." not in path and path in schema.get("required", [])
    default = "" if top_level_required else _value(about.get("default"))
    anchored = f"[`{path}`](#{path}){{ #{path} }}"
    return [anchored, _type(about), default, about.get("description", "")]


def _type(about: dict[str, Any]) -> str:
    """Return type and range, such as `int, ≥ 1, ≤ 8, or null`."""
    choices = about.get("anyOf", [about])
    words = [_plain_type(choice) for choice in choices if choice.get("type") != "null"]
    words += ["or null"] if len(words) < len(choices) else []
    return ", ".join(words)


def _plain_type(about: dict[str, Any]) -> str:
    if "enum" in about:
        return ", ".join(f"`{choice}`" for choice in about["enum"])
    if "const" in about:
        return f"`{about['const']}`"
    if about["type"] == "array":
        return f"list of {_length(about)}{_contents(about)}"
    if about["type"] == "object":
        return "mapping of names to values"
    name = {"integer": "int", "number": "float", "string": "text", "boolean": "true or false"}
    bounds = [
        f"{sign}\u00a0{number_text(about[word])}" for word, sign in _BOUNDS.items() if word in about
    ]
    return ", ".join([name[about["type"]], *bounds])


def _contents(about: dict[str, Any]) -> str:
    types = {choice.get("type") for choice in about["items"].get("anyOf", [about["items"]])}
    return "numbers" if types <= {"integer", "number"} else "names, or {name: arguments}"


def _length(about: dict[str, Any]) -> str:
    low, high = about.get("minItems", 0), about.get("maxItems")
    if high is None:
        return ""
    if low == 0:
        return f"up to {high} "
    return f"{low} " if low == high else f"{low} to {high} "


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return f"`{str(value).lower() if value is not None else 'null'}`"
    return f"`{number_text(value) if isinstance(value, int | float) else value}`"
