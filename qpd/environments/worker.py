"""A worker process of a vector environment: some of its rows, stepped when it is told to.

It is started by `qpd.environments.worker_pool` and ends with its parent, however that ends: the
connection to it breaks.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
from multiprocessing.connection import Connection

import numpy as np

from qpd.environments.errors import EnvironmentConfigError, EnvironmentRunError
from qpd.environments.rows import Layout, Rows
from qpd.environments.source import EnvironmentSource

RESET, STEP = b"R", b"S"
DONE, NOT_MADE, FAILED = b"D", b"N", b"F"


def main(connection_fd: int, memory_fd: int) -> None:
    """Make the environments, then reset and step them until the parent is gone."""
    # Ctrl-C reaches all processes of a terminal: the parent decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What an environment prints is no output of the command.
    os.dup2(2, 1)
    connection = Connection(connection_fd)
    try:
        order = json.loads(connection.recv_bytes())
        layout = Layout(**order["layout"])
        arrays = layout.arrays(mmap.mmap(memory_fd, layout.num_bytes))
        try:
            source = EnvironmentSource.from_json(order["source"])
            rows = Rows(source, order["max_frames"], order["rows"], arrays)
        except EnvironmentConfigError as error:
            connection.send_bytes(NOT_MADE + str(error).encode())
            return
        connection.send_bytes(DONE)
        while True:
            connection.send_bytes(_obey(rows, connection.recv_bytes()))
    except (EOFError, ConnectionError):
        return  # the parent is gone, or has closed the environment


def _obey(rows: Rows, message: bytes) -> bytes:
    mask = np.frombuffer(message, np.bool_, offset=1)
    try:
        (rows.reset if message[:1] == RESET else rows.step)(mask)
    except EnvironmentRunError as error:
        return FAILED + str(error).encode()
    return DONE
