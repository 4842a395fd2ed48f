"""Evaluation plays the games that it starts, all of them, whatever their length."""

from __future__ import annotations

import numpy as np
import pytest

from qpd.actions import ActingRule, Discrete
from qpd.environments.policy import FunctionPolicy, random_policy
from qpd.environments.registry import (
    EnvironmentSpec,
    VectorEnvironment,
    VectorStep,
    make_vector_env,
)
from qpd.evaluation import games
from qpd.evaluation.games import EvaluationResult, bootstrap_interval, evaluate

GREEDY = ActingRule("greedy")


class KnownGames:
    """Games of known length; game k of environment i, of length L, returns 10 L in steps of 10.

    Long games score more. Those of even environments begin with a forced step (acting False), as
    on Atari. The observation is (environment, game, steps played); a game longer than `cap` is
    truncated.
    """

    def __init__(self, lengths: np.ndarray, cap: int = 10_000) -> None:
        self.lengths, self.cap = lengths, cap  # [num_envs, games]
        self.num_envs = len(lengths)
        self.spec = EnvironmentSpec("KnownGames-v0", Discrete(2), (3,), "float32", False, 1)
        self.observations = np.zeros((self.num_envs, 3), np.float32)
        self.acting = np.zeros(self.num_envs, np.bool_)
        self.age = np.zeros(self.num_envs, np.int64)
        self.started: list[tuple[int, int]] = []
        self.finished: list[tuple[int, int]] = []
        self.truncated_games: list[tuple[int, int]] = []
        self.forced_actions: list[int] = []
        self.seed = -1

    def reset(self, seed: int) -> None:
        self.seed = seed
        self.game = np.zeros(self.num_envs, np.int64)
        self.played = np.zeros(self.num_envs, np.int64)
        self.acting[:] = np.arange(self.num_envs) % 2 == 1

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> VectorStep:
        assert active is not None and actions.shape == (self.num_envs,)
        over, cut = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        returns, lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
        for row in np.flatnonzero(active):
            key = (int(row), int(self.game[row]))
            if self.played[row] == 0 and key not in self.started:
                self.started.append(key)
            if not self.acting[row]:
                self.forced_actions.append(int(actions[row]))
                self.acting[row] = True
                continue
            self.played[row] += 1
            length = min(self.lengths[key], self.cap)
            over[row] = self.played[row] >= length
            cut[row] = over[row] and self.lengths[key] > self.cap
            returns[row], lengths[row] = 10.0 * self.played[row], self.played[row]
            if over[row]:
                self.finished.append(key)
                if cut[row]:
                    self.truncated_games.append(key)
                self.game[row] += 1
                self.played[row] = 0
                self.acting[row] = row % 2 == 1
            self.observations[row] = (row, self.game[row], self.played[row])
        return VectorStep(
            np.zeros(self.num_envs, np.float32), over & ~cut, cut, over, returns, lengths
        )

    def get_state(self) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


def _second(observations: np.ndarray) -> np.ndarray:
    assert len(observations) > 0
    return np.tile(np.array([0.0, 1.0], np.float32), (len(observations), 1))


constant_policy = FunctionPolicy(_second, Discrete(2))


def random_lengths(num_envs: int, seed: int = 0) -> np.ndarray:
    """Half the games last 1 to 3 steps, half 40 to 80."""
    rng = np.random.default_rng(seed)
    short, long = rng.integers(1, 4, (num_envs, 400)), rng.integers(40, 81, (num_envs, 400))
    return np.where(rng.random((num_envs, 400)) < 0.5, short, long)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("num_envs", "episodes"), [(8, 100), (8, 8), (8, 9), (16, 5), (1, 7), (5, 1)]
)
def test_exactly_the_episodes_started_are_counted(num_envs: int, episodes: int, seed: int) -> None:
    env = KnownGames(random_lengths(num_envs, seed))
    protocol: VectorEnvironment = env
    result = evaluate(constant_policy, protocol, episodes, GREEDY, seed=5)
    assert env.seed == 5
    assert len(env.started) == len(result.returns) == len(result.lengths) == episodes
    # Every game started was played to its end, and none was started twice.
    assert sorted(env.started) == sorted(env.finished)
    assert len(set(env.started)) == episodes
    # Results come in the order in which the games began.
    expected = [env.lengths[key] for key in env.started]
    assert sorted(result.lengths) == sorted(expected)
    assert result.lengths[: min(num_envs, episodes)].tolist() == expected[:num_envs]
    np.testing.assert_array_equal(result.returns, 10.0 * result.lengths)


def test_games_start_in_every_environment_before_any_second_one() -> None:
    env = KnownGames(random_lengths(6))
    evaluate(constant_policy, env, 30, GREEDY, seed=0)
    assert env.started[:6] == [(row, 0) for row in range(6)]
    for row in range(6):  # no game of an environment is skipped
        games = [game for r, game in env.started if r == row]
        assert games == list(range(len(games)))


def test_short_games_are_not_favoured() -> None:
    # The first 32 to finish, of 64 started at once, would all be short ones, of mean 20; the mean
    # length of the games is (2 + 60) / 2 = 31, their spread about 30, so that 400 episodes leave a
    # standard error of 1.5 (15 in return).
    means = []
    for seed in range(5):
        result = evaluate(constant_policy, KnownGames(random_lengths(64, seed)), 80, GREEDY, 0)
        means.append(result.mean)
    assert abs(np.mean(means) - 310) < 3.5 * 15


def test_fewer_episodes_than_environments_leave_the_others_alone() -> None:
    env = KnownGames(random_lengths(10))
    evaluate(constant_policy, env, 4, GREEDY, seed=0)
    assert {row for row, _ in env.started} == {0, 1, 2, 3}


def test_truncated_games_count() -> None:
    lengths = np.array([[5, 50, 5], [50, 5, 50]])
    env = KnownGames(lengths, cap=20)
    result = evaluate(constant_policy, env, 4, GREEDY, seed=0)
    assert set(env.truncated_games) == {(1, 0), (0, 1)}
    # Started: (0, 0), (1, 0), then (0, 1) when (0, 0) is over, then (1, 1).
    assert result.lengths.tolist() == [5, 20, 20, 5]
    assert result.returns.tolist() == [50.0, 200.0, 200.0, 50.0]


def test_the_policy_sees_only_environments_where_it_acts() -> None:
    seen: list[np.ndarray] = []

    def policy(observations: np.ndarray) -> np.ndarray:
        seen.append(observations.copy())
        return constant_policy(observations)

    env = KnownGames(random_lengths(4))
    evaluate(FunctionPolicy(policy, Discrete(2)), env, 14, GREEDY, seed=0)
    assert sum(len(batch) for batch in seen) == sum(env.lengths[key] for key in env.started)
    forced = sum(row % 2 == 0 for row, _ in env.started)
    assert env.forced_actions == [0] * forced  # the policy would have pressed 1


def test_finished_episodes_are_announced() -> None:
    heard: list[int] = []
    evaluate(constant_policy, KnownGames(random_lengths(4)), 9, GREEDY, 0, heard.append)
    assert heard == list(range(1, 10))


def test_the_seed_decides_sampled_actions() -> None:
    def played(seed: int) -> list[int]:
        actions: list[int] = []

        class Recorded(KnownGames):
            def step(self, chosen: np.ndarray, active: np.ndarray | None = None) -> VectorStep:
                actions.extend(chosen[self.acting].tolist())
                return super().step(chosen, active)

        evaluate(
            random_policy(Discrete(2)),
            Recorded(random_lengths(4)),
            12,
            ActingRule("sample"),
            seed,
        )
        return actions

    assert played(1) == played(1) != played(2)


def test_games_that_do_not_end_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(games, "_ENDLESS", 60)
    evaluate(constant_policy, KnownGames(np.array([[50] * 9] * 2)), 12, GREEDY, seed=0)
    assert caplog.text == ""
    evaluate(constant_policy, KnownGames(np.array([[5], [200]])), 2, GREEDY, seed=0)
    assert len(caplog.records) == 1  # though a first game had ended
    assert "KnownGames-v0: no game has ended in 60 steps; cut games off" in caplog.text


def test_one_game_has_no_interval_to_show() -> None:
    one = evaluate(constant_policy, KnownGames(np.array([[5]])), 1, GREEDY, seed=0)
    assert one.shown_interval() == "[-]" and " (1 game, greedy, seed 0)" in str(one)


@pytest.mark.parametrize("episodes", [0, -3])
def test_at_least_one_episode_is_needed(episodes: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1 episode, got {episodes}"):
        evaluate(constant_policy, KnownGames(random_lengths(2)), episodes, GREEDY, 0)


def test_the_interval_of_few_games_by_hand() -> None:
    # Of resamples of (0, 1) half have no spread and the others the mean 1/2: what is left is
    # Student's t with one degree of freedom, whose 70% quantile is tan(0.2 pi), times 1/2.
    returns = np.array([0.0, 1.0])
    low, high = bootstrap_interval(returns, 0.4)
    assert (low, high) == pytest.approx(
        (0.5 - np.tan(0.2 * np.pi) / 2, 0.5 + np.tan(0.2 * np.pi) / 2)
    )
    # t of one degree of freedom is 12.706: the mean of two may well be beyond both of them.
    assert bootstrap_interval(returns) == pytest.approx((0.5 - 6.353, 0.5 + 6.353), abs=1e-3)
    # Nine games of 500 and one of 0, of which none can have more.
    assert bootstrap_interval(np.array([500.0] * 9 + [0.0]))[1] == 500.0
    assert bootstrap_interval(np.full(5, 7.0)) == (7.0, 7.0)
    assert bootstrap_interval(np.array([3.0])) == (3.0, 3.0)


def test_the_interval_of_many_returns_is_nearly_the_normal_one() -> None:
    returns = np.random.default_rng(0).exponential(100, 400)
    low, high = bootstrap_interval(returns)
    half = 1.96 * returns.std() / 20
    assert abs(low - (returns.mean() - half)) < 0.15 * half
    assert abs(high - (returns.mean() + half)) < 0.15 * half
    # Exponential returns are skewed to the right: the mean is more likely too low than too high.
    assert high - returns.mean() > returns.mean() - low


def test_the_bootstraps_seed_matters() -> None:
    returns = np.random.default_rng(0).exponential(100, 50)
    first, again = (bootstrap_interval(returns, seed=3) for _ in range(2))
    assert first == again != bootstrap_interval(returns, seed=4)


def test_starts_are_counted_and_not_outcomes() -> None:
    rule = ActingRule("greedy")
    env = make_vector_env("CartPole-v1", 2)
    left = np.array([[1.0, 0.0]])
    policy = FunctionPolicy(lambda seen: left.repeat(len(seen), axis=0), Discrete(2))
    result = evaluate(policy, env, 5, rule, seed=3)
    # Pushed one way the pole falls within 8 to 10 steps: games end alike, but none began alike.
    data = result.to_json()
    assert data["distinct_starts"] == 5 > data["distinct_games"]


def test_the_json_form_is_complete() -> None:
    result = EvaluationResult(
        np.array([1.0, 3.0, 3.0]), np.array([4, 5, 5]), 7, ActingRule("epsilon", 0.05)
    )
    data = result.to_json()
    assert data["mean"] == pytest.approx(7 / 3) and data["interval"] == list(result.interval())
    assert data["std"] == pytest.approx(np.std([1, 3, 3], ddof=1))
    assert (data["episodes"], data["distinct_games"], data["seed"]) == (3, 2, 7)
    assert data["acting"] == "epsilon-greedy (0.05)"
    assert (data["returns"], data["lengths"]) == ([1.0, 3.0, 3.0], [4, 5, 5])


def test_the_bootstrap_of_very_many_returns_draws_the_same_in_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    returns = np.random.default_rng(0).normal(size=50)
    whole = bootstrap_interval(returns)
    monkeypatch.setattr("qpd.evaluation.games._DRAWS_AT_ONCE", 333)  # 6 of 10,000 rows at a time
    assert bootstrap_interval(returns) == whole
