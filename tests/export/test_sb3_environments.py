"""Exported SB3 agents in environments with wrappers, stacks, and spaces that are no flat Box."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import DQN

from benchmarks.random_students import random_student
from qpd.actions import ActionSpace, Box, Discrete, MultiDiscrete
from qpd.environments.observation import ShownObservations
from qpd.environments.source import EnvironmentSource, wrappers_of
from qpd.export.bundle import ExportError, ExportSource, golden_vectors, load_export_source
from qpd.export.environment_code import environment_code
from qpd.export.runtime_files import bundle_text
from qpd.export.sb3_zip import export_sb3
from qpd.integer.integer_student import IntegerEngine
from qpd.students import StudentArchitecture
from tests.environments import custom_environments
from tests.phases import own_environments

TIME = "sb3_contrib.common.wrappers.TimeFeatureWrapper"
TORQUE = Box((-2.0,), (2.0,), shape=(1,))
ARM = Box((-1.0, 0.0, -2.0, 1.0), (3.0, 3.0, 3.0, 3.0), shape=(2, 2))
FINE = Box((-0.1, -0.1), (0.1, 0.1), shape=(2,))
RUNS = Path(__file__).resolve().parents[2] / "runs-reference"
OWN, CUSTOM = own_environments.__name__, custom_environments.__name__
# what is played -> features of the student, its actions, the shape of an observation
CASES: dict[str, tuple[EnvironmentSource, int, ActionSpace, Any]] = {
    "wrapped": (EnvironmentSource("Pendulum-v1", {"g": 5.0}, wrappers_of([TIME])), 4, TORQUE, (4,)),
    "stacked": (EnvironmentSource("Pendulum-v1", {}, (), 3), 9, TORQUE, (9,)),
    "one-hot": (EnvironmentSource("FrozenLake-v1"), 16, Discrete(4), ()),
    "dict": (EnvironmentSource(f"{OWN}:Keys-v0"), 11, MultiDiscrete((2, 3)), None),
    "dict of an image and vectors": (
        EnvironmentSource(f"{OWN}:Camera-v0"),
        5765,
        Discrete(2),
        None,
    ),
    "dict of keys in its own order": (EnvironmentSource(f"{OWN}:Wind-v0"), 5, Discrete(2), None),
    "dict of images": (EnvironmentSource(f"{OWN}:Stereo-v0"), 7680, Discrete(2), None),
    "float64 torques": (EnvironmentSource(f"{CUSTOM}:Fine-v0"), 3, FINE, (3,)),
    "square": (EnvironmentSource(f"{CUSTOM}:Arm-v0"), 4, ARM, (2, 2)),
}


@pytest.fixture(autouse=True)
def allow_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QPD_IMPORT", f"{OWN},{CUSTOM}")


def exported(name: str, folder: Path) -> tuple[ExportSource, Path]:
    source, features, actions, _ = CASES[name]
    architecture = StudentArchitecture((features,), actions.num_outputs, (), (12,))
    if name == "dict of an image and vectors":
        architecture = StudentArchitecture((features,), 2, (4, 4, 4), (8,), image_shape=(3, 40, 48))
    if name == "dict of images":
        architecture = StudentArchitecture((4, 40, 48), 2, (4, 4, 4), (8,))
    student = random_student(architecture, actions=actions)
    about = {"env_id": source.env_id, "teacher": {"algo": "ppo"}, "environment": source.to_json()}
    made = ExportSource(student, about, name)
    for file, content in export_sb3(made, golden_vectors(student)).items():
        (folder / file).write_bytes(content)
    return made, folder


@pytest.mark.filterwarnings("ignore:.*not within the observation space")  # Countdown's own
@pytest.mark.parametrize("name", CASES)
def test_the_agent_acts_in_its_environment_as_the_readme_makes_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = exported(name, tmp_path)
    monkeypatch.chdir(folder)
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    code = code.replace("print(evaluate", "#")  # a game of Pendulum takes a second; steps do
    said, names = io.StringIO(), dict[str, Any]()
    with redirect_stdout(said):
        exec(code, names)  # the README's own words
    env, model = names["env"], names["model"]
    shape = CASES[name][3]
    assert shape is None or env.observation_space.shape == shape
    model.set_env(env)  # SB3 compares the spaces
    vector = model.get_env()
    seen, engine = vector.reset(), IntegerEngine(source.student)
    rule = engine.actions.rule("greedy", on_atari=False, epsilon=0.0, sharpness=1.0)
    shown = ShownObservations(vector.observation_space, name)
    for _ in range(20):
        actions, _ = model.predict(seen, deterministic=True)
        row = np.zeros((1, *shown.shape), shown.dtype)
        first = {key: part[0] for key, part in seen.items()} if "dict" in name else seen[0]
        shown.push(first, row[0])
        wanted = engine.actions.act(engine(row), rule, np.random.default_rng(0))
        # SB3 clips to bounds of float64 that float32 does not have.
        np.testing.assert_allclose(actions, wanted, rtol=1e-7 if "float64" in name else 0)
        seen, *_ = vector.step(actions)


@pytest.mark.parametrize("name", ["stacked", "one-hot", *(n for n in CASES if "dict" in n)])
def test_its_golden_vectors_are_observations_of_its_space(name: str, tmp_path: Path) -> None:
    _, folder = exported(name, tmp_path)
    done = subprocess.run(
        [sys.executable, "selftest.py"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    count = 16 if "image" in name else 256
    said = f"{count} with the same action" in done.stdout
    assert (done.returncode, said) == (0, True), done.stderr
    with np.load(folder / "golden.npz") as file:
        golden = dict(file)
    if name == "one-hot":
        assert golden["observations"].shape == (256,) and golden["observations"].dtype.kind == "i"
    if name == "dict":
        assert "observations" not in golden and "observations.b" in golden


def test_an_environment_that_cannot_be_made_leaves_a_flat_box(tmp_path: Path) -> None:
    architecture = StudentArchitecture((5,), 2, (), (8,))
    student = random_student(architecture, actions=Discrete(2))
    source = ExportSource(student, {"env_id": "nowhere:Gone-v0", "algo": "dqn"}, "gone")
    files = export_sb3(source, golden_vectors(student))
    model = DQN.load(io.BytesIO(files["student.zip"]), device="cpu")
    assert model.observation_space == gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)


def test_a_dict_that_cannot_be_known_is_refused() -> None:
    """A flat Box in its place could not be played in the environment."""
    architecture = StudentArchitecture((5,), 2, (), (8,))
    student = random_student(architecture, actions=Discrete(2))
    about = {"env_id": "nowhere:Gone-v0", "algo": "ppo", "features": [["arm", 2], ["wind", 3]]}
    source = ExportSource(student, about, "gone")
    with pytest.raises(ExportError, match="gone: its observations are a Dict, .* nowhere:Gone-v0"):
        export_sb3(source, golden_vectors(student))


def test_whole_numbers_that_cannot_be_known_are_refused() -> None:
    architecture = StudentArchitecture((7,), 2, (), (8,))
    student = random_student(architecture, actions=Discrete(2))
    about = {
        "env_id": "nowhere:Gone-v0",
        "algo": "ppo",
        "feature_forms": ["2 one-hot numbers, 3x4"],
    }
    source = ExportSource(student, about, "gone")
    with pytest.raises(ExportError, match="gone: its observations are no flat vector, .* nowhere:"):
        export_sb3(source, golden_vectors(student))


def test_the_code_names_what_can_be_imported_and_gives_tuples() -> None:
    told = [
        {"gymnasium.wrappers.ResizeObservation": {"shape": [36, 40]}},
        {"utils.wrappers.TimeFeatureWrapper": {"test_mode": True}},
    ]
    source = EnvironmentSource("dm_control/cartpole-swingup-v0", {}, wrappers_of(told))
    code = environment_code(source)
    assert code["environment_imports"].splitlines() == [
        "import shimmy  # registers dm_control's environments",
        "from gymnasium.wrappers import ResizeObservation",
        "from sb3_contrib.common.wrappers import TimeFeatureWrapper",
    ]
    assert "ResizeObservation(env, shape=(36, 40))" in code["make_environment"]
    assert environment_code(EnvironmentSource("PongNoFrameskip-v4"))["atari_kwargs"] == ""


def test_ales_own_ids_play_without_sticky_actions_and_skip_frames_once(tmp_path: Path) -> None:
    made = load_export_source(RUNS / "breakout-ppo-xxs")
    about = {**made.about, "env_id": "ALE/Breakout-v5"}
    files = export_sb3(replace(made, about=about), golden_vectors(made.student, n=2))
    (code,) = re.findall(r"```python\n(.*?)```", files["README.md"].decode(), re.DOTALL)
    (tmp_path / "student.zip").write_bytes(files["student.zip"])
    names = dict[str, Any]()
    with contextlib.chdir(tmp_path):
        exec(code.replace("print(evaluate", "#"), names)
    spec = names["env"].envs[0].unwrapped.spec.kwargs
    assert (spec["frameskip"], spec["repeat_action_probability"]) == (1, 0.0)


def test_without_stable_baselines3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    made = load_export_source(RUNS / "classic-ppo-cartpole")
    with pytest.raises(ExportError, match="sb3 export needs stable_baselines3: pip install"):
        export_sb3(made, golden_vectors(made.student, n=2))


def test_code_that_readers_run_is_made_of_literals() -> None:
    hostile = 'ALE/Pong-v5"); print("injected") #'
    fields = environment_code(EnvironmentSource(hostile))
    assert ast.literal_eval(fields["atari_env"]) == hostile
    others = dict.fromkeys(("student", "env_id", "algo", "equal_outputs", "sampling"), "")
    page = bundle_text("sb3_atari.md", others | fields).decode()
    assert f"make_atari_env({fields['atari_env']}, " in page
    # QPD's own environments are registered where they are imported.
    fields = environment_code(EnvironmentSource("qpd/Navigation-v0"))
    done = subprocess.run(
        [sys.executable, "-c", f"import gymnasium\nfrom stable_baselines3.common.monitor import "
         f"Monitor\n{fields['environment_imports']}\n{fields['make_environment']}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
