"""Emulators that give way to the thread which computes with what they show."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

import pytest

from qpd.environments.registry import make_vector_env


def nicer_threads() -> set[int]:
    """This process's threads that have a lower priority than it; others may come and go."""
    own, found = os.getpriority(os.PRIO_PROCESS, 0), set()
    for name in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            if os.getpriority(os.PRIO_PROCESS, int(name)) == min(own + 15, 19) > own:
                found.add(int(name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_only_the_emulators_get_a_lower_priority() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    before = nicer_threads()
    plain = make_vector_env("BreakoutNoFrameskip-v4", 2)
    assert nicer_threads() <= before
    behind = make_vector_env("BreakoutNoFrameskip-v4", 3, background=True)
    deadline = time.monotonic() + 10  # the thread that made them has ended, yet may be listed still
    while len(nicer_threads() - before) > 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(nicer_threads() - before) == 3
    assert os.getpriority(os.PRIO_PROCESS, 0) == own  # the caller keeps its own
    for env in (plain, behind):
        env.close()
