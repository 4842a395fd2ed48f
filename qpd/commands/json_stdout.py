"""stdout for one JSON object alone: what environments and libraries print goes to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

_stream: TextIO | None = None


def json_stream() -> TextIO:
    """Return where the JSON object goes: the command's own stdout."""
    return sys.stdout if _stream is None else _stream


@contextmanager
def stdout_for_json() -> Iterator[None]:
    """Keep stdout for `json_stream`, meanwhile what others write there is on stderr.

    Code in C, such as a simulator's, writes to the file descriptor.
    """
    global _stream
    own = sys.stdout
    own.flush()
    try:
        kept = os.dup(1) if own.fileno() == 1 else None
    except OSError:  # no file: a test's, or a notebook's
        kept = None
    if kept is not None:
        with suppress(OSError):  # stderr may be closed
            os.dup2(2, 1)
    _stream = own if kept is None else open(kept, "w", encoding="utf-8")
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = own
        stream, _stream = _stream, None
        if kept is not None:
            os.dup2(kept, 1)
            stream.close()
