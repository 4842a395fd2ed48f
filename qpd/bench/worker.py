"""A worker process: one model in one runtime. `python -m qpd.bench.worker`, JSON lines.

in    {"kind": ..., "golden": "FILE.npy", "timed": "FILE.npy", ...}
out   {"logits": [[...]]}: the logits of the golden observations, or the actions, [...]
in    {"seconds": 0.5}
out   {"calls": ..., "median_us": ..., ...}: calls on the timed observations
out, if anything goes wrong: {"error": "...", "is_missing": true if an import failed}

Imports only NumPy and the runtime, so that its memory is the runtime's.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TextIO

import numpy as np

from qpd.bench.forwards import load_forward
from qpd.bench.timed_calls import time_calls
from qpd.errors.user_error import UserError


def serve(requests: TextIO, answers: TextIO) -> None:
    """Load what the first line asks for, send the golden logits, then take a turn per line."""
    spec = json.loads(requests.readline())
    prepare, forward = load_forward(spec)
    golden, inputs = (prepare(np.load(spec[name])) for name in ("golden", "timed"))
    logits = np.concatenate([forward(value) for value in golden]).astype(np.float64)
    _send(answers, {"logits": logits.tolist()})
    for line in requests:
        turn = time_calls(forward, inputs, json.loads(line)["seconds"])
        _send(answers, turn._asdict())


def _send(answers: TextIO, value: object) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def _one_line(error: Exception) -> str:
    """Return the error's first line; of torch.compile's, which ends in a colon, the second too.

    A UserError is complete without the name of its class.
    """
    if isinstance(error, UserError):
        return error.lines[0]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    text = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__}: {text}"


def main() -> None:
    """Serve on stdin and stdout; whatever a runtime prints goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    # By file descriptor: runtimes print from C++, past Python's sys.stdout, into the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        serve(sys.stdin, answers)
    except Exception as error:
        # A TeacherError says the same of stable_baselines3, in QPD's words.
        is_missing = isinstance(error, ImportError) or isinstance(error.__cause__, ImportError)
        _send(answers, {"error": _one_line(error), "is_missing": is_missing})
        sys.exit(1)


if __name__ == "__main__":
    main()
