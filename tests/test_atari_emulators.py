"""Emulators that give way to the thread which computes with what they show."""

from __future__ import annotations

import os
import sys

import pytest

from qpd.environment import make_vector_env


def threads() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux")
def test_only_the_emulators_get_a_lower_priority() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    before = threads()
    plain = make_vector_env("BreakoutNoFrameskip-v4", 2)
    ordinary = threads() - before
    behind = make_vector_env("BreakoutNoFrameskip-v4", 3, background=True)
    emulators = threads() - before - ordinary
    assert len(emulators) == 3
    assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in ordinary} == {own}
    assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in emulators} == {min(own + 15, 19)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == own  # the caller keeps its own
    for env in (plain, behind):
        env.close()
