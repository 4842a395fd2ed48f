"""Temporaries whose writer is dead: each is locked while it is written, and death unlocks it.

The kernel's lock tells more than a process id in the name, which another container or another host
of a shared disk may use, too.
"""

import os
import shutil
import stat
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CAN_TELL = fcntl is not None  # who is alive


def hold(descriptor: int, path: Path) -> bool:
    """Lock the open file or folder `path` until it is closed; False if it was removed meanwhile.

    Where the file system has no locks, nothing is locked and nothing counts as abandoned.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        return True
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def remove_abandoned(path: Path) -> None:
    """Delete a file or folder that no living process holds; never raises OSError."""
    descriptor = _lock_if_free(path)
    if descriptor is None:
        return
    try:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    except OSError:  # another user's, perhaps: it is only in the way
        pass
    finally:
        os.close(descriptor)


def put_back_abandoned(path: Path, place: Path) -> None:
    """Rename the folder `path`, if no living process holds it, to `place`, if nothing is there."""
    descriptor = _lock_if_free(path)
    if descriptor is None:
        return
    try:
        if not place.exists():
            path.rename(place)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _lock_if_free(path: Path) -> int | None:
    """Return a descriptor that locks `path`; None if another has it, or it cannot be locked."""
    if fcntl is None:
        return None
    try:
        # Neither a link's target nor a pipe that waits for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
