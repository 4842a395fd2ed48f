"""Paired games: every precision of an agent plays the same starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from qpd.actions import ActingRule
from qpd.agents.errors import AgentQuantizationError
from qpd.agents.results import Played
from qpd.environments.interface import VectorEnvironment
from qpd.environments.policy import Policy, random_policy
from qpd.environments.registry import environment_spec, make_vector_env
from qpd.environments.source import EnvironmentSource
from qpd.errors.codes import ErrorCode
from qpd.evaluation.games import EvaluationResult, evaluate
from qpd.evaluation.sampled_states import SampledStates
from qpd.numerics.random_seeds import seed_for
from qpd.runs.progress import Progress
from qpd.teachers import Teacher

GAMES_AT_ONCE: Final = 64  # the first block's games are those of `qpd evaluate --seed`
CALIBRATION_GAMES: Final = 16


class AgentGames:
    """An agent's environments and how it acts; close it.

    Game k starts from the same state whoever plays: k is a row of a block of up to 64, and each
    block has a seed of its own, so that no game's start depends on when another one ended.
    """

    def __init__(self, teacher: Teacher, source: EnvironmentSource, episodes: int, seed: int):
        """Check that agent and environment fit; nothing is made yet."""
        spec = environment_spec(source)
        misfit = spec.misfit(teacher.observation_shape, teacher.actions)
        if misfit is not None:
            raise AgentQuantizationError(
                f"{teacher.source}: {misfit}", ErrorCode.TEACHER_WRONG_ENVIRONMENT
            )
        self.rule = teacher.actions.rule(
            "auto", on_atari=spec.is_atari, epsilon=0.01, sharpness=1.0
        )
        self.episodes, self.seed = episodes, seed
        self.stacks_frames = spec.frame_stack > 1
        self._source, self._actions = source, teacher.actions
        self._env: VectorEnvironment | None = None

    def play(
        self,
        policy: Policy,
        known: Played,
        keep: Callable[[Played], None],
        progress: Progress,
        label: str,
    ) -> Played:
        """Play the games that are not `known` yet; `keep` hears of all known ones at each block."""
        return self._play(lambda _: policy, known, keep, progress, label, self.rule)

    def play_randomly(
        self, known: Played, keep: Callable[[Played], None], progress: Progress
    ) -> Played:
        """Play with actions drawn at random, from the same starts."""
        # Drawn block by block: what is resumed must not repeat the first one's draws.
        return self._play(
            lambda block: random_policy(self._actions, block), known, keep, progress,
            "random actions", ActingRule("sample"),
        )  # fmt: skip

    def visited_states(self, policy: Policy, progress: Progress) -> np.ndarray:
        """Return states of other games than those that count, `[n, ...]`: at most 4,096."""
        states = SampledStates(policy)
        evaluate(
            states,
            self._environments(),
            CALIBRATION_GAMES,
            self.rule,
            seed_for(self.seed, "calibration"),
            lambda done: progress.episodes("playing for ranges", done, CALIBRATION_GAMES),
        )
        return states.observations

    def result(self, played: Played) -> EvaluationResult:
        """Return games as an evaluation of a run."""
        returns, lengths = np.array(played.returns), np.array(played.lengths, np.int64)
        return EvaluationResult(returns, lengths, self.seed, self.rule)

    def close(self) -> None:
        """Release the environments."""
        if self._env is not None:
            self._env.close()

    def _play(
        self,
        policy_of: Callable[[int], Policy],
        known: Played,
        keep: Callable[[Played], None],
        progress: Progress,
        label: str,
        rule: ActingRule,
    ) -> Played:
        while (done := len(known.returns)) < self.episodes:
            policy = policy_of(done // GAMES_AT_ONCE)
            block = self._block(policy, rule, done, progress, label)
            games = Played(tuple(block.returns.tolist()), tuple(block.lengths.tolist()))
            known = known.and_then(games)
            keep(known)
        return known

    def _block(
        self, policy: Policy, rule: ActingRule, done: int, progress: Progress, label: str
    ) -> EvaluationResult:
        count = min(GAMES_AT_ONCE, self.episodes - done)
        return evaluate(
            policy,
            self._environments(),
            count,
            rule,
            _block_seed(self.seed, done // GAMES_AT_ONCE),
            lambda more: progress.episodes(f"playing {label}", done + more, self.episodes),
        )

    def _environments(self) -> VectorEnvironment:
        if self._env is None:
            count = min(GAMES_AT_ONCE, max(self.episodes, CALIBRATION_GAMES))
            self._env = make_vector_env(self._source, count)
        return self._env


def _block_seed(seed: int, block: int) -> int:
    if block == 0:
        return seed
    return int(np.random.SeedSequence([seed, block]).generate_state(1)[0]) & (2**30 - 1)
