"""`qpd.train`, for real and briefly: the folder it leaves, and trainings that were interrupted."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import qpd
from qpd.files.tensors import crc32_of
from qpd.recipe.train_schema import load_train_recipe
from qpd.runs.run_folder import sealed, unsealed
from qpd.runs.training_run import TrainingRun
from qpd.teachers.training import checkpoint, segments
from qpd.teachers.training.manager import TrainingManager
from tests.command_line import call
from tests.phases.small_trainings import (
    SMALL,
    TRAININGS,
    Interrupts,
    assert_same_training,
    metric_rows,
    training_overrides,
)

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("default")  # the zoo's own dependencies warn

SLOW = ("a2c", "trpo", "td3", "tqc")  # much like others
CASES = [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in TRAININGS]


@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_training_ends_in_the_same_numbers(case: str, tmp_path: Path) -> None:
    algo, env, hyperparameters = TRAININGS[case]
    overrides = training_overrides(hyperparameters)
    settings: dict[str, Any] = {"overrides": overrides, **SMALL}
    interrupt = Interrupts(int(0.8 * overrides["train.timesteps"]))
    whole = qpd.train(algo, env, output=tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        qpd.train(algo, env, output=tmp_path / "parts", progress=interrupt, **settings)
    assert (tmp_path / "parts" / "checkpoints").is_dir()
    parts = qpd.train(algo, env, output=tmp_path / "parts", **settings)
    assert len(parts.phase.resumed_at) == 1 and parts.phase.resumed_at[0] >= 100
    assert not parts.phase.refilled_at
    assert_same_training(whole, parts)


@pytest.mark.slow
def test_a_killed_training_goes_on(tmp_path: Path) -> None:
    """As kill -9 leaves it: nothing closed, rows after the checkpoint already written."""
    hyperparameters = TRAININGS["ppo"][2]
    settings: dict[str, Any] = {"overrides": training_overrides(hyperparameters), **SMALL}
    program = """if True:
        import json, os, signal, sys
        import qpd
        from tests.phases.small_trainings import Interrupts
        class Killed(Interrupts):
            def steps(self, done, total, episode_return, is_line):
                if done >= self._steps:
                    os.kill(os.getpid(), signal.SIGKILL)
        settings = json.loads(sys.argv[2])
        qpd.train("ppo", "CartPole-v1", output=sys.argv[1], progress=Killed(250), **settings)
    """
    parts = tmp_path / "parts"
    command = [sys.executable, "-c", program, str(parts), json.dumps(settings)]
    killed = subprocess.run(command, check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (parts / "CartPole-v1.zip").exists()
    done = qpd.train("ppo", "CartPole-v1", output=parts, **settings)
    assert len(done.phase.resumed_at) == 1
    assert_same_training(
        qpd.train("ppo", "CartPole-v1", output=tmp_path / "whole", **settings), done
    )


def test_a_replay_buffer_that_is_too_large_is_played_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = training_overrides(TRAININGS["dqn"][2], max_replay_mib=0)
    settings: dict[str, Any] = {"overrides": overrides, "output": tmp_path / "run", **SMALL}
    with pytest.raises(KeyboardInterrupt):
        qpd.train("dqn", "CartPole-v1", progress=Interrupts(250), **settings)
    checkpoint = next((tmp_path / "run" / "checkpoints").iterdir())
    assert not (checkpoint / "replay").exists()
    run = qpd.train("dqn", "CartPole-v1", progress=True, **settings)
    assert run.phase.refilled_at == run.phase.resumed_at != ()
    assert "its replay buffer was not kept" in capsys.readouterr().err


def test_a_buffer_that_was_filled_again_is_not_learned_from_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the next checkpoint can keep it, as it is small yet, and the training stops again."""
    overrides = training_overrides(TRAININGS["dqn"][2], timesteps=500) | {"learning_starts": 150}
    settings: dict[str, Any] = {"overrides": overrides, **SMALL}

    def of_150_rows(
        folder: Path, model: Any, limit: int, *others: Any, save: Any = segments.save_checkpoint
    ) -> None:
        rows = sum(each.nbytes for each in checkpoint._arrays(model.replay_buffer).values())
        save(folder, model, 150 * rows // model.replay_buffer.buffer_size, *others)

    monkeypatch.setattr(segments, "save_checkpoint", of_150_rows)
    runs = []
    for name, stops in (("once", [250]), ("twice", [250, 320])):
        for stop in stops:
            with pytest.raises(KeyboardInterrupt):
                qpd.train(
                    "dqn",
                    "CartPole-v1",
                    output=tmp_path / name,
                    progress=Interrupts(stop),
                    **settings,
                )
        runs.append(qpd.train("dqn", "CartPole-v1", output=tmp_path / name, **settings))
    once, twice = runs
    assert (once.phase.refilled_at, twice.phase.refilled_at) == ((200,), (200,))
    assert twice.phase.resumed_at == (200, 300)
    assert_same_training(once, twice)


@pytest.mark.parametrize(
    ("name", "policy"), [("Keys", "MultiInputPolicy"), ("Rgb", "CnnPolicy"), ("Aim", "MlpPolicy")]
)
def test_an_environment_of_ones_own_is_trained(name: str, policy: str, tmp_path: Path) -> None:
    """The zoo does not list it: SB3's defaults, and the policy that its observations need."""
    overrides = training_overrides({"n_steps": 64, "batch_size": 64, "n_epochs": 1})
    env_id = f"tests.phases.own_environments:{name}-v0"
    run = qpd.train("ppo", env_id, overrides=overrides, output=tmp_path / "run", **SMALL)
    assert f"- {policy}\n" in (run.path / f"{name}-v0" / "config.yml").read_text()
    assert qpd.evaluate(run, episodes=2, env=env_id).returns.size == 2


def test_stacked_observations_go_with_normalized_rewards(tmp_path: Path) -> None:
    overrides = training_overrides(TRAININGS["ppo with gSDE"][2])
    overrides |= {"environment.frame_stack": 2, "normalize": {"norm_obs": False}}
    run = qpd.train("ppo", "Pendulum-v1", overrides=overrides, output=tmp_path / "run", **SMALL)
    assert qpd.evaluate(run, episodes=2).returns.size == 2


def test_another_version_of_an_environment_has_its_settings() -> None:
    manager = TrainingManager(load_train_recipe(None, algo="sac", env="x"), "Hopper-v5", {})
    assert manager.read_hyperparameters()[0]["learning_starts"] == 10_000  # the zoo's Hopper-v4
    manager = TrainingManager(load_train_recipe(None, algo="sac", env="x"), "Acrobot-v1", {})
    assert manager.read_hyperparameters()[0] == {"n_timesteps": 1_000_000, "policy": "MlpPolicy"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished training of PPO."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    overrides = training_overrides(TRAININGS["ppo"][2], keep_checkpoints=True)
    overrides["save.tensorboard"] = True
    qpd.train("ppo", "CartPole-v1", overrides=overrides, output=folder, **SMALL)
    return folder


def test_the_folder_is_a_run_directory_and_an_agent(trained: Path) -> None:
    from stable_baselines3 import PPO

    teacher = qpd.load_teacher(trained)
    assert (teacher.algo, teacher.env_id) == ("ppo", "CartPole-v1")
    assert teacher.files.seed == 3 and teacher.files.hyperparameters["n_steps"] == 16
    model = PPO.load(trained / "CartPole-v1.zip", device="cpu")
    assert model.num_timesteps == teacher.num_timesteps == 320  # rollouts of 2 x 16 steps
    manifest = json.loads((trained / "manifest.json").read_text())
    assert manifest["kind"] == "training" and manifest["phases"]["train"]["state"] == "done"
    assert {"stable-baselines3", "rl_zoo3", "qpd"} <= manifest["versions"].keys()
    rows = metric_rows(TrainingRun.open(trained))
    assert float(rows[-1]["timesteps"]) >= 300 and any(row["train/value_loss"] for row in rows)
    assert list((trained / "tensorboard").rglob("events.out.tfevents.*"))
    kept = sorted(path.name for path in (trained / "checkpoints").iterdir())
    assert kept == ["000000000128", "000000000224", "000000000320"][: len(kept)] and len(kept) == 2
    assert qpd.load_teacher(trained / "checkpoints" / kept[0] / "agent.zip", env_id="CartPole-v1")


def test_commands_take_it_as_what_it_is(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "show", trained)
    assert code == 0 and "training of ppo on CartPole-v1" in out and "done" in out
    code, out, _ = call(capsys, "show", trained, "--json")
    summary = json.loads(out)
    assert (summary["kind"], summary["state"], summary["timesteps"]) == ("training", "done", 320)
    code, out, _ = call(capsys, "teacher", "info", trained, "--episodes", "0", "--json")
    assert code == 0 and json.loads(out)["training"].startswith("by `qpd train`, done, 320 steps")
    code, out, _ = call(capsys, "evaluate", trained, "--episodes", "2", "--quiet", "--json")
    assert code == 0 and json.loads(out)["env_id"] == "CartPole-v1"
    code, _, err = call(capsys, "finetune", trained)
    assert code == 2 and "is a training by `qpd train`" in err


def test_the_same_command_again_changes_nothing(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.is_file()}
    file = trained / "recipe.yaml"
    code, _, err = call(capsys, "train", file, "-o", trained)
    assert code == 0 and "training of ppo" not in err
    assert before == {path: path.stat().st_mtime_ns for path in before}
    code, _, err = call(capsys, "train", file, "-o", trained, "--set", "n_steps=32")
    assert code == 2 and "train.hyperparameters.n_steps: was 16, now 32" in err


def test_what_is_done_to_the_environment_stays_with_the_agent(tmp_path: Path) -> None:
    run = qpd.train(
        "ppo",
        "Pendulum-v1",
        overrides={
            **training_overrides({"n_steps": 32, "n_envs": 2}),
            "environment.kwargs": {"g": 5.0},
            "environment.wrappers": ["sb3_contrib.common.wrappers.TimeFeatureWrapper"],
            "environment.frame_stack": 2,
        },
        output=tmp_path / "run",
        **SMALL,
    )
    teacher = qpd.load_teacher(run)
    assert teacher.observation_shape == (8,)  # two of 3 numbers and the time that is left
    told = teacher.files.environment
    assert told.env_kwargs == {"g": 5.0} and told.frame_stack == 2
    result = qpd.evaluate(run, episodes=1)
    assert list(result.lengths) == [200]


def test_atari_games_resume_in_qpds_own_environment(tmp_path: Path) -> None:
    hyperparameters = {"n_envs": 2, "n_steps": 4, "learning_rate": "lin_1e-4"}
    overrides = training_overrides(hyperparameters) | {
        "train.timesteps": 48,
        "train.checkpoint_every": 16,
    }
    settings: dict[str, Any] = {"overrides": overrides, **SMALL}
    whole = qpd.train("a2c", "BreakoutNoFrameskip-v4", output=tmp_path / "whole", **settings)
    arguments = ("a2c", "BreakoutNoFrameskip-v4")
    with pytest.raises(KeyboardInterrupt):
        qpd.train(*arguments, output=tmp_path / "parts", progress=Interrupts(40), **settings)
    parts = qpd.train(*arguments, output=tmp_path / "parts", **settings)
    assert parts.phase.resumed_at == (32,)
    assert_same_training(whole, parts)


def test_an_unfinished_training_is_no_agent_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = training_overrides(TRAININGS["ppo"][2])
    with pytest.raises(KeyboardInterrupt):
        qpd.train("ppo", "CartPole-v1", overrides=overrides, output=tmp_path / "run",
                  progress=Interrupts(250), **SMALL)  # fmt: skip
    code, _, err = call(capsys, "evaluate", tmp_path / "run")
    assert code == 2 and "its training is not done (224 steps saved): give `qpd train`" in err
    state = next((tmp_path / "run" / "checkpoints").iterdir()) / "state.json"
    state.write_text("{}")
    with pytest.raises(qpd.UserError, match="cannot be resumed"):
        qpd.train("ppo", "CartPole-v1", overrides=overrides, output=tmp_path / "run", **SMALL)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("dqn", "Pendulum-v1"), "DQN learns Discrete actions; those of Pendulum-v1 are Box"),
        (("sac", "CartPole-v1"), "SAC learns Box actions; those of CartPole-v1 are Discrete"),
        (("ppp", "CartPole-v1"), "did you mean ppo?"),
        (("ppo", "CartPole-v9"), "CartPole-v"),
        (("ppo",), "name the environment, too"),
        (("ppo", "CartPole-v1", "--set", "lr=1"), "PPO has no such hyperparameter"),
        (("ppo", "CartPole-v1", "--set", "policy_kwargs=dict()"), "no such hyperparameter"),
        (("ppo", "CartPole-v1", "--set", "train.algoritm=1"), "did you mean train.algo?"),
        (("ppo", "CartPole-v1", "--set", "n_steps=1", "--set", "n_envs=1"), "cannot be set up"),
        (("ppo", "CartPole-v1", "--env-kwargs", "nonsense:1"), "nonsense"),
        (("ppo", "CartPole-v1", "--wrapper", "no_such_module.Wrapper"), "no_such_module"),
        (("ars", "CartPole-v1", "--set", "n_envs=4"), "must be 1"),
        (("a2c", "PongNoFrameskip-v4", "--set", "layer_norm=true"), "has no hidden layers behind"),
        (("td3", "Pendulum-v1", "--frame-stack", "2", "--set", "normalize=true"), "normalize=f"),
        (("ppo", "Pendulum-v1", "--frame-stack", "2", "--set", "normalize=true"), "normalize=f"),
        (
            ("ppo", "tests.phases.own_environments:Scalar-v0"),
            "give the action space the shape",
        ),
        (("teacher", "train"), "is called `qpd train` now"),
    ],
)
def test_what_does_not_fit_is_one_line_and_nothing_is_written(
    arguments: tuple[str, ...], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        [*arguments, "ppo", "CartPole-v1"] if arguments[0] == "teacher" else ["train", *arguments]
    )
    code, out, err = call(capsys, *words, "-o", tmp_path / "new", "--device", "cpu")
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and len(lines) == 1 and expected in lines[0] and not out, err
    assert not (tmp_path / "new").exists()


def test_what_a_kill_at_the_end_left_is_removed(tmp_path: Path) -> None:
    overrides = training_overrides(TRAININGS["ppo"][2])
    settings: dict[str, Any] = {"overrides": overrides, "output": tmp_path / "run", **SMALL}
    run = qpd.train("ppo", "CartPole-v1", **settings)
    (run.checkpoints_folder / "000000000200" / "replay").mkdir(parents=True)
    qpd.train("ppo", "CartPole-v1", **settings)
    assert not run.checkpoints_folder.exists()


@pytest.mark.parametrize("damage", ["header", "lost", "cut"])
def test_a_damaged_list_of_episodes_is_told_and_the_training_goes_on(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = training_overrides(TRAININGS["ppo"][2])
    settings: dict[str, Any] = {"overrides": overrides, "output": tmp_path / "run", **SMALL}
    with pytest.raises(KeyboardInterrupt):
        qpd.train("ppo", "CartPole-v1", progress=Interrupts(250), **settings)
    file = tmp_path / "run" / "0.monitor.csv"
    before = file.read_bytes()
    changed = {"header": b"#{" + before[2:].replace(b'"', b"'"), "lost": b"", "cut": before[:-3]}
    file.write_bytes(changed[damage])
    if damage == "header":
        (tmp_path / "run" / "metrics.csv").write_text("")
    run = qpd.train("ppo", "CartPole-v1", progress=True, **settings)
    assert run.phase.state == "done" and "0.monitor.csv: was cut off" in capsys.readouterr().err
    lines = file.read_text().splitlines()
    assert json.loads(lines[0][1:])["unit"] == "agent steps" and lines[1] == "r,l,t"
    assert all(line.count(",") == 2 for line in lines[1:]) and len(lines) > 2


def test_a_recipe_of_other_words_goes_on_and_stays_readable(tmp_path: Path) -> None:
    """Keys in another order, and a recipe from before a key was there: the file is not touched."""
    folder = tmp_path / "run"
    settings: dict[str, Any] = {"output": folder, **SMALL}
    first = training_overrides({"n_steps": 16, "n_envs": 2, "batch_size": 16})
    with pytest.raises(KeyboardInterrupt):
        qpd.train("ppo", "CartPole-v1", overrides=first, progress=Interrupts(150), **settings)
    file, manifest = folder / "recipe.yaml", folder / "manifest.json"
    older = file.read_text().replace("  compile: auto\n", "")
    assert older != file.read_text()
    file.write_text(older)
    found = {**unsealed(json.loads(manifest.read_text())), "recipe_crc32": crc32_of(older.encode())}
    manifest.write_text(json.dumps(sealed(found)))
    other = training_overrides({"batch_size": 16, "n_envs": 2, "n_steps": 16})
    for _ in range(2):
        run = qpd.train("ppo", "CartPole-v1", overrides=other, **settings)
        assert run.phase.state == "done" and file.read_text() == older
        assert TrainingRun.open(folder).recipe.train.hyperparameters["n_steps"] == 16
    file.write_text("name: edited\n")
    with pytest.raises(qpd.UserError, match="is damaged or was edited"):
        TrainingRun.open(folder)


def test_an_earlier_checkpoint_that_was_kept_can_be_gone_on_from(tmp_path: Path) -> None:
    overrides = training_overrides(TRAININGS["dqn"][2], keep_checkpoints=True)
    settings: dict[str, Any] = {"overrides": overrides, "output": tmp_path / "run", **SMALL}
    with pytest.raises(KeyboardInterrupt):
        qpd.train("dqn", "CartPole-v1", progress=Interrupts(280), **settings)
    *earlier, newest = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert earlier
    (newest / "agent.zip").write_bytes(b"no zip")
    with pytest.raises(qpd.UserError, match="delete that folder to go on from an earlier one"):
        qpd.train("dqn", "CartPole-v1", **settings)
    shutil.rmtree(newest)
    run = qpd.train("dqn", "CartPole-v1", **settings)
    assert run.phase.state == "done" and run.phase.refilled_at == (int(earlier[-1].name),)


def test_the_only_checkpoint_is_no_reason_to_speak_of_earlier_ones(tmp_path: Path) -> None:
    overrides = training_overrides(TRAININGS["ppo"][2])
    settings: dict[str, Any] = {"overrides": overrides, "output": tmp_path / "run", **SMALL}
    with pytest.raises(KeyboardInterrupt):
        qpd.train("ppo", "CartPole-v1", progress=Interrupts(250), **settings)
    (only,) = (tmp_path / "run" / "checkpoints").iterdir()
    (only / "agent.zip").write_bytes(b"no zip")
    with pytest.raises(qpd.UserError, match="; delete the run directory to begin anew"):
        qpd.train("ppo", "CartPole-v1", **settings)


def test_noise_that_nothing_would_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(qpd.UserError, match="noise_std=0.5: there is no noise to have it; set noi"):
        qpd.train("sac", "Pendulum-v1", overrides={"noise_std": 0.5}, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()
