"""The error of commands that lack packages of the extra `analysis`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TargetError
from qpd.version import pip_install

_PACKAGES = ("pandas", "matplotlib", "umap", "sklearn", "numba")


@contextmanager
def analysis_extra(command: str = "qpd analyze") -> Iterator[None]:
    """Turn a missing package of the extra into a one-line TargetError that names `command`."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").split(".")[0]
        if name not in _PACKAGES:
            raise
        raise TargetError(
            f"{command} needs {name}: {pip_install('analysis')}", ErrorCode.PACKAGE_MISSING
        ) from error
