"""The README and headers of a C export: what they say of the student, and that it compiles."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.random_students import random_student
from qpd.environments.feature_names import NAMES, feature_names
from qpd.environments.registry import environment_spec
from qpd.export.bundle import ExportSource, golden_vectors, load_export_source
from qpd.export.c.arduino import export_arduino
from qpd.export.c.binary import export_bin
from qpd.export.c.code import export_c
from qpd.integer.integer_student import IntegerEngine
from qpd.students import StudentArchitecture

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "runs-reference"
# Algorithm, kind of observation: all four ways to write the README.
STUDENTS = ["classic-ppo-cartpole", "classic-dqn-lunarlander", "breakout-ppo-xxs", "breakout-dqn-s"]
# What a reader of the README has to bring: it only names these.
BROUGHT = """
static uint8_t observation[QPD_INPUT_BYTES];
static float values[QPD_INPUT_BYTES];
static int32_t counts[QPD_INPUT_BYTES], low[QPD_INPUT_BYTES], high[QPD_INPUT_BYTES];
static uint32_t random_state = 1;
"""


def exported(run: str, layout: str = "c") -> dict[str, str]:
    """The text of every file by its name; `layout` is c or arduino."""
    source = load_export_source(RUNS / run)
    export = {"c": export_c, "arduino": export_arduino}[layout]
    files = export(source, golden_vectors(source.student))
    return {name: content.decode() for name, content in files.items()}


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("run", STUDENTS)
def test_a_program_of_all_that_the_readme_shows_links_with_its_cc_line(
    run: str, tmp_path: Path
) -> None:
    files = exported(run)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    shown = [line[4:] for line in files["README.md"].splitlines() if line.startswith("    ")]
    (command,) = [line.split() for line in shown if line.startswith("cc ")]
    statements = [line for line in shown if not line.startswith(("cc ", "make ", "#include"))]
    assert any("qpd_act(" in line for line in statements)
    (tmp_path / "main.c").write_text(
        '#include "qpd.h"\n' + BROUGHT + "int main(void)\n{\n" + "\n".join(statements) + "\n"
        "    return action < 0 || action >= QPD_ACTIONS;\n}\n"
    )
    # -O0: the same files, compiled in a fraction of the time.
    subprocess.run([*command, "-O0", "-w"], cwd=tmp_path, check=True)
    subprocess.run([tmp_path / command[command.index("-o") + 1]], check=True)


@pytest.mark.skipif(shutil.which("objcopy") is None, reason="no binutils")
def test_two_students_in_one_program_as_the_documentation_has_it(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "c-export.md").read_text()
    guide = guide[guide.index("## Two students in one program") :]
    left, build = (re.search(rf"```{kind}\n(.*?)```", guide, re.DOTALL) for kind in ("c", "bash"))
    assert left is not None and build is not None
    seen = {"left": np.zeros(4, np.float32), "right": np.zeros(8, np.float32)}
    wanted = []
    for side, run in zip(seen, ("classic-ppo-cartpole", "classic-ppo-lunarlander"), strict=True):
        (tmp_path / side).mkdir()
        for name, text in exported(run).items():
            (tmp_path / side / name).write_text(text)
        (tmp_path / f"{side}.c").write_text(left[1].replace("left", side))
        # The first action that is not the other's first, so that one student is not both.
        engine = IntegerEngine(load_export_source(RUNS / run).student)
        rng = np.random.default_rng(0)
        action = -1
        while action != len(wanted):
            seen[side] = rng.normal(size=seen[side].shape).astype(np.float32)
            action = int(engine(seen[side][None]).argmax())
        wanted.append(action)
    calls = [
        f"{side}_act((float[]){{{', '.join(f'{x:.9g}f' for x in values)}}})"
        for side, values in seen.items()
    ]
    (tmp_path / "main.c").write_text(
        "int left_act(const float *);\nint right_act(const float *);\n"
        f"int main(void) {{ return 10 * {calls[0]} + {calls[1]}; }}\n"
    )
    subprocess.run(["sh", "-ec", build[1]], cwd=tmp_path, check=True)
    ran = subprocess.run([tmp_path / "a.out"], check=False)
    assert ran.returncode == 10 * wanted[0] + wanted[1] == 1


@pytest.mark.parametrize("layout", ["c", "arduino"])
@pytest.mark.parametrize("run", STUDENTS)
def test_only_students_of_policies_are_told_to_sample(run: str, layout: str) -> None:
    readme = exported(run, layout)["README.md"]
    assert ("qpd_sample" in readme) == ("-ppo-" in run)
    epsilon = run == "breakout-dqn-s"  # elsewhere the argmax alone, as the zoo does
    assert ("probability 0.01" in readme) == epsilon
    assert ("largest logit" in readme) == ("-dqn-" in run)


@pytest.mark.parametrize("run", STUDENTS)
def test_the_acting_hint_of_other_bundles_speaks_of_atari_students_alone(run: str) -> None:
    source = load_export_source(RUNS / run)
    readme = export_bin(source, golden_vectors(source.student))["README.md"].decode()
    assert "on Atari" not in readme
    assert ("probability 0.01" in readme) == (run == "breakout-dqn-s")


@pytest.mark.parametrize(
    ("run", "agent", "inputs", "actions"),
    [
        ("classic-ppo-cartpole", "PPO on CartPole-v1", "4 features", "2 actions"),
        ("classic-qrdqn-lunarlander", "QR-DQN on LunarLander-v3", "8 features", "4 actions"),
        (
            "breakout-ppo-xxs",
            "PPO on BreakoutNoFrameskip-v4",
            "4 frames of 84x84",
            "4 actions (0 NOOP, 1 FIRE, 2 RIGHT, 3 LEFT)",
        ),
    ],
)
def test_readme_and_headers_name_environment_algorithm_inputs_and_actions(
    run: str, agent: str, inputs: str, actions: str
) -> None:
    for layout, folder in (("c", ""), ("arduino", "src/")):
        files = exported(run, layout)
        assert agent in files["README.md"].splitlines()[0]
        for name in ("README.md", f"{folder}qpd_student.h"):
            text = re.sub(r"\s+(\* )?", " ", files[name])
            assert agent in text and inputs in text and actions in text
    assert files["README.md"].startswith(f"# {run}: {agent}, an Arduino library")
    (sentence,) = re.findall(r"^sentence=(.*)$", files["library.properties"], re.MULTILINE)
    assert agent in sentence and inputs in sentence and actions.split(" (")[0] in sentence


def test_features_have_names_where_they_are_known() -> None:
    files = exported("classic-ppo-cartpole")
    assert re.search(r"^\| 2 \| pole angle, rad \| -0\.\d+ \| 0\.\d+ \|$", files["README.md"], re.M)
    assert re.search(
        r"^#define QPD_LOW_2 \S+ /\* pole angle, rad \*/$", files["qpd_student.h"], re.M
    )


def test_a_student_of_unknown_origin_is_described_by_its_sizes() -> None:
    student = random_student(StudentArchitecture((5,), 3, (), (4,)))
    # Stated by a file: neither ends the comment, nor names features of another number.
    about = {"env_id": "CartPole-v1 */ int x; /*\n"}
    for known in ({}, about, {"env_id": "CartPole-v1"}):
        files = export_c(ExportSource(student, known, "mine"), golden_vectors(student))
        header = files["qpd_student.h"].decode()
        assert "5 features, 3 actions (0 to 2)" in header and "pole" not in header
        assert [line.count("*/") for line in header.splitlines()[:2]] == [1, 1]
        assert "5 features" in files["README.md"].decode()


@pytest.mark.parametrize("family", NAMES)
def test_every_environment_with_named_features_has_as_many(family: str) -> None:
    if family == "LunarLander":
        pytest.importorskip("Box2D")
    env_id = {"CartPole": "CartPole-v1", "Acrobot": "Acrobot-v1", "MountainCar": "MountainCar-v0",
              "LunarLander": "LunarLander-v3"}[family]  # fmt: skip
    names = feature_names(env_id)
    assert names is not None and (len(names),) == environment_spec(env_id).observation_shape
    assert feature_names(f"My{env_id}") is None and feature_names(family + "Continuous-v0") is None


def stacked(shape: tuple[int, ...], **about: object) -> ExportSource:
    convolutions = (4, 4, 4) if len(shape) == 3 else ()
    student = random_student(StudentArchitecture(shape, 2, convolutions, (8,)))
    environment = {"env_id": "Mine-v0", "kwargs": {}, "wrappers": ["my.Crop"], "frame_stack": 2}
    origin = {"env_id": "Mine-v0", "algo": "ppo", "environment": environment, **about}
    return ExportSource(student, origin, "mine")


@pytest.mark.parametrize(("shape", "what"), [((2, 40, 40), "images"), ((8,), "vectors")])
def test_stacks_and_wrappers_are_told(shape: tuple[int, ...], what: str) -> None:
    source = stacked(shape)
    vectors = golden_vectors(source.student, 0, 2)
    readme = export_c(source, vectors)["README.md"].decode()
    assert f"2 {what} stacked, the oldest first, zeros before an episode's first" in readme
    assert "the observations of Mine-v0, in my.Crop." in readme
    assert "No frames are stacked" not in readme
    other = " ".join(export_bin(source, vectors)["README.md"].decode().split())
    assert "of Mine-v0, in my.Crop" in other and f"2 {what} stacked" in other
    assert "as it is" not in other


def test_observations_that_are_no_vectors_are_told() -> None:
    whole = stacked((16,), environment={}, feature_forms=["one-hot"])
    parts = stacked((6,), environment={}, features=[["arm", 2], ["mode", 4]],
                    feature_forms=["", "one-hot"])  # fmt: skip
    for source, other, ours in (
        (
            whole,
            "the observation of Mine-v0 as it is in one vector, one-hot",
            "features so: one-hot",
        ),
        (parts, "arm (2), mode (4, one-hot)", "They are arm (2), mode (4, one-hot)"),
    ):
        golden = golden_vectors(source.student, 0, 2)
        assert other in " ".join(export_bin(source, golden)["README.md"].decode().split())
        assert ours in " ".join(export_c(source, golden)["README.md"].decode().split())


def test_hidden_characters_of_a_file_are_shown() -> None:
    student = random_student(StudentArchitecture((5,), 3, (), (4,)))
    source = ExportSource(student, {"env_id": "A\x1b[2J\u202eB\n```"}, "mine")
    readme = export_bin(source, golden_vectors(student, 0, 2))["README.md"].decode()
    assert "A\\x1b[2J\\u202eB" in readme and not {"\x1b", "\u202e"} & set(readme)
    assert "\n```\n```" not in readme


def test_the_parts_of_a_dict_are_told_in_their_order() -> None:
    source = stacked((11,), features=[["joint", 7], ["mode", 4]], environment={})
    readme = export_bin(source, golden_vectors(source.student, 0, 2))["README.md"].decode()
    assert "the parts of Mine-v0, joint (7), mode (4)" in " ".join(readme.split())


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_every_public_header_links_from_cpp(tmp_path: Path) -> None:
    for name, text in exported("breakout-ppo-xxs").items():
        (tmp_path / name).write_text(text)
    (tmp_path / "main.cpp").write_text(
        '#include "qpd.h"\n#include "qpd_preprocess.h"\n'
        "static uint8_t observation[QPD_INPUT_BYTES];\n"
        "static uint8_t screen[QPD_SCREEN_HEIGHT * QPD_SCREEN_WIDTH * 3];\n"
        "int main()\n{\n    int32_t logits[QPD_ACTIONS];\n    qpd_clear(observation);\n"
        "    qpd_push_rgb(observation, screen, screen);\n"
        "    return qpd_act(observation, logits) < 0;\n}\n"
    )
    for name in ("qpd_network", "qpd_preprocess"):
        command = ["cc", "-std=c99", "-O0", "-w", "-c", f"{name}.c"]
        subprocess.run(command, cwd=tmp_path, check=True)
    objects = ["qpd_network.o", "qpd_preprocess.o"]
    subprocess.run(["c++", "main.cpp", *objects, "-o", "program"], cwd=tmp_path, check=True)
    subprocess.run([tmp_path / "program"], check=True)


@pytest.mark.parametrize(("about", "said"), [
    ({"phase": "qat"}, "in the play that the student was distilled from"),
    ({"phase": "qat", "method": "agent"}, "in 16 games that the agent itself played"),
    ({"phase": "train", "scheme": "dorefa_scaled"}, "of each feature in the agent's training"),
    ({"phase": "train", "scheme": "narrow"}, "the grid of inputs that the controller has learned"),
])  # fmt: skip
def test_ranges_are_of_the_play_that_set_them(about: dict[str, str], said: str) -> None:
    made = load_export_source(RUNS / "classic-ppo-cartpole")
    files = export_c(
        replace(made, about={**made.about, **about}), golden_vectors(made.student, n=2)
    )
    assert said in files["README.md"].decode().replace("\n", " ")
