"""The error of `qpd.evaluation_target`, apart from it: its reader need not wait for torch."""

from qpd.error_codes import ErrorCode
from qpd.user_error import UserError


class TargetError(UserError, ValueError):
    """Nothing to evaluate there, or not as asked; one line says why."""

    code = ErrorCode.NOTHING_MEASURED
