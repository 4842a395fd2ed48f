"""Zip files from elsewhere, opened and read within bounds; nothing is ever extracted to a disk."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

MAX_DIRECTORY_BYTES = 2 << 20  # the list of members: some 20,000 of them, or 10 MB once read


@contextmanager
def open_zip(file: BinaryIO) -> Iterator[zipfile.ZipFile]:
    """Yield the zip in `file`, which must be seekable.

    Raises ValueError for a list of members that is too long, and nearly anything (zipfile's
    errors are many) for damaged files.
    """
    # zipfile reads the whole list and makes an object of each entry before it can be asked, so
    # its own (private) reader of the end record tells the list's length first.
    record = zipfile._EndRecData(file)  # type: ignore[attr-defined]
    if record is not None and record[zipfile._ECD_SIZE] > MAX_DIRECTORY_BYTES:  # type: ignore[attr-defined]
        raise ValueError(f"its list of members is longer than {MAX_DIRECTORY_BYTES} bytes")
    with zipfile.ZipFile(file) as archive:
        yield archive


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Return a member: no more than the size it declares is ever unpacked.

    `ZipFile.read` unpacks up to 2 GiB before it looks at that size.
    """
    with archive.open(info) as member:
        return member.read(info.file_size)
