"""The error of an agent that cannot be quantized as it is."""

from __future__ import annotations

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError


class AgentQuantizationError(UserError, ValueError):
    """An agent or a suite that cannot be quantized as asked; one line says why."""

    code = ErrorCode.COMMAND_LINE
