"""Ctrl-C and SIGTERM that wait until no import is under way.

An exception within an import leaves modules half-made: extensions such as NumPy's then fail later
with errors of their own, or crash.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Self

AGAIN = 0.05  # seconds between two looks
PATIENCE = 10.0  # seconds; an import that takes longer may never end
_IMPORTS = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")


class Interrupts:
    """Signals that raise errors in a `with` block, after the import under way has ended.

    `errors` gives each signal's error. An import that the block's own caller is in does not count.
    Where a system has no timers (Windows) signals raise at once. What handled the signals, and
    SIGALRM, before is put back at the end, and a timer that ran begins again.
    """

    def __init__(self, errors: Mapping[signal.Signals, Callable[[], BaseException]]) -> None:
        self._errors = dict(errors)
        self._handlers: dict[signal.Signals, Any] = {}
        self._block: FrameType | None = None
        self._waits: Callable[[], None] | None = None  # undoes what waiting for an import took
        self._is_over = False

    def __enter__(self) -> Self:
        """Take over the signals."""
        self._block = sys._getframe(1)
        for number in self._errors:
            self._handlers[number] = signal.signal(number, self._handle)
        return self

    def over(self) -> None:
        """Let signals raise SystemExit from now on, and forget what waits: the work has ended."""
        self._is_over = True
        self._stop_waiting()

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        self.over()
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._block = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_over:
            raise SystemExit(128 + number)
        if self._waits is not None:  # the first of several is the one that counts
            return
        if hasattr(signal, "setitimer") and self._is_importing(frame):
            self._wait(signal.Signals(number), time.monotonic() + PATIENCE)
            return
        raise self._errors[signal.Signals(number)]()

    def _wait(self, number: signal.Signals, end: float) -> None:
        def look(_: int, frame: FrameType | None) -> None:
            is_early = self._is_importing(frame) and time.monotonic() < end
            if is_early or self._waits is None:  # one more may come while it is undone
                return
            self._stop_waiting()
            raise self._errors[number]()

        handler = signal.signal(signal.SIGALRM, look)
        timer = signal.setitimer(signal.ITIMER_REAL, AGAIN, AGAIN)

        def undo() -> None:
            signal.setitimer(signal.ITIMER_REAL, *timer)
            signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)

        self._waits = undo

    def _stop_waiting(self) -> None:
        """Forget what waits: at its end Python gives SIGALRM its default, which kills."""
        if self._waits is not None:
            undo, self._waits = self._waits, None
            undo()

    def _is_importing(self, frame: FrameType | None) -> bool:
        while frame is not None and frame is not self._block:
            if frame.f_code.co_filename in _IMPORTS:
                return True
            frame = frame.f_back
        return False
