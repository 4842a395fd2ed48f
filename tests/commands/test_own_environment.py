"""`--env` and its companions, for an agent whose files name no environment, or one of a module."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import qpd
from qpd.analysis.report.blocks import Code
from qpd.analysis.report.inputs import read_inputs
from qpd.analysis.report.usage import usage_section
from qpd.cli import app
from qpd.environments import registry
from tests.command_line import call
from tests.environments.custom_environments import MODULE, Countdown, Doubled

pytestmark = [
    pytest.mark.usefixtures("in_an_empty_folder"),
    pytest.mark.filterwarnings("default"),  # the zoo's own dependencies warn
]
COUNTDOWN, DOUBLED = f"{MODULE}:Countdown-v0", f"{MODULE}.Doubled"
ENVIRONMENT = ("--env", COUNTDOWN, "--env-kwargs", "scale:2.5", "--wrapper", DOUBLED)
TINY = [
    "environment.num_envs=4", "replay.capacity=200", "distill.epochs=1", "finetune.epochs=1",
    "evaluation.episodes=2", "evaluation.validation_episodes=2", "save.tensorboard=false",
]  # fmt: skip
SETTINGS = [word for line in TINY for word in ("--set", line)]


@pytest.fixture(autouse=True)
def nothing_named_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget after each test the modules that its user named."""
    monkeypatch.setenv("QPD_IMPORT", "")
    registry._spec.cache_clear()


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An agent that is called what it pleases."""
    path = tmp_path_factory.mktemp("agent") / "mine.zip"
    env = VecNormalize(DummyVecEnv([lambda: Doubled(Countdown())]), norm_reward=False)
    PPO("MlpPolicy", env, n_steps=64, batch_size=64, device="cpu", seed=0).learn(64).save(path)
    env.save(str(path.parent / "statistics.pkl"))
    return path


@pytest.mark.parametrize("command", ["run", "distill"])
def test_a_student_is_made_where_the_user_says(
    command: str, agent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (command, "--teacher", agent, *SETTINGS, "-o", "made", "--quiet")
    code, _, err = call(capsys, *asked)
    assert code == 2 and "give it with --env (teacher.env) [Q306]" in err
    code, _, err = call(capsys, *asked, *ENVIRONMENT)
    assert code == 0, err
    recipe = yaml.safe_load(Path("made/recipe.yaml").read_text())
    assert recipe["teacher"]["env"] == COUNTDOWN
    environment = recipe["environment"]
    assert (environment["kwargs"], environment["wrappers"]) == ({"scale": 2.5}, [DOUBLED])
    code, _, err = call(capsys, command, "made/recipe.yaml", "-o", "made", "--quiet")
    assert code == 0, err


def test_a_report_names_the_module_before_the_command_that_plays(
    agent: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = call(
        capsys, "run", "--teacher", agent, *SETTINGS, *ENVIRONMENT, "-o", "made", "--quiet"
    )
    assert code == 0, err
    inputs = read_inputs(Path("made"), [], None, 0, lambda text: None)
    first, play = (block for block in usage_section(inputs).blocks[:2] if isinstance(block, Code))
    monkeypatch.setenv("QPD_IMPORT", "")  # another shell
    assert call(capsys, *shlex.split(play.code)[1:])[0] == 2
    variable, _, module = shlex.split(first.code)[1].partition("=")
    monkeypatch.setenv(variable, module)
    code, _, err = call(capsys, *shlex.split(play.code)[1:])
    assert code == 0, err


def test_agents_are_quantized_where_the_user_says(
    agent: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    statistics = agent.parent / "statistics.pkl"
    asked = ("quantize", agent, "--bits", "8", "--activations", 8, "--episodes", 2, "-o", "suite")
    code, _, err = call(capsys, *asked)
    assert code == 2 and "give it with --env (teacher.env)" in err
    here = (*ENVIRONMENT, "--vecnormalize", statistics)
    code, _, err = call(capsys, *asked, *here)
    assert code == 0, err
    code, _, err = call(capsys, *asked, *here)  # nothing is left to be played
    assert code == 0, err
    code, _, err = call(capsys, *asked, "--env", COUNTDOWN, "--wrapper", DOUBLED)
    assert code == 2 and "was made with other settings" in err
    (run,) = Path("suite").glob("*/W8A8*/")
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    assert recipe["teacher"]["env"] == COUNTDOWN
    assert recipe["teacher"]["vecnormalize"] == str(statistics)
    # What its recipe holds is enough to play the agent itself again.
    monkeypatch.setenv("QPD_IMPORT", MODULE)
    played = [qpd.evaluate(run, policy=policy).returns for policy in ("teacher", "ptq")]
    assert len(played[0]) == 2 and played[0] == pytest.approx(played[1])  # rewards are the walk's
    code, out, err = call(capsys, "export", run, "--format", "c", "-o", "core")
    assert code == 0, err
    assert "in 16 games that the agent itself played" in Path("core/README.md").read_text()
    code, _, err = call(capsys, "quantize", run, "--env", COUNTDOWN)
    assert code == 2 and "is a run, and --env is for agents" in err


def test_a_suite_of_before_is_still_the_same_suite(
    teacher_zip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("quantize", teacher_zip, "--bits", "8", "--episodes", 1, "-o", "suite")
    assert call(capsys, *asked)[0] == 0
    assert "settings" not in json.loads(Path("suite/suite.json").read_text())
    code, _, err = call(capsys, *asked, "--frame-stack", 1)
    assert code == 2 and "was made with other settings" in err
    code, _, err = call(capsys, *(word if word != "8" else "8,6" for word in asked))
    assert code == 2 and "other precisions: without W6-affine-column; choose" in err
    code, out, err = call(capsys, "analyze", "bits", "suite")
    assert code == 0 and "no sweet spot of fewer than three numbers of bits: ppo-CartPole" in out


def test_the_command_that_a_training_prints_works_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("train", "ppo", COUNTDOWN, "--timesteps", 128, "-o", "my agent")
    words += ("--set", "n_steps=64", "--set", "batch_size=64")
    words += ("--wrapper", f"{{{DOUBLED}: {{plus: 0.5}}}}", "--env-kwargs", "scale:2.5")
    code, out, err = call(capsys, *words)
    assert code == 0, err
    printed = shlex.split(out.splitlines()[-1].partition(": ")[2])
    assert printed[:4] == ["qpd", "run", "--teacher", "my agent"]
    assert "--env-kwargs" not in printed  # numbers of the agent's files are applied without a word
    code, _, err = call(capsys, *printed[1:], *SETTINGS, "-o", "student", "--quiet")
    assert code == 0, err
    environment = yaml.safe_load(Path("student/recipe.yaml").read_text())["environment"]
    assert environment["wrappers"] == [{DOUBLED: {"plus": 0.5}}]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "PongNoFrameskip-v4"])  # the zoo wraps Pong
def test_where_nothing_is_needed_nothing_is_printed(
    env_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("train", "ppo", env_id, "--timesteps", 32, "-o", "agent")
    words += ("--set", "n_envs=1", "--set", "n_steps=32", "--set", "batch_size=32")
    code, out, err = call(capsys, *words)
    assert code == 0, err
    assert out.splitlines()[-1] == "make a student of it: qpd run --teacher agent"


def test_a_card_is_played_where_the_user_says(
    agent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path("ppo/Countdown-v0_1/Countdown-v0")
    folder.mkdir(parents=True)
    zip_file = folder.parent / "Countdown-v0.zip"
    zip_file.write_bytes(agent.read_bytes())
    (folder / "args.yml").write_text(yaml.safe_dump({"algo": "ppo", "env": COUNTDOWN}))
    asked = ("teacher", "card", zip_file, "-o", "card", "--episodes", 2)
    code, _, err = call(capsys, *asked)
    assert code == 2 and f"give --env {COUNTDOWN}" in err  # files may come from anyone
    code, _, err = call(capsys, *asked, *ENVIRONMENT)
    assert code == 0, err
    ours = json.loads(Path("card/evaluation.json").read_text())["returns"]
    made = qpd.evaluate(agent, env=lambda: Doubled(Countdown(2.5)), episodes=2)
    assert ours == pytest.approx(made.returns.tolist())


def test_analyses_play_where_the_user_says(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("outputs", agent, "--states", 50), ("weights", agent)):
        code, _, err = call(capsys, "analyze", *words, "-o", "figures")
        assert code == 2 and "give it with --env" in err
        code, _, err = call(capsys, "analyze", *words, "-o", "figures", *ENVIRONMENT)
        assert code == 0, err


def test_every_command_that_asks_for_an_environment_takes_all_that_is_said_of_one() -> None:
    import typer

    takes = {}
    waiting = [("qpd", typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop()
        waiting += [
            (f"{name} {each}", one) for each, one in getattr(command, "commands", {}).items()
        ]
        takes[name] = {word for each in command.params for word in each.opts}
    told = {"--env", "--env-kwargs", "--wrapper", "--frame-stack"}
    having = {name for name, options in takes.items() if options & told}
    assert all(told <= takes[name] for name in having - {"qpd train"})  # its ENV is an argument
    assert having == {
        "qpd run", "qpd distill", "qpd quantize", "qpd evaluate", "qpd train", "qpd teacher info",
        "qpd teacher card", "qpd fpga", "qpd analyze outputs", "qpd analyze weights",
        "qpd analyze exploration",
    }  # fmt: skip


def test_what_an_environment_prints_is_not_in_the_json(teacher_zip: Path) -> None:
    chatty = ("--wrapper", f"{MODULE}.Chatty", "--episodes", "2", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "qpd.cli", "evaluate", str(teacher_zip), *chatty],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["return"]["episodes"] == 2
    assert "a new game" in done.stderr and "in C" in done.stderr
