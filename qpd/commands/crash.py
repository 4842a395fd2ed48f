"""The last net: an error that nobody foresaw becomes one line, and a file with its traceback."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import with_code
from qpd.version import __version__

EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h
TRACEBACK_NAME = "traceback.txt"
_MAX_TEXT = 300


def crash_line(error: BaseException, arguments: Sequence[str]) -> str:
    """Write the traceback into the run directory, else a temporary file; return the line to print.

    Never raises: on a full disk the line says that nothing could be written.
    """
    said = " ".join(str(error).split())
    said = said if len(said) <= _MAX_TEXT else f"{said[:_MAX_TEXT]}..."
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    try:
        where = f"its traceback is in {_write(_report(error, arguments), arguments, error)}"
    except OSError as failure:
        where = f"its traceback could not be written: {failure.strerror or failure}"
    return with_code(f"QPD did not foresee this error: {what}; {where}", ErrorCode.UNFORESEEN)


def _report(error: BaseException, arguments: Sequence[str]) -> str:
    trace = "".join(traceback.format_exception(error))
    version = f"qpd {__version__}, Python {sys.version.split()[0]}, {sys.platform}"
    return f"{version}\nqpd {' '.join(arguments)}\n\n{trace}"


def _write(text: str, arguments: Sequence[str], error: BaseException) -> Path:
    from qpd.files.atomic import write_text

    for folder in _run_folders(arguments, error):
        try:
            if (folder / "manifest.json").is_file():
                write_text(folder / TRACEBACK_NAME, text)
                return folder / TRACEBACK_NAME
        except (OSError, ValueError):  # read-only, perhaps, or no path at all
            continue
    descriptor, name = tempfile.mkstemp(prefix="qpd-traceback-", suffix=".txt")
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    return Path(name)


def _run_folders(arguments: Sequence[str], error: BaseException) -> list[Path]:
    """Return where a run directory may be: what the error passed through, then the arguments."""
    words = [word.partition("=")[2] if word.startswith("--") else word for word in arguments]
    passed = getattr(error, "run_directory", None)
    named = [Path(os.fspath(passed))] if passed is not None else []
    return [*named, *(Path(word) for word in words if word)]
