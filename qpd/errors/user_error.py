"""The base class of every error that a user can fix: lines to print, each with a stable code."""

from __future__ import annotations

from collections.abc import Sequence

from qpd.errors.codes import ErrorCode
from qpd.errors.terminal_text import printable


class CodedLine(str):
    """One line of an error that has several, with a code of its own."""

    code: ErrorCode

    def __new__(cls, text: str, code: ErrorCode) -> CodedLine:
        """Return `text` with its code."""
        line = super().__new__(cls, text)
        line.code = code
        return line

    def __getnewargs__(self) -> tuple[str, ErrorCode]:  # type: ignore[override]
        """Return the arguments from which `pickle` makes the line again."""
        # Worker processes send their errors pickled, and str's own pickling would call __new__
        # without the code.
        return str(self), self.code


class UserError(Exception):
    """An error that says what is wrong, where, and what would be right: one line each, in `lines`.

    `code` is what is passed on raising, else that of the first line, else the class's; a
    `CodedLine` keeps its own.
    """

    code: ErrorCode

    def __init__(self, message: str | Sequence[str], code: ErrorCode | None = None) -> None:
        """Keep one line, or several (at least one); the exception's text is their join."""
        self.lines = [message] if isinstance(message, str) else list(message)
        super().__init__("\n".join(self.lines))
        self.code = code or getattr(self.lines[0], "code", None) or type(self).code

    def coded_lines(self) -> list[str]:
        """Return the lines as they are printed: `TEXT [Q101]`."""
        return [with_code(line, getattr(line, "code", self.code)) for line in self.lines]


def reworded(line: str, text: str) -> str:
    """Return `text` with the code of `line`, where that has one of its own."""
    return CodedLine(text, line.code) if isinstance(line, CodedLine) else text


def with_code(line: str, code: ErrorCode) -> str:
    """Return the line as it is printed, `TEXT [Q101]`, with control characters escaped."""
    return f"{printable(line)} [{code.id}]"


class TargetError(UserError, ValueError):
    """A target that cannot be evaluated, or not as requested; one line says why."""

    code = ErrorCode.NOTHING_MEASURED
