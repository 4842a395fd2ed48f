"""Generate the command line reference from the typer application."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from docs_build.markdown import markdown_table, number_text
from qpd.cli import app

HEADER = ("option", "type", "default", "meaning")


def cli_page() -> str:
    """Return Markdown: every command with a heading, its usage, its help and its parameters."""
    parts = [
        "# Command line",
        "This page is generated from the commands when the site is built; `qpd COMMAND --help` "
        "prints the same text. Results go to stdout, progress to stderr. Invalid input prints one "
        "line per mistake and exits with code 2. An interrupted command exits with code 130, "
        "one that meets a bug with 70.",
    ]
    for path, command in commands():
        rows = [_row(parameter, path, command) for parameter in _shown(command)]
        parts += [f"## {path} {{ #{path.replace(' ', '-')} }}", _help(command)]
        parts += [f"```text\n{_usage(path, command)}\n```"]
        parts += [markdown_table(HEADER, rows)] if rows else []
        parts += [_own_commands(path, command)]
    return "\n\n".join(part for part in parts if part) + "\n"


def commands() -> list[tuple[str, Any]]:
    """Return every command with its path, such as `qpd teacher info`, groups before members."""
    return list(_walk("qpd", typer.main.get_command(app)))


def _walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from _walk(f"{path} {name}", inner)


def _own_commands(path: str, command: Any) -> str:
    """Return a table of a group's commands, each with the first line of its help."""
    rows = [
        [f"[`{below}`](#{below.replace(' ', '-')})", _help(inner).split("\n")[0]]
        for below, inner in _walk(path, command)
        if below.rpartition(" ")[0] == path
    ]
    return markdown_table(("command", "purpose"), rows) if rows else ""


def _usage(path: str, command: Any) -> str:
    words = [path]
    for parameter in _shown(command):
        if parameter.param_type_name == "argument":
            word = _argument_name(parameter) + ("..." if parameter.nargs != 1 else "")
            words.append(word if parameter.required else f"[{word}]")
    if hasattr(command, "commands"):
        return " ".join([*words, "COMMAND ..."])
    return " ".join([*words, "[OPTIONS]"])


def _argument_name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper().rstrip("_"))


def _help(command: Any) -> str:
    return inspect.cleandoc(command.help or "").replace("<", "&lt;")


def _shown(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if not parameter.hidden]


def _row(parameter: Any, path: str, command: Any) -> list[str]:
    names = parameter.opts + parameter.secondary_opts
    if parameter.param_type_name == "argument":
        names = [_argument_name(parameter)]
    label = ", ".join(f"`{name}`" for name in names)
    return [label, _type(parameter, path, command), _default(parameter), _meaning(parameter)]


def _meaning(parameter: Any) -> str:
    return (parameter.help or "").replace("<", "&lt;")


def _type(parameter: Any, path: str, command: Any) -> str:
    if getattr(parameter, "is_flag", False):
        return "flag"
    context = typer.Context(command, info_name=path)
    word = str(parameter.display_type(context)).strip("<>")
    repeated = word.startswith("list[")
    word = word.removeprefix("list[").removesuffix("]").removesuffix(" range")
    word = {"str": "text", "Path": "path", "file": "path"}.get(word, word)
    if parameter.metavar and parameter.param_type_name == "option":
        word = f"`{parameter.metavar}`"
    bounds = [f"≥\u00a0{number_text(parameter.min)}"] if parameter.min is not None else []
    bounds += [f"≤\u00a0{number_text(parameter.max)}"] if parameter.max is not None else []
    bounds += ["repeatable"] if repeated else []
    return ", ".join([word, *bounds])


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or getattr(parameter, "is_flag", False):
        return ""
    return f"`{number_text(value) if isinstance(value, int | float) else value}`"
