"""Emulators that give way to the thread which computes with what they show."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import pytest

from qpd.environment import make_vector_env


def threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def priorities(threads: set[int]) -> set[int]:
    """Those of the threads that have not ended; a library's own may come and go."""
    found = set()
    for thread in threads:
        with suppress(ProcessLookupError):
            found.add(os.getpriority(os.PRIO_PROCESS, thread))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_only_the_emulators_get_a_lower_priority() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    before = threads()
    plain = make_vector_env("BreakoutNoFrameskip-v4", 2)
    ordinary = threads() - before
    behind = make_vector_env("BreakoutNoFrameskip-v4", 3, background=True)
    emulators = threads() - before - ordinary
    assert len(emulators) == 3
    assert priorities(ordinary) == {own}
    assert priorities(emulators) == {min(own + 15, 19)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == own  # the caller keeps its own
    for env in (plain, behind):
        env.close()
