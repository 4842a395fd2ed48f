"""ALE's emulators, one for each game, each with a thread of its own."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from ale_py.vector_env import AtariVectorEnv

from qpd.environments.interface import FRAME_SIZE

_NICER_BY = 15


def emulator_seed(seed: int, row: int) -> int:
    """Return the seed of environment `row`'s emulator, in [0, 2^31)."""
    # Not seed + row: neighbouring run seeds would then share all but one of their games.
    return int(np.random.SeedSequence((seed, row)).generate_state(1)[0] >> 1)


def make_emulators(rom: str, count: int, max_frames: int, background: bool) -> list[Any]:
    """Load the game `count` times (0.08 CPU-seconds each).

    With `background` (Linux) the emulators' threads have a lower priority, nicer by 15. Where a
    network runs beside them, its one thread else waits for a core as long as each of theirs does,
    and they for it afterwards: on 2 cores with 64 emulators a teacher's rollouts are a tenth faster
    so. The price: where other programs want every core, 64 emulators on 2 of them get about half
    (by the kernel's weights, 36 a thread against 1,024), not nearly all.
    """
    # Threads inherit the niceness of the thread that makes them, which is not ours to take back.
    with ThreadPoolExecutor(1, initializer=_give_way if background else None) as maker:
        return list(maker.map(lambda _: _make_emulator(rom, max_frames), range(count)))


def _give_way() -> None:
    """Lower this thread's priority, where threads have one each."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # some sandboxes know only processes; just slower there
            nice = min(os.getpriority(os.PRIO_PROCESS, thread) + _NICER_BY, 19)
            os.setpriority(os.PRIO_PROCESS, thread, nice)


def _make_emulator(rom: str, max_frames: int) -> Any:
    """Build one emulator; life loss is judged elsewhere, from the lives: no life_loss_info."""
    return AtariVectorEnv(
        rom,
        1,
        num_threads=1,
        max_num_frames_per_episode=max_frames,
        # The class's default, stated because gym.make_vec's v5 environments default to 0.25.
        repeat_action_probability=0.0,
        # With SameStep, `lives` is the value after the reset: the game's end could not be told.
        autoreset_mode="NextStep",
        img_height=FRAME_SIZE,
        img_width=FRAME_SIZE,
        # AtariEnvironment stacks frames itself: SB3 starts a stack anew at every lost life, ALE
        # only when a game ends.
        stack_num=1,
        noop_max=30,
        # ALE's fire reset presses FIRE before the no-ops and never after a lost life, and its
        # episodic life restarts the whole game; SB3 does neither.
        use_fire_reset=False,
        episodic_life=False,
        life_loss_info=False,
        reward_clipping=False,
    ).ale  # the C++ object: its send and recv skip the Python class's conversions at every step
