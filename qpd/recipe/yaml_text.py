"""Recipe text to plain data, keeping the line of every key.

A closed subset of YAML 1.2: mappings, lists and scalars. `1e-3` is a number and `on` is text;
duplicate keys, anchors, aliases, merge keys and tags are refused. Nothing is evaluated.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml

MAX_RECIPE_BYTES = 1 << 16  # the shipped ones take 1 kB
MAX_DEPTH = 16

KeyPath = tuple[str, ...]

# YAML 1.2's core schema, in order of precedence. PyYAML reads YAML 1.1, where 1e-3 is text, `on` is
# true and 010 is 8.
_SCALARS: list[tuple[re.Pattern[str], Callable[[str], Any]]] = [
    (re.compile(r"~|null|Null|NULL|"), lambda text: None),
    (re.compile(r"true|True|TRUE"), lambda text: True),
    (re.compile(r"false|False|FALSE"), lambda text: False),
    (re.compile(r"[-+]?[0-9](_?[0-9])*"), int),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9](_?[0-9])*(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)"), lambda text: float(text.replace(".", ""))),
    (re.compile(r"\.(nan|NaN|NAN)"), lambda text: float("nan")),
]


@dataclass
class ParsedRecipe:
    """One document: its mapping, the 1-based line of each key, and what is wrong with it."""

    data: dict[str, Any] = field(default_factory=dict)
    line_of: dict[KeyPath, int] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)


def parse_scalar(text: str) -> Any:
    """Return the value of a plain YAML scalar: None, a bool, an int, a float or the text."""
    for pattern, convert in _SCALARS:
        # int() of many thousand digits takes quadratic time; Python's own limit would raise.
        if len(text) <= 100 and pattern.fullmatch(text):
            return convert(text)
    return text


def parse_value(text: str) -> Any:
    """Parse one value from the command line: a scalar or a flow list such as `[64, 64]`.

    Raises:
        ValueError: The text is not YAML; the message is one line.
    """
    root, mistake = _compose(text)
    if mistake:
        raise ValueError(mistake)
    if root is None:
        return None
    parsed = ParsedRecipe()
    value = _convert(root, (), parsed)
    if parsed.mistakes:
        raise ValueError(parsed.mistakes[0])
    return value


def parse_recipe_text(text: str) -> ParsedRecipe:
    """Parse one document; an empty one is an empty mapping. Mistakes are collected, not raised."""
    parsed = ParsedRecipe()
    root, mistake = _compose(text)
    if mistake:
        parsed.mistakes.append(mistake)
    elif isinstance(root, yaml.MappingNode):
        parsed.data = _convert_mapping(root, (), parsed)
    elif root is not None and not _is_null(root):
        parsed.mistakes.append("the document must be a mapping of keys to values")
    return parsed


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and not node.style and parse_scalar(node.value) is None


@lru_cache(maxsize=16)  # the cells of a grid read the same files again and again
def _compose(text: str) -> tuple[yaml.Node | None, str]:
    """Return the node tree and "", or None and what is wrong, in one line."""
    depth = 0
    try:
        # The base loader resolves no tags; events come first so that no bomb is ever built.
        for event in yaml.parse(text, Loader=yaml.BaseLoader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                where = event.start_mark.line + 1
                return None, f"line {where}: anchors and aliases are not allowed; use 'base'"
            if getattr(event, "tag", None):  # without its tag, !!str 8 would be a number
                where = event.start_mark.line + 1
                return None, f"line {where}: tags such as !!str are not allowed; quote text: '8'"
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                return None, f"line {event.start_mark.line + 1}: nested too deeply"
        return yaml.compose(text, Loader=yaml.BaseLoader), ""
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        return None, f"{where}not valid YAML: {error.problem or error.context}"
    except yaml.YAMLError as error:
        return None, "not valid YAML: " + " ".join(str(error).split())
    except RecursionError:
        return None, "nested too deeply"


def _convert(node: yaml.Node, path: KeyPath, parsed: ParsedRecipe) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _convert_mapping(node, path, parsed)
    if isinstance(node, yaml.SequenceNode):
        return [_convert(item, (*path, str(i)), parsed) for i, item in enumerate(node.value)]
    if node.style:  # quoted or block text stays text
        return node.value
    return parse_scalar(node.value)


def _convert_mapping(node: yaml.MappingNode, path: KeyPath, parsed: ParsedRecipe) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            parsed.mistakes.append(f"line {line}: keys must be plain text")
            continue
        key_path = (*path, key_node.value)
        # PyYAML keeps the last of two equal keys without a word.
        if key_node.value in result:
            first = parsed.line_of[key_path]
            key = ".".join(key_path)
            parsed.mistakes.append(f"line {line}: {key}: given twice, first on line {first}")
            continue
        parsed.line_of[key_path] = line
        result[key_node.value] = _convert(value_node, key_path, parsed)
    return result
