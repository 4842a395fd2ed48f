"""A line between two processes: short messages that one of them is waiting for."""

from __future__ import annotations

import pickle
import select
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

_LOSSES = struct.Struct("dd")
_AWAKE = 0.002  # seconds of looking before sleeping: waking a core up takes longer than most waits


class HungUpError(Exception):
    """The process at the other end is gone, or has closed the line."""


class Line:
    """One end of a connection. All methods but `close` raise HungUpError."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)

    def send(self, thing: Any) -> None:
        """Send what pickle can."""
        self.send_bytes(pickle.dumps(thing))

    def send_bytes(self, message: bytes) -> None:
        """Send a thing that is pickled already."""
        with _open_line():
            self._connection.send_bytes(message)

    def receive(self) -> Any:
        """Wait for what `send` sends, asleep."""
        return pickle.loads(self._received())

    def signal(self) -> None:
        """Say that something is done."""
        self.send_bytes(b"!")

    def wait(self) -> None:
        """Wait for `signal`."""
        self._look()
        self._received()

    def send_losses(self, actor: float, critic: float) -> None:
        """Send an actor's and a critic's loss."""
        self.send_bytes(_LOSSES.pack(actor, critic))

    def receive_losses(self) -> tuple[float, float]:
        """Wait for what `send_losses` sends."""
        self._look()
        actor, critic = _LOSSES.unpack(self._received())
        return actor, critic

    def close(self) -> None:
        """Hang up: the other end hears of it."""
        self._connection.close()

    def _received(self) -> bytes:
        with _open_line():
            return self._connection.recv_bytes()

    def _look(self) -> None:
        """Return when there is something to read, or it is time to sleep."""
        until = time.perf_counter() + _AWAKE
        while not self._poll.poll(0) and time.perf_counter() < until:
            pass


@contextmanager
def _open_line() -> Iterator[None]:
    """Whatever fails here, in the middle of a message or between two, the other end is gone."""
    try:
        yield
    except (EOFError, OSError) as error:
        raise HungUpError from error
