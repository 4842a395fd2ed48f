"""Ctrl-C and SIGTERM that wait until no import is under way.

An exception within an import leaves modules half-made: extensions such as NumPy's then fail later
with errors of their own, or crash.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

AGAIN = 0.05  # seconds; an import takes a few at most
_IMPORTS = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")

Handler = Callable[[int, FrameType | None], None]


def after_imports(error: Callable[[int], BaseException]) -> Handler:
    """Return a signal handler that raises `error(number)`, once the import under way has ended.

    Where a system has no timers (Windows) it raises at once.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if hasattr(signal, "setitimer") and _is_importing(frame):
            signal.signal(signal.SIGALRM, lambda _, later: handle(number, later))
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        raise error(number)

    return handle


def stop_waiting() -> None:
    """Forget what still waits: at its end Python gives SIGALRM its default, which kills."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename in _IMPORTS:
            return True
        frame = frame.f_back
    return False
