"""Files from outside: regular files alone, read to a bound.

The size that a file states is no bound: a link may lead to a device without end, and a pipe
without a writer would be waited for.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

# Windows has no such flag, and no named pipes among its files.
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)


class TooLargeError(ValueError):
    """A file is longer than it may be; the message gives both sizes in bytes, not the path."""


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file to read its bytes; links are followed.

    Raises OSError, at once, also for devices, pipes, sockets and folders.
    """
    # Not only a look before opening: by then the name may lead elsewhere.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAITING))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return file


def read_file(path: str | Path, most_bytes: int | None) -> bytes:
    """Return the content of a regular file of at most `most_bytes` bytes.

    None reads a file of any length: for what QPD itself wrote. Raises TooLargeError, or OSError
    as `open_regular`.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most_bytes is None:
            return file.read()
        # Files in /proc state a size of 0, and others may grow: what is read decides.
        content = file.read(most_bytes + 1) if size <= most_bytes else b""
    if size > most_bytes or len(content) > most_bytes:
        found = max(size, len(content))
        raise TooLargeError(f"{found} bytes; at most {most_bytes} are read")
    return content
