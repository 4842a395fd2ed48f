"""Errors of environments; apart from the rest, as worker processes need not import PyTorch."""

from __future__ import annotations

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError


class EnvironmentConfigError(UserError, ValueError):
    """An environment that cannot be built as requested; one line that says what to change."""

    code = ErrorCode.ENVIRONMENT_UNSUPPORTED


class EnvironmentRunError(UserError, RuntimeError):
    """An environment that failed while it was played; one line that says where."""

    code = ErrorCode.ENVIRONMENT_FAILED


def one_line(error: BaseException) -> str:
    """Return an exception of somebody else's code as one line, its type first."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    return f"{kind}: {text[:300]}" if text else kind
