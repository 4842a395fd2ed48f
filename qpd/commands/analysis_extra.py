"""What commands say where the packages of the extra `analysis` are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TargetError

_PACKAGES = ("pandas", "matplotlib", "sklearn")


@contextmanager
def analysis_extra(command: str = "qpd analyze") -> Iterator[None]:
    """A missing package of the extra becomes one line, a TargetError that names `command`."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").split(".")[0]
        if name not in _PACKAGES:
            raise
        raise TargetError(
            f'{command} needs {name}: pip install "qpd[analysis]"', ErrorCode.PACKAGE_MISSING
        ) from error
