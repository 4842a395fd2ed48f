"""The process that ForkStarter's runs are forked from: a line of JSON in, a number out.

`{"arguments": [...], "log": FILE}` starts a run and answers its process id;
`{"poll": PID}` answers its exit code, or null while it runs.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any, NoReturn

IMPORTED = (
    "qpd.cli",
    "qpd.phases.whole_run",
    "qpd.commands.output",
    "qpd.analysis.runs.run_table",
    "gymnasium",
)


def main() -> None:
    """Serve until stdin ends."""
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        question = json.loads(line)
        answer = _poll(question["poll"]) if "poll" in question else _start(question)
        print(json.dumps(answer), flush=True)


def _poll(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _start(job: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _work(job)
    return pid


def _work(job: dict[str, Any]) -> NoReturn:
    """Be `qpd ARGUMENTS`."""
    nothing = os.open(os.devnull, os.O_RDWR)
    log = os.open(job["log"], os.O_WRONLY | os.O_TRUNC)
    for target, descriptor in ((0, nothing), (1, nothing), (2, log)):
        os.dup2(descriptor, target)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = 1
    try:
        from qpd.cli import main as qpd

        sys.argv = ["qpd", *job["arguments"]]
        qpd(job["arguments"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
