"""Killed commands that write. `QPD_KILLS=500 pytest -m slow` kills that often."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.faults.command_kills import COMMANDS, CommandKills, CommandTally, kill_commands
from tests.faults.processes import ForkStarter


@pytest.mark.slow
def test_a_killed_command_goes_on_when_it_is_repeated(tmp_path: Path, teacher_zip: Path) -> None:
    kills = int(os.environ.get("QPD_KILLS", "20"))
    tally, rng = CommandTally(), np.random.default_rng(int(os.environ.get("QPD_SEED", "0")))
    with ForkStarter() as forked:
        kill_commands(CommandKills(tmp_path / "kills", teacher_zip, forked), kills, rng, tally)
    print(dict(tally.kills))
    assert tally.findings == []
    assert tally.kills.total() >= kills


@pytest.mark.slow
def test_a_killed_export_and_fork_leave_nothing_behind(tmp_path: Path, teacher_zip: Path) -> None:
    tally, rng = CommandTally(), np.random.default_rng(1)
    with ForkStarter() as forked:
        work = CommandKills(tmp_path / "kills", teacher_zip, forked)
        for name in ("export c -o", "quantize -o without a memory"):
            assert name in COMMANDS
            work.kill(name, rng, tally)
    assert tally.findings == []
