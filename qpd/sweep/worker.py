"""A pool worker's job: a process of its own, supervised until it ends.

The process ends with the worker (when its stdin does), and one that is killed is restarted: run
directories resume from their checkpoints.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from qpd.machine.cores import CORES_VARIABLE
from qpd.runs.run_directory import LOCK_NAME

STARTED = "sweep: started"  # in a job's log; the sweep counts these lines
INTERRUPTED = 130  # 128 + SIGINT, as shells report a process ended by Ctrl-C
_MAX_STARTS = 4
_LOCK_SECONDS = 30.0
_GRACE_SECONDS = 60.0  # time to write a checkpoint after Ctrl-C


@dataclass(frozen=True)
class Job:
    """A command of `qpd`, the run directory that it locks first, and its share of the machine."""

    name: str
    arguments: tuple[str, ...]
    run: Path
    log: Path
    working_folder: Path
    cpus: float
    gpus: float


def supervise(job: Job) -> int:
    """Run the job to its end and return the exit code, 130 if it was interrupted.

    A process killed by a signal is restarted up to 3 times; after that the code is negative.
    """
    job.log.parent.mkdir(parents=True, exist_ok=True)
    code = 1
    # Only for signals (a code below 0): an error of the user's would be the same next time.
    for _ in range(_MAX_STARTS):
        _wait_for_lock(job.run / LOCK_NAME)
        code = _run(job)
        if code >= 0:
            break
    return code


def _wait_for_lock(path: Path) -> None:
    """Wait for a process that a lost worker left behind to release the run."""
    if path.parent.is_dir():
        try:
            with FileLock(path, timeout=_LOCK_SECONDS):
                pass
        except Timeout:  # the job itself says that another process is working there
            pass


def _run(job: Job) -> int:
    with job.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "qpd.cli", *job.arguments],
            cwd=job.working_folder,
            env=_environment(job),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            # The terminal's Ctrl-C reaches the sweep alone, which passes it on.
            start_new_session=True,
        )
        where = f"on {socket.gethostname()}, process {process.pid}, worker {os.getpid()}"
        log.write(f"{STARTED} {where}\n".encode())
        log.flush()
        try:
            while process.poll() is None:  # a blocking wait would not notice Ray's interrupt
                time.sleep(0.1)
        except KeyboardInterrupt:
            return _interrupt(process)
        finally:
            if process.stdin is not None:
                process.stdin.close()
    return process.returncode


def _environment(job: Job) -> dict[str, str]:
    cores = str(max(1, int(job.cpus)))
    environment = {**os.environ, "OMP_NUM_THREADS": cores, CORES_VARIABLE: cores}
    if job.gpus == 0:
        # Empty hides all GPUs; a variable that is not set would show them all.
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return environment


def _interrupt(process: subprocess.Popen[bytes]) -> int:
    """End the process as Ctrl-C does, or kill it after a minute.

    Ray repeats its interrupts until the job has ended, which may happen within this wait too.
    """
    process.send_signal(signal.SIGINT)
    end = time.monotonic() + _GRACE_SECONDS
    while process.poll() is None:
        try:
            time.sleep(0.1)
            if time.monotonic() > end:
                process.kill()
        except KeyboardInterrupt:
            continue
    return INTERRUPTED


def begin_supervised() -> None:
    """Unblock Ctrl-C, which Ray's processes block, and end this process with its worker.

    Called in a job's process. The worker holds the other end of stdin; when it is gone, stdin ends.
    """
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def watch() -> None:
        while os.read(0, 4096):
            pass
        # SIGKILL, as nothing may delay it: a restarted worker waits for this run's lock.
        # Checkpoints survive a kill at any time.
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
