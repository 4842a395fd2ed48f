"""A cell's process that loses one of those that train with it goes on."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from qpd.runs.run_directory import RunDirectory
from qpd.sweep.worker import Job, supervise

ROOT = Path(__file__).parents[2]


def training_processes(run: Path) -> list[int]:
    """Those that train with the process of this run."""
    commands, parents = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            number = int(folder.name)
            commands[number] = (folder / "cmdline").read_bytes().decode().split("\0")
            parents[number] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return [
        number
        for number, command in commands.items()
        if "qpd.training.parallel.worker" in command
        and str(run) in commands.get(parents[number], [])
    ]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_lost_training_process_costs_an_epoch(tmp_path: Path) -> None:
    run = tmp_path / "cell"
    arguments = ["run", str(ROOT / "recipes" / "ci.yaml"), "-o", str(run)]
    for key in ("distill.epochs=3", "distill.processes=2", "distill.batch_size=256"):
        arguments += ["--set", key]
    job = Job("cell", tuple(arguments), run, tmp_path / "sweep.log", tmp_path, 2.0, 0.0)
    killed = []

    def kill_one() -> None:
        until = time.monotonic() + 120
        while not killed and time.monotonic() < until:
            for number in training_processes(run):
                os.kill(number, signal.SIGKILL)
                killed.append(number)
            time.sleep(0.05)

    killer = threading.Thread(target=kill_one)
    killer.start()
    assert supervise(job) == 0
    killer.join()
    log = job.log.read_text()
    assert killed and log.count("a training process was ended by signal 9") == 1, log
    assert "Traceback" not in log
    assert RunDirectory.open(run, read_only=True).phase("finetune").state == "done"
