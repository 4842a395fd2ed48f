"""The error of `qpd.runs.target`, apart from it: its reader need not wait for torch."""

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError


class TargetError(UserError, ValueError):
    """Nothing to evaluate there, or not as asked; one line says why."""

    code = ErrorCode.NOTHING_MEASURED
