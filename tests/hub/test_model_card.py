"""The model card: what it claims is in the run, and what it shows runs in the folder."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st

from qpd.cli import main
from qpd.hub.markdown import code, escape
from qpd.runs.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "runs-reference"
FORMATS = ("c", "onnx", "litert", "sb3", "bin")


def push(*arguments: str | Path) -> int:
    """The exit code of `qpd push`, in this process."""
    with pytest.raises(SystemExit) as stop:
        main(["push", *map(str, arguments)])
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vector student with everything."""
    for package in ("onnx", "onnxruntime", "ai_edge_litert", "stable_baselines3"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("hub") / "cartpole"
    run = REFERENCE / "classic-dqn-cartpole"
    assert push(run, "someone/cartpole", "--dry-run", "-o", folder) == 0
    return folder


@pytest.fixture(scope="module")
def breakout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An Atari student with everything, and a film."""
    folder = tmp_path_factory.mktemp("hub") / "breakout"
    run = REFERENCE / "quickstart"
    formats = "c,onnx,sb3"
    assert push(run, "me/breakout", "--dry-run", "-o", folder, "--formats", formats) == 0
    return folder


def blocks(folder: Path, language: str) -> list[str]:
    card = (folder / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", card, re.DOTALL)


# Each in a namespace of its own, as if it were alone in the process, which takes seconds to start.
RUNNER = """
import sys
for snippet in sys.argv[1:]:
    exec(compile(snippet, "snippet", "exec"), {"__name__": "__main__"})
    print(end="\\0")
"""


def run_python(snippets: list[str], folder: Path) -> list[str]:
    """Return what each snippet prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", RUNNER, *snippets],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[:-1]


def test_python_snippets_of_a_vector_student_run(cartpole: Path) -> None:
    snippets = blocks(cartpole, "python")
    assert len(snippets) == 4
    outputs = run_python(snippets, cartpole)
    assert outputs[0].strip() in ("0", "1")
    # the run's own measurement: 500 in every game, greedily
    assert "500.0" in outputs[1]
    assert re.fullmatch(r"\[[01 \n]+\]", outputs[2].strip())
    assert outputs[3] == outputs[2]  # student.bin plays the same golden vectors as ONNX


def test_python_snippets_of_an_atari_student_run(breakout: Path) -> None:
    qpd, sb3, onnx = blocks(breakout, "python")
    assert 'PPO.load("ppo-BreakoutNoFrameskip-v4.zip")' in sb3
    load_only = sb3.split("env = ")[0] + "print(model.policy.action_net.out_features)"
    action, actions, outputs = run_python([qpd, onnx, load_only], breakout)
    assert action.strip() in "0123" and outputs.strip() == "4"
    assert re.fullmatch(r"\[[0-3 \n]+\]", actions.strip())


@pytest.mark.slow
def test_a_whole_game_through_sb3(breakout: Path) -> None:
    (said,) = run_python(blocks(breakout, "python")[1:2], breakout)
    mean = re.search(r"\d+\.\d+", said)
    assert mean is not None and float(mean[0]) > 100, said  # the card's 30 games: 371 +- 56


@pytest.mark.parametrize("name", ["cartpole", "breakout"])
def test_the_c_snippet_compiles_and_runs(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path / "copy"
    shutil.copytree(request.getfixturevalue(name), folder)
    (program,) = blocks(folder, "c")
    if name == "cartpole":  # the snippet leaves it to c/README.md to fill the observation
        filled = "const float values[QPD_INPUT_BYTES] = {0};\n    "
        filled += "qpd_levels_from_floats(values, observation);\n    int32_t logits"
        program = program.replace("int32_t logits", filled)
    (folder / "main.c").write_text(program)
    (command,) = [block for block in blocks(folder, "bash") if block.startswith("cc ")]
    subprocess.run(command.strip().split() + ["-Werror", "-Wall"], cwd=folder, check=True)
    said = subprocess.run([folder / "student"], capture_output=True, text=True, check=True).stdout
    actions = {"cartpole": 2, "breakout": 4}[name]
    assert re.fullmatch(rf"action [0-{actions - 1}] of {actions}\n", said)


def test_metadata_is_what_the_hub_reads(breakout: Path) -> None:
    card = ModelCard.load(breakout / "README.md")
    assert card.data.library_name == "stable-baselines3"
    zoo = {"BreakoutNoFrameskip-v4", "deep-reinforcement-learning", "reinforcement-learning"}
    assert zoo | {"stable-baselines3", "quantization", "qpd"} <= set(card.data.tags)
    assert card.data.eval_results is not None
    (result,) = card.data.eval_results
    assert (result.task_type, result.dataset_name) == (
        "reinforcement-learning",
        "BreakoutNoFrameskip-v4",
    )
    # mean and standard deviation of the 30 games in the run's manifest
    assert (result.metric_type, result.metric_value) == ("mean_reward", "370.67 +/- 56.19")


def test_numbers_of_the_card_are_those_of_the_run(breakout: Path) -> None:
    card = (breakout / "README.md").read_text(encoding="utf-8")
    rows = {
        cells[1].strip("* "): [cell.strip("* ") for cell in cells[2:-1]]
        for cells in (line.split("|") for line in card.splitlines() if line.startswith("| "))
    }
    size = (breakout / "quantized.safetensors").stat().st_size
    assert rows["student, finetuned"] == [
        *("370.7 [349.0, 388.1]", "56.2", "30", "sampled", "35,796", "8", f"{size:,}"),
        "36,448",  # the C export's QPD_CONSTANT_BYTES
    ]
    # four bytes for each of the teacher's 1,686,693 parameters
    assert rows["teacher"] == [
        *("330.4 [289.5, 373.3]", "118.3", "30", "sampled", "1,686,693", "32", "6,746,772"),
        "6,746,772",
    ]
    assert rows["student in fp32"][-2:] == ["144,548", "143,184"]  # 4 * 35,796
    assert f"**{size:,} bytes** (36,448 of constants in the C export)" in card
    assert "its constants alone, as the C export holds them, take 36,448 bytes" in card
    # 1,686,693 / 35,796 and 6,746,772 / 37,680
    assert "47.1 times fewer parameters" in card and "179 times fewer bytes" in card
    assert "seed 0, evaluation seed 800623024" in card
    assert "65,700 emulator frames" in card
    assert "Its licence: MIT, as QPD" in card


def test_every_file_of_the_table_is_there_and_the_film_moves(breakout: Path) -> None:
    from PIL import Image

    card = (breakout / "README.md").read_text(encoding="utf-8")
    files = card.split("## Files")[1]
    named = set(re.findall(r"\| `([^`]+)` \|", files))
    present = {path.name + "/" * path.is_dir() for path in breakout.iterdir()}
    assert named == present - {"README.md"}
    with Image.open(breakout / "replay.gif") as film:
        assert film.size == (160, 210) and getattr(film, "n_frames", 1) > 100
    assert json.loads((breakout / "results.json").read_text()) == {
        "mean_reward": pytest.approx(370.6667),
        "std_reward": pytest.approx(56.1895),
        "is_deterministic": False,
        "n_eval_episodes": 30,
        "eval_datetime": None,  # this run is older than the dates in manifests
    }


def test_the_folder_is_a_run_directory_and_an_agent(cartpole: Path) -> None:
    run = RunDirectory.open(cartpole, read_only=True)
    original = RunDirectory.open(REFERENCE / "classic-dqn-cartpole", read_only=True)
    assert run.recipe == original.recipe and run.manifest.recipe_crc32
    known = {"recipe_crc32": run.manifest.recipe_crc32}  # which earlier runs do not record
    assert run.manifest == original.manifest.model_copy(update=known)
    assert (cartpole / "dqn-CartPole-v1.zip").is_file()  # as the RL Zoo names it
    assert "![The student plays" in (cartpole / "README.md").read_text()
    assert (cartpole / "replay.gif").is_file()


def hostile_run(folder: Path) -> Path:
    """A run of which every string that a file may hold tries to break out of the card."""
    shutil.copytree(REFERENCE / "classic-dqn-cartpole", folder)
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    manifest["teacher"]["source"] = "/home/me/private/`x`|<script>alert(1)</script>\n# Owned.zip"
    manifest["teacher"]["algo"] = "ppo](http://evil) <img src=x>"
    manifest["versions"]["torch"] = "1\n\n---\n# Owned <b>"
    manifest["git_commit"] = "`|# Owned"
    for evaluation in manifest["evaluations"].values():
        evaluation["acting"] = "| x |\n| y @everyone [a](javascript:b)"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    recipe["teacher"]["source"] = "/home/me/private/agent.zip"
    recipe["save"]["wandb"] = "my-secret-project"
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder


def test_strings_from_files_stay_strings(tmp_path: Path) -> None:
    folder = tmp_path / "hub"
    run = hostile_run(tmp_path / "run")
    assert push(run, "me/x", "--dry-run", "-o", folder, "--formats", "c") == 0
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert not re.search(r"^# Owned|<script|<img|<b>|\]\(http|\]\(javascript|@everyone", card, re.M)
    assert len(re.findall(r"^# ", card, re.M)) == 1
    body = card.split("---\n", 2)[2]
    header = "| | return, 95% interval |"
    table = body[body.index(header) :].split("\n\n")[0]
    assert {line.count("|") for line in table.splitlines()} == {10}
    published = "".join(path.read_text() for path in folder.iterdir() if path.suffix != "" and
                        path.suffix in (".md", ".json", ".yaml"))  # fmt: skip
    assert "/home/me" not in published and "my-secret-project" not in published


def test_convolutions_given_by_numbers_are_in_the_title(tmp_path: Path) -> None:
    run = REFERENCE / "breakout-ppo-2kb"
    words = ("me/x", "--dry-run", "-o", tmp_path / "hub", "--formats", "c", "--no-video")
    assert push(run, *words) == 0
    card = ModelCard.load(tmp_path / "hub" / "README.md")
    # conv_channels: [4, 8, 8, 8] and hidden: [8] in the run's recipe
    assert "# 4-bit 4-8-8-8+8 student of PPO on BreakoutNoFrameskip-v4\n" in card.text
    assert card.data.model_name == "QPD 4-8-8-8+8 student of PPO"


@pytest.mark.slow
def test_an_agent_of_sb3_contrib_is_called_that(tmp_path: Path) -> None:
    run = REFERENCE / "classic-qrdqn-lunarlander"
    assert push(run, "me/x", "--dry-run", "-o", tmp_path / "hub", "--formats", "c,sb3") == 0
    card = ModelCard.load(tmp_path / "hub" / "README.md")
    assert "student of QR-DQN on LunarLander-v3\n" in card.text
    assert "imitates an agent of sb3-contrib (QR-DQN) on `LunarLander-v3`" in card.text
    assert ", QR-DQN of sb3-contrib, " in card.text and "QRDQN" not in card.text
    assert "sb3-contrib" in card.data.tags
    # Its zip is a DQN agent, which Stable-Baselines3 itself loads.
    assert card.data.library_name == "stable-baselines3" and "import DQN" in card.text


@given(st.text())
def test_escaped_text_is_one_line_without_markup(text: str) -> None:
    shown = escape(text)
    assert "\n" not in shown and "<" not in shown and "|" not in shown
    assert not re.search(r"(?<!\\)[`*_\[\]]", shown.replace("\\\\", ""))
    span = code(text)
    assert span.count("`") == 2 and "\n" not in span and "|" not in span
