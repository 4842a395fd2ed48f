"""The one exception that everything in this package raises for a bad teacher."""

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError


class TeacherError(UserError, ValueError):
    """A teacher cannot be found, read or used; the message is one line.

    It says what is wrong, in which file, and what would be right.
    """

    code = ErrorCode.TEACHER_UNSUPPORTED


def one_line(problem: object) -> str:
    """Return `problem` as text on a single line of at most 200 characters."""
    text = " ".join(str(problem).split())
    if len(text) <= 200:
        return text
    whole = text[:197].rpartition(" ")[0]  # no word is cut, unless it is a long one
    return f"{whole} ..." if len(whole) > 150 else text[:197] + "..."
