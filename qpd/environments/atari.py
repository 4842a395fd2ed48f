"""Atari games exactly as Stable-Baselines3's wrappers present them, on ALE's C++ emulators.

Equivalent to ``make_atari_env`` + ``VecFrameStack(4)`` + ``VecTransposeImage`` with default
wrapper arguments (tests/environments/test_equals_sb3.py compares them): rewards, lives and ends of
episodes in every game, and every pixel in Breakout and Space Invaders. ALE greys a frame before it
takes the maximum of two, SB3 afterwards: in games where sprites of different colours cross or
flicker (Pong, Qbert, MsPacman ...) up to 0.4% of the pixels of a frame are a little darker here.
SB3's wrappers press buttons themselves between episodes: NOOP after a lost life
(EpisodicLifeEnv), FIRE and RIGHT (actions 1 and 2) where the game has FIRE (FireResetEnv).
Those are the *forced* steps here. A small state machine (``_next_phases``) chooses them,
including the rare cases in which the forced button itself loses a life or ends the game.

``ALE/X-v5`` ids get the same preprocessing (no sticky actions): an id only names the game.

Each emulator is an ``AtariVectorEnv`` of one environment with a thread of its own: at a tenth
more CPU time than one large AtariVectorEnv, any subset can be stepped and any game replayed.
ALE's vector environments cannot save their state, so a state is the seed, the number of resets
since (each draws one no-op count, and nothing else draws) and the actions of the current game.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qpd.environments.atari_emulators import emulator_seed, make_emulators
from qpd.environments.interface import (
    FRAME_SIZE,
    FRAME_STACK,
    EnvironmentSpec,
    State,
    VectorStep,
    check_state,
    checked_actions,
    checked_active,
)
from qpd.machine.cores import usable_cores

_ACT, _RESET, _FIRE, _RIGHT, _RESET_THEN_RIGHT, _RESET_THEN_ACT = range(6)
# The button of each phase; _RESET's NOOP is swallowed by the emulator's reset after a game.
_FORCED_ACTION = np.array([-1, 0, 1, 2, 0, 0])
# ALE wants a strength with every action; for discrete buttons that is the full one.
_PADDLE_STRENGTH = [1.0]


def _next_phases(fire_reset: bool) -> NDArray[np.int64]:
    """Return [phase, outcome] -> next phase; outcomes: 0 nothing, 1 life lost, 2 game over."""
    # FireResetEnv presses FIRE, then RIGHT; where either press ends the episode it resets and does
    # not repeat that press. So a game can also begin with RIGHT alone, or with neither.
    after_reset = _FIRE if fire_reset else _ACT
    table = np.array(
        [
            [_ACT, _RESET, _RESET],
            [after_reset, after_reset, _RESET],
            [_RIGHT, _RESET_THEN_RIGHT, _RESET_THEN_RIGHT],
            [_ACT, _RESET_THEN_ACT, _RESET_THEN_ACT],
            [_RIGHT, _RIGHT, _RESET_THEN_RIGHT],
            [_ACT, _ACT, _RESET_THEN_ACT],
        ]
    )
    return table


class _BegunStep(NamedTuple):
    """State at a step's beginning that its end needs, each [n]."""

    active: NDArray[np.bool_]
    was_acting: NDArray[np.bool_]
    lives_before: NDArray[np.int64]


class AtariEnvironment:
    """A VectorEnvironment of one Atari game; see ``VectorEnvironment`` for the contract.

    ``num_threads`` bounds the emulators that run at once (0: no bound). ``max_frames`` truncates
    a game after that many emulator frames. Call ``reset`` or ``set_state`` first.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        rom: str,
        num_envs: int,
        *,
        fire_reset: bool,
        num_threads: int,
        max_frames: int,
        background: bool,
    ) -> None:
        """Load the game ``num_envs`` times (``make_emulators``)."""
        n = num_envs
        self.spec = spec
        self.num_envs = n
        self.observations = np.zeros((n, *spec.observation_shape), dtype=np.uint8)
        self.acting = np.zeros(n, dtype=np.bool_)
        self.age = np.zeros(n, dtype=np.int64)
        self._emulators = make_emulators(rom, n, max_frames, background)
        self._in_flight = num_threads if num_threads > 0 else n
        self._next_phase = _next_phases(fire_reset)
        self._phase_after_reset = _FIRE if fire_reset else _ACT
        self._first_frame_phase = _RIGHT if fire_reset else _RESET
        self._seed = -1
        self._max_frames = max_frames
        self._phase = np.full(n, _RESET, dtype=np.int64)
        self._frames = np.zeros((n, FRAME_SIZE, FRAME_SIZE), dtype=np.uint8)
        self._rewards = np.zeros(n, dtype=np.float32)
        self._lives = np.zeros(n, dtype=np.int64)
        self._terminated = np.zeros(n, dtype=np.bool_)
        self._truncated = np.zeros(n, dtype=np.bool_)
        self._returns = np.zeros(n, dtype=np.float64)
        self._lengths = np.zeros(n, dtype=np.int64)
        self._resets = np.zeros(n, dtype=np.int64)
        # Grown by doubling; one byte an action, as no game has over 18 buttons.
        self._log = np.zeros((n, 1024), dtype=np.uint8)
        self._log_length = np.zeros(n, dtype=np.int64)
        self._begun: deque[_BegunStep] = deque()
        self._unsent: deque[tuple[int, int]] = deque()  # emulator, button
        self._num_running = 0

    def reset(self, seed: int) -> None:
        """Start the first game of each emulator; seeding reloads the ROM (0.08 CPU-s each)."""
        self._seed = seed
        self._resets[:] = 1
        self._log_length[:] = 0
        self._returns[:] = 0
        self._lengths[:] = 0
        self._replay_all()
        self._phase[:] = self._phase_after_reset
        self._begin_episodes(np.ones(self.num_envs, dtype=np.bool_))
        self.acting = self._phase == _ACT

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> VectorStep:
        """Step the active emulators; see ``VectorEnvironment.step``."""
        self.begin_step(actions, active)
        return self.finish_step()

    def begin_step(self, actions: np.ndarray, active: np.ndarray | None = None) -> None:
        """Set the active emulators going; see ``VectorEnvironment.begin_step``."""
        if self._seed < 0:
            raise ValueError("reset() or set_state() must come before step()")
        active = checked_active(active, self.num_envs)
        if any((active & begun.active).any() for begun in self._begun):
            raise ValueError("an environment that is being stepped cannot begin another step")
        # Where SB3's wrappers act, the policy's action is not even looked at: it may be anything.
        was_acting = active & self.acting
        actions = checked_actions(actions, was_acting, self.spec.actions)
        self._begun.append(_BegunStep(active, was_acting, self._lives.copy()))
        buttons = np.where(was_acting, actions, _FORCED_ACTION[self._phase])
        self._write_log(active, buttons)
        rows = np.flatnonzero(active)
        self._unsent.extend(zip(rows.tolist(), buttons[rows].tolist(), strict=True))
        self._send()

    def finish_step(self) -> VectorStep:
        """Collect the step that was begun first; see ``VectorEnvironment.finish_step``."""
        if not self._begun:
            raise ValueError("finish_step() without begin_step()")
        active, was_acting, lives_before = self._begun.popleft()
        # Whichever emulator is slowest, the answers are read in row order; each one read makes room
        # for an unsent button, so the others go on meanwhile.
        for row in np.flatnonzero(active).tolist():
            self._receive(row, self._emulators[row].recv())
            self._num_running -= 1
            self._send()
        game_over = active & (self._terminated | self._truncated)
        # As EpisodicLifeEnv: a drop to 0 lives is the game's own end (or in Qbert a few frames
        # before it), never a lost life.
        life_lost = active & (self._lives > 0) & (self._lives < lives_before)
        self._observe(was_acting, active & (self._phase == self._first_frame_phase))
        outcome = np.where(game_over, 2, life_lost)
        self._phase = np.where(active, self._next_phase[self._phase, outcome], self._phase)
        self.acting = self._phase == _ACT
        rewards = np.where(active, self._rewards, np.float32(0))
        self._returns += rewards
        self._lengths += was_acting
        result = VectorStep(
            rewards=rewards,
            # A forced step is no transition, so nothing terminates there; its rewards still count
            # for the game's score, as in SB3's Monitor, which sits below these wrappers.
            terminated=was_acting & (self._terminated | life_lost),
            truncated=was_acting & self._truncated,
            game_over=game_over,
            game_returns=self._returns.copy(),
            game_lengths=self._lengths.copy(),
        )
        # After the copies above: the result keeps the finished game's totals.
        self._returns[game_over] = 0
        self._lengths[game_over] = 0
        return result

    def get_state(self) -> State:
        """Return seed, resets, the current games' actions and the bookkeeping around them."""
        if self._begun:
            raise ValueError("finish_step() must come before get_state()")
        logs = [self._log[i, :length] for i, length in enumerate(self._log_length)]
        return {name: array.copy() for name, array in self._state_arrays().items()} | {
            "game_actions": np.concatenate(logs)
        }

    def set_state(self, state: State) -> None:
        """Replay the current games (about 0.3 ms of CPU per action, 3 ms per past reset)."""
        arrays = self._state_arrays()
        check_state(state, arrays | {"game_actions": np.zeros(0, dtype=np.uint8)})
        if state["max_frames"][0] != self._max_frames:
            raise ValueError("environment state: saved with a different max_frames")
        if state["game_actions"].size != state["num_game_actions"].sum():
            raise ValueError("environment state: num_game_actions does not match game_actions")
        self._seed = int(state["seed"][0])
        self._resets[:] = state["num_resets"]
        self._log_length[:] = state["num_game_actions"]
        # A new array, not the old one filled: the saved games may be longer than it is wide.
        self._log = np.zeros((self.num_envs, 1024 + int(self._log_length.max())), dtype=np.uint8)
        ends = np.cumsum(self._log_length)
        for i, (end, length) in enumerate(zip(ends, self._log_length, strict=True)):
            self._log[i, :length] = state["game_actions"][end - length : end]
        self._replay_all()
        # The last frame and the lives stand for the whole replay: a game that went another way,
        # with another ale-py or ROM, would have to end on both by chance.
        same = (self._frames == state["frames"]).all() and (self._lives == state["lives"]).all()
        if not same:
            # Half restored: stepping must fail until the next reset.
            self._seed = -1
            raise ValueError("environment state: replay differs (another ale-py or game?)")
        for name in ("phase", "terminated", "truncated", "returns", "lengths", "age"):
            arrays[name][:] = state[name]
        self.observations[:] = state["observations"]
        self.acting = self._phase == _ACT

    def close(self) -> None:
        """Stop the emulators' threads."""
        self._emulators.clear()
        self._seed = -1

    def _state_arrays(self) -> State:
        """Return the saved arrays of fixed shape, not copied."""
        return {
            "seed": np.array([self._seed], dtype=np.int64),
            "max_frames": np.array([self._max_frames], dtype=np.int64),
            "num_resets": self._resets,
            "num_game_actions": self._log_length,
            "phase": self._phase,
            "terminated": self._terminated,
            "truncated": self._truncated,
            "lives": self._lives,
            "frames": self._frames,
            "returns": self._returns,
            "lengths": self._lengths,
            "age": self.age,
            "observations": self.observations,
        }

    def _observe(self, continuing: NDArray[np.bool_], beginning: NDArray[np.bool_]) -> None:
        """Push the new frames onto the stacks of running episodes; start new episodes."""
        rows = np.flatnonzero(continuing)
        # NumPy copies the right-hand side first (fancy indexing), so the overlap is safe.
        self.observations[rows, :-1] = self.observations[rows, 1:]
        self.observations[rows, -1] = self._frames[rows]
        self.age[rows] = np.minimum(self.age[rows] + 1, FRAME_STACK - 1)
        self._begin_episodes(beginning)

    def _begin_episodes(self, beginning: NDArray[np.bool_]) -> None:
        """Make the current frame the first observation: older frames are zero."""
        rows = np.flatnonzero(beginning)
        self.observations[rows, :-1] = 0
        self.observations[rows, -1] = self._frames[rows]
        self.age[rows] = 0

    def _send(self) -> None:
        """Give buttons to waiting emulators, oldest first, as many as may run at once."""
        while self._unsent and self._num_running < self._in_flight:
            row, button = self._unsent.popleft()
            self._emulators[row].send([button], _PADDLE_STRENGTH)
            self._num_running += 1

    def _receive(self, row: int, answer: tuple[Any, ...]) -> None:
        """Store what emulator ``row`` answered."""
        frames, rewards, terminated, truncated, info = answer
        self._frames[row] = frames[0, 0]
        self._rewards[row] = rewards[0]
        self._terminated[row] = terminated[0]
        self._truncated[row] = truncated[0]
        self._lives[row] = info["lives"][0]

    def _write_log(self, active: NDArray[np.bool_], actions: NDArray[np.int64]) -> None:
        """Log the actions of the current games; one that only resets starts a new log."""
        # After game over NextStep swallows one button for the reset; it must not be replayed.
        restarts = active & (self._terminated | self._truncated)
        self._resets += restarts
        self._log_length[restarts] = 0
        rows = np.flatnonzero(active & ~restarts)
        if self._log_length.max() == self._log.shape[1]:
            self._log = np.concatenate([self._log, np.zeros_like(self._log)], axis=1)
        self._log[rows, self._log_length[rows]] = actions[rows]
        self._log_length[rows] += 1

    def _replay_all(self) -> None:
        """Bring every emulator to the state that seed, resets and logs describe."""
        # The emulators run in ALE's threads; these only send buttons and wait for frames.
        workers = min(self._in_flight, usable_cores())
        with ThreadPoolExecutor(max_workers=workers) as pool:
            list(pool.map(self._replay, range(self.num_envs)))

    def _replay(self, row: int) -> None:
        """Replay one emulator: seeded reset, later resets, then the game's actions."""
        emulator = self._emulators[row]
        observation, info = emulator.reset([0], [emulator_seed(self._seed, row)])
        for _ in range(int(self._resets[row]) - 1):
            # -1 is no seed: the emulator draws its next no-op count, and does not reload the ROM
            # (0.003 CPU-seconds instead of 0.08).
            observation, info = emulator.reset([0], [-1])
        answer = (observation, [0], [False], [False], info)
        for action in self._log[row, : self._log_length[row]].tolist():
            emulator.send([action], _PADDLE_STRENGTH)
            answer = emulator.recv()
        self._receive(row, answer)
