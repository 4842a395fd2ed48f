"""What an agent's files and the user say of its environment, from the files to the game."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium.wrappers import TimeLimit
from sb3_contrib.common.wrappers import TimeFeatureWrapper
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

from qpd import api
from qpd.analysis.networks.action_traces import action_traces
from qpd.commands.environment_options import environment_wish
from qpd.environments import registry
from qpd.environments.errors import EnvironmentConfigError, EnvironmentRunError
from qpd.environments.making import make_one
from qpd.environments.older_ids import present_form
from qpd.environments.source import EnvironmentSource, Wrapper, as_source
from qpd.environments.wrappers import TIME_FEATURE, ZeroContactForces
from qpd.errors.user_error import TargetError
from qpd.phases.agent_recipe import environment_lines, resolve_recipe
from qpd.phases.preparation import PreparationError, prepare
from qpd.phases.whole_run import run_all_phases
from qpd.runs.observation_noise import with_deviations
from qpd.runs.played_environment import EnvironmentWish
from qpd.runs.progress import SilentProgress
from qpd.runs.run_directory import RunDirectory
from qpd.runs.target import load_target, play
from qpd.teachers import load_teacher
from tests.environments.custom_environments import MODULE, Countdown
from tests.tiny_run import Follower, recipe_of

COUNTDOWN = f"{MODULE}:Countdown-v0"


@pytest.fixture(autouse=True)
def nothing_named_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget after each test the modules that its user named."""
    monkeypatch.setenv("QPD_IMPORT", "")
    registry._spec.cache_clear()


def zoo_folder(
    folder: Path, env: DummyVecEnv | VecFrameStack, env_id: str, **config: object
) -> Path:
    """An untrained agent in the RL Zoo's layout, whose config.yml holds `config`."""
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, seed=0, device="cpu")
    name = env_id.rpartition(":")[2]
    settings = folder / f"{name}_1" / name
    settings.mkdir(parents=True)
    model.save(settings.parent / f"{name}.zip")
    (settings / "args.yml").write_text(yaml.safe_dump({"algo": "ppo", "env": env_id}))
    (settings / "config.yml").write_text(yaml.safe_dump(config))
    return settings.parent


ATARI = "stable_baselines3.common.atari_wrappers.AtariWrapper"


def cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


def test_the_zoos_time_feature_and_stack_are_applied_and_said(tmp_path: Path) -> None:
    env = VecFrameStack(DummyVecEnv([lambda: TimeFeatureWrapper(cartpole())]), 2)
    folder = zoo_folder(
        tmp_path, env, "CartPole-v1", env_wrapper=[{TIME_FEATURE: {}}], frame_stack=2
    )
    target = load_target(str(folder), None, None, "cpu")
    wanted = EnvironmentSource("CartPole-v1", wrappers=(Wrapper(TIME_FEATURE),), frame_stack=2)
    assert target.environment == wanted and target.observation_shape == (10,)
    assert target.notes == (f"plays CartPole-v1, in {TIME_FEATURE}, 2 observations stacked",)
    result = api.evaluate(target, episodes=2)
    assert len(result.returns) == 2
    # The user's word counts for more; then the agent no longer fits.
    wish = EnvironmentWish(wrappers=(), frame_stack=1)
    with pytest.raises(TargetError, match="sees observations of shape"):
        api.evaluate(load_target(str(folder), None, wish, "cpu"), episodes=1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"env_wrapper": f"{MODULE}.Doubled"}, f"--wrapper {MODULE}.Doubled"),
        (
            {"env_wrapper": {"gymnasium.wrappers.RecordVideo": {"video_folder": "/tmp"}}},
            "RecordVideo, which QPD does not know",
        ),
        (
            {"env_wrapper": {"gymnasium.wrappers.TimeLimit": {"max_episode_steps": "x"}}},
            "max_episode_steps='x'",
        ),
        ({"env_kwargs": {"xml_file": "/etc/passwd"}}, "--env-kwargs xml_file:VALUE"),
        ({"vec_env_wrapper": "some.VecThing"}, "some.VecThing: of such wrappers QPD knows"),
    ],
)
def test_strange_words_of_an_agents_files_are_refused(
    tmp_path: Path, config: dict[str, object], message: str
) -> None:
    folder = zoo_folder(tmp_path, DummyVecEnv([cartpole]), "CartPole-v1", **config)
    with pytest.raises(EnvironmentConfigError, match=message) as raised:
        load_target(str(folder), None, None, "cpu")
    assert "\n" not in str(raised.value)


def test_only_the_user_may_have_a_module_imported(tmp_path: Path) -> None:
    env = DummyVecEnv([lambda: TimeLimit(Countdown(), 50)])
    folder = zoo_folder(tmp_path, env, COUNTDOWN)
    with pytest.raises(EnvironmentConfigError, match=f"give --env {COUNTDOWN}"):
        load_target(str(folder), None, None, "cpu")
    assert load_target(str(folder), None, COUNTDOWN, "cpu").env_id == COUNTDOWN


def test_the_users_arguments_reach_the_game(tmp_path: Path) -> None:
    """Countdown's returns are sums of its walk, whose steps `scale` multiplies."""
    folder = zoo_folder(
        tmp_path, DummyVecEnv([Countdown]), COUNTDOWN, env_kwargs={"scale": 5.0, "render_mode": "x"}
    )
    returns = [
        api.evaluate(str(folder), episodes=3, env=COUNTDOWN, env_kwargs=kwargs).returns
        for kwargs in (None, {"scale": 10.0}, {"scale": 5.0})
    ]
    np.testing.assert_allclose(2 * returns[0], returns[1])
    np.testing.assert_array_equal(returns[0], returns[2])
    made = api.evaluate(str(folder), episodes=3, env=lambda: Countdown(5.0))
    np.testing.assert_array_equal(made.returns, returns[0])


def test_a_run_plays_what_its_recipe_says_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its student, too, and without its teacher's files."""
    zoo_folder(tmp_path, DummyVecEnv([Countdown]), COUNTDOWN)
    agent = tmp_path / "Countdown-v0_1" / "Countdown-v0.zip"
    recipe = recipe_of(
        agent,
        teacher={"env": COUNTDOWN},
        environment={"kwargs": {"scale": 0.5}, "wrappers": [f"{MODULE}.Doubled"]},
    )
    done = api.run(recipe, output=tmp_path / "run")
    record = RunDirectory.open(done.path, read_only=True).manifest.teacher
    assert record is not None and record.environment is not None
    assert record.environment["kwargs"] == {"scale": 0.5}
    agent.unlink()
    # A run directory may come from anyone, and this one names code.
    monkeypatch.setenv("QPD_IMPORT", "")
    registry._spec.cache_clear()
    strange = load_target(str(done.path), "distilled", None, "cpu")
    with pytest.raises(EnvironmentConfigError, match=f"set QPD_IMPORT={MODULE} before"):
        api.evaluate(strange, episodes=2)
    own = strange.environment  # its user may name it
    named = EnvironmentWish(own.env_id, wrappers=own.wrappers)
    target = load_target(str(done.path), "distilled", named, "cpu")
    assert len(api.evaluate(target, episodes=2).returns) == 2
    monkeypatch.setenv("QPD_IMPORT", MODULE)
    target = load_target(str(done.path), "distilled", None, "cpu")
    assert target.environment.wrappers[0].name == f"{MODULE}.Doubled"
    assert len(api.evaluate(target, episodes=2).returns) == 2
    with pytest.raises(TargetError, match="plays in the environment of its recipe"):
        load_target(str(done.path), None, EnvironmentWish(kwargs={"scale": 1.0}), "cpu")


@pytest.mark.filterwarnings("ignore:.*out of date")
def test_a_student_of_an_old_ant_sees_what_ant_shows(tmp_path: Path) -> None:
    """Its agent sees 84 zeros more, of which the student's first layer would learn nothing."""
    pytest.importorskip("mujoco")
    agent = tmp_path / "ant.zip"
    old = DummyVecEnv([lambda: ZeroContactForces(gymnasium.make("Ant-v4"))])
    PPO("MlpPolicy", old, n_steps=8, batch_size=8, seed=0, device="cpu").save(agent)
    recipe = recipe_of(
        agent,
        teacher={"env": "Ant-v3"},
        environment={"num_envs": 2},
        distill={"epochs": 1},
        finetune={"epochs": 1},
        evaluation={"episodes": 2, "acting": "auto"},
    )
    done = api.run(recipe, output=tmp_path / "run")
    student = load_target(str(done.path), "qat", None, "cpu")
    assert student.observation_shape == (27,) and not student.environment.wrappers
    teacher = load_target(str(done.path), "teacher", None, "cpu")
    assert teacher.teacher is not None and teacher.observation_shape == (27,)
    assert teacher.environment == student.environment
    alone = load_target(str(agent), None, "Ant-v3", "cpu")
    assert alone.teacher is not None and alone.observation_shape == (111,)
    shown = torch.randn(5, 27)
    padded = torch.cat([shown, torch.zeros(5, 84)], dim=1)
    assert torch.equal(teacher.teacher(shown).labels, alone.teacher(padded).labels)
    assert teacher.teacher.actor_parameters == alone.teacher.actor_parameters
    # Both get equal noise, and both are shown on one page.
    units = [with_deviations(each, SilentProgress()).deviations for each in (student, teacher)]
    assert units[0] is not None and units[1] == units[0]
    assert action_traces(done.path, steps=5).missing is None
    # Who names the wrapper, as the agent's card does, gets no second one.
    own = alone.environment
    named = load_target(str(agent), None, EnvironmentWish("Ant-v3", wrappers=own.wrappers), "cpu")
    assert named.environment == own


def test_a_run_whose_environment_fails_goes_on_once_it_is_mended(tmp_path: Path) -> None:
    zoo_folder(tmp_path, DummyVecEnv([Countdown]), COUNTDOWN)
    agent = tmp_path / "Countdown-v0_1" / "Countdown-v0.zip"
    mended = tmp_path / "mended"
    recipe = recipe_of(
        agent,
        teacher={"env": f"{MODULE}:Broken-v0"},
        environment={"kwargs": {"unless": str(mended), "after": 400}},
    )
    with pytest.raises(EnvironmentRunError, match="the motor is hot"):
        api.run(recipe, output=tmp_path / "run")
    mended.touch()
    done = api.run(recipe, output=tmp_path / "run")
    assert done.phase("finetune").state == "done"
    whole = api.run(recipe, output=tmp_path / "whole")
    assert done.quantized_file.read_bytes() == whole.quantized_file.read_bytes()


def test_options_are_the_zoos_spelling_and_plain_yaml() -> None:
    texts = ["gravity:9.81", "continuous: true", "name:os.system('x')", "sizes:[1, 2]"]
    wish = environment_wish("A-v0", texts, ["a.B", "{c.D: {x: 1}}"], 4)
    assert wish.kwargs == {
        "gravity": 9.81, "continuous": True, "name": "os.system('x')", "sizes": [1, 2]
    }  # fmt: skip
    assert wish.wrappers is not None
    assert [each.to_json() for each in wish.wrappers] == ["a.B", {"c.D": {"x": 1}}]
    lines = environment_lines(environment_wish("m:Own-v0", ["g:1e-3"], ["a.B"], 4))
    assert lines == [
        'teacher.env="m:Own-v0"', "environment.kwargs.g=0.001",
        'environment.wrappers=["a.B"]', "environment.frame_stack=4",
    ]  # fmt: skip
    nested = environment_wish(None, ["w:{arm.left: 2, legs: {}}"], None, None)
    assert environment_lines(nested) == ['environment.kwargs.w={"arm.left": 2, "legs": {}}']
    with pytest.raises(EnvironmentConfigError, match="env_kwargs: w: expected"):
        environment_lines(EnvironmentWish(kwargs={"w": {1: 2}}))
    for wrong in ("gravity", "a-b:1", ":1"):
        with pytest.raises(TargetError, match="expected KEY:VALUE"):
            environment_wish(None, [wrong], None, None)
    with pytest.raises(EnvironmentConfigError, match="expected finite numbers"):
        environment_wish(None, ["x:.nan"], None, None)


def test_processes_end_when_their_parent_is_killed() -> None:
    code = (
        "from qpd.environments.registry import make_vector_env\n"
        "import time\n"
        "env = make_vector_env('CartPole-v1', 4, workers=2)\n"
        "env.reset(0)\n"
        "print(*[p.pid for p, _ in env._rows._workers], flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    children = [int(word) for word in parent.stdout.readline().split()]
    assert len(children) == 2 and all(Path(f"/proc/{pid}").exists() for pid in children)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()

    def alive() -> list[int]:
        # A process that has ended but was not waited for by its new parent is no orphan at work.
        stats = [Path(f"/proc/{pid}/stat") for pid in children]
        return [1 for stat in stats if stat.exists() and stat.read_text().split()[2] != "Z"]

    until = time.monotonic() + 30
    while alive() and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive()


def test_a_wish_may_be_a_source_taken_as_it_is(tmp_path: Path) -> None:
    folder = zoo_folder(tmp_path, DummyVecEnv([cartpole]), "CartPole-v1", frame_stack=3)
    source = EnvironmentSource("CartPole-v1")
    target = load_target(str(folder), None, EnvironmentWish(source), "cpu")
    assert target.environment == source and target.notes == ()
    assert replace(source, frame_stack=3) != source


def test_a_runs_own_games_are_played_again_and_nobody_elses(
    teacher_zip: Path, tmp_path: Path
) -> None:
    """As many at once as its recipe says: other games would be played otherwise."""
    recipe = recipe_of(teacher_zip, evaluation={"episodes": 6, "num_envs": 2})
    recipe = recipe.model_copy(
        update={"finetune": recipe.finetune.model_copy(update={"epochs": 1})}
    )
    run_all_phases(recipe, tmp_path / "run", Follower())
    recorded = RunDirectory.open(tmp_path / "run", read_only=True).manifest.evaluations
    again = play(load_target(tmp_path / "run", "qat", None, "cpu"), SilentProgress())
    assert list(again.returns) == recorded["qat"]["returns"]
    own = load_target(tmp_path / "run", "qat", "CartPole-v1", "cpu")
    assert own.environment.env_id == "CartPole-v1"
    for wish, statistics in (("CartPole-v0", None), (None, tmp_path / "vecnormalize.pkl")):
        with pytest.raises(TargetError, match="a run plays in the environment of its recipe"):
            load_target(tmp_path / "run", "qat", wish, "cpu", statistics)


def test_time_is_a_share_of_the_limit_of_what_is_wrapped(tmp_path: Path) -> None:
    """As sb3_contrib's wrapper has it: a function's own limit, or an inner wrapper's."""
    limited = Wrapper("gymnasium.wrappers.TimeLimit", {"max_episode_steps": 50})
    for wrappers, most in (((), 500), ((limited,), 50)):
        source = replace(as_source(cartpole), wrappers=(*wrappers, Wrapper(TIME_FEATURE)))
        inner = gymnasium.wrappers.TimeLimit(cartpole(), 50) if wrappers else cartpole()
        ours, theirs = make_one(source), TimeFeatureWrapper(inner)
        for env in (ours, theirs):
            env.reset(seed=0)
        for step in range(1, 6):
            shown = [float(env.step(0)[0][-1]) for env in (ours, theirs)]
            assert shown[0] == shown[1] == pytest.approx(1 - step / most)


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        ({"env_wrapper": [{ATARI: {"terminal_on_life_loss": False}}], "frame_stack": 4}, None),
        ({"env_kwargs": {"repeat_action_probability": 0.0, "mode": 0}}, None),
        ({"env_wrapper": [{ATARI: {"frame_skip": 2}}]}, "frame_skip=2"),
        ({"env_kwargs": {"repeat_action_probability": 0.25}}, "repeat_action_probability=0.25"),
    ],
)
def test_atari_that_the_emulators_do_not_play_is_refused(
    config: dict[str, object], refused: str | None, tmp_path: Path
) -> None:
    settings = tmp_path / "BreakoutNoFrameskip-v4"
    settings.mkdir()
    (settings / "args.yml").write_text("env: BreakoutNoFrameskip-v4\nalgo: ppo\n")
    (settings / "config.yml").write_text(yaml.safe_dump(config))
    embedded = load_teacher("embedded").files.archive
    shutil.copy(embedded, tmp_path / "BreakoutNoFrameskip-v4.zip")
    if refused is None:
        found = load_target(str(tmp_path), None, None, "cpu")
        assert found.environment == EnvironmentSource("BreakoutNoFrameskip-v4")
        reward = {"finetune": {"reward": {}}}
        recipe = resolve_recipe("breakout/ppo-s", reward, teacher=tmp_path)
        if "env_wrapper" not in config:
            prepare(recipe, "cpu")
            return
        with pytest.raises(PreparationError, match="trained with terminal_on_life_loss=False"):
            prepare(recipe, "cpu")
        return
    with pytest.raises(EnvironmentConfigError, match=refused):
        load_target(str(tmp_path), None, None, "cpu")


def test_pusher_is_played_in_the_version_that_is_there() -> None:
    source, said = present_form(EnvironmentSource("Pusher-v2"))
    assert source.env_id == "Pusher-v5" and said is not None and "rewards" in said
