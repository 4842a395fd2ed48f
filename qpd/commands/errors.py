"""Errors that users can fix, and the lines that tell them how."""

from __future__ import annotations

import sys
from contextlib import suppress

from typer.exceptions import TyperException

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError, with_code

_MAX_LINES = 50


def print_errors(lines: list[str]) -> None:
    """Print the lines of `error_lines` on stderr, 50 at most."""
    with suppress(OSError):  # stderr may be what could not be written: the exit code still says it
        for line in lines[:_MAX_LINES]:
            print(f"error: {line}", file=sys.stderr)
        if len(lines) > _MAX_LINES:
            print(f"error: and {len(lines) - _MAX_LINES} more mistakes", file=sys.stderr)
        sys.stderr.flush()


def error_lines(error: BaseException) -> list[str] | None:
    """Return the lines for an error that the user can fix; None for a bug of QPD's."""
    if isinstance(error, UserError):
        return error.coded_lines()
    if isinstance(error, TyperException):
        return [with_code(_usage(error), ErrorCode.COMMAND_LINE)]
    if isinstance(error, OSError):
        text = f"{error.filename or 'output'}: {error.strerror or error}"
        return [with_code(text, ErrorCode.FILE_SYSTEM)]
    return None


def asked_help(error: BaseException) -> str | None:
    """Return the help of a command group that was called without a command, else None."""
    text = error.format_message() if isinstance(error, TyperException) else ""
    return text if text.lstrip().startswith("Usage: ") else None


def _usage(error: TyperException) -> str:
    """Return typer's message, adding the value if the message leaves it out."""
    text = " ".join(error.format_message().split())
    if error.__cause__ is None:
        return text
    from pydantic import ValidationError  # typer has imported it by now; `--help` need not

    if isinstance(error.__cause__, ValidationError):
        given = error.__cause__.errors()[0]["input"]
        text = text.replace("Input should be", f"{given!r} must be")
    return text
