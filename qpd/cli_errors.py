"""Which errors are the user's to mend, and the lines that say so."""

from __future__ import annotations

from typer.exceptions import TyperException

from qpd.error_codes import ErrorCode
from qpd.user_error import UserError, with_code


def error_lines(error: Exception) -> list[str] | None:
    """What to print for an error that is the user's to mend; None for one that is ours."""
    if isinstance(error, UserError):
        return error.coded_lines()
    if isinstance(error, TyperException):
        text = " ".join(error.format_message().split())
        return [with_code(text, ErrorCode.COMMAND_LINE)]
    if isinstance(error, OSError):
        text = f"{error.filename or 'output'}: {error.strerror or error}"
        return [with_code(text, ErrorCode.FILE_SYSTEM)]
    return None
