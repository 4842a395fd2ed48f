"""Suites: paired games, resumed to the same bytes; agents that fail beside those that do not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO

import qpd
from qpd.agents import agent_games, suite
from qpd.agents.cells import action_changes, quantize_agent
from qpd.agents.errors import AgentQuantizationError
from qpd.agents.precision import Precision, precisions_of
from qpd.agents.precision_table import PrecisionRow, PrecisionTable
from qpd.agents.quantized_agent import (
    activation_ranges,
    agent_policy,
    input_range,
    quantized_actor,
)
from qpd.agents.results import AgentResult, Played, read_cell
from qpd.agents.suite import Suite, run_suite
from qpd.analysis.runs.run_table import run_summary, summary_caption
from qpd.environments.policy import random_policy
from qpd.environments.source import EnvironmentSource
from qpd.quantization.weight_quantizer import WeightQuantizer
from qpd.runs.played_environment import EnvironmentWish
from qpd.runs.run_directory import RunDirectory
from qpd.runs.target import load_target
from qpd.student_files.predictor import load_student_policy
from qpd.student_files.quantized import stored_constant_bytes
from qpd.teachers import Teacher, load_teacher
from qpd.teachers.networks.actor import actor_of
from tests.command_line import call
from tests.tiny_run import Follower, Interrupt

ASKED = precisions_of(["fp16", 8], 8)


def test_numbers_that_are_none_are_refused_and_one_word_is_a_word() -> None:
    for wrong in (2.5, "2", True):
        with pytest.raises(AgentQuantizationError, match=f"--episodes {wrong}: must be a whole"):
            Suite(("agent",), ASKED, wrong)  # type: ignore[arg-type]
    with pytest.raises(AgentQuantizationError, match="--activations 8: expected 2 to 8"):
        precisions_of([8], "8")  # type: ignore[arg-type]
    assert precisions_of([8], None, "affine", "tensor") == precisions_of(
        [8], None, ["affine"], ["tensor"]
    )


@pytest.fixture(scope="module")
def dqn(dqn_zip: Path) -> Teacher:
    return load_teacher(dqn_zip)


@pytest.fixture(autouse=True)
def blocks_of_four(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that ten games are three blocks."""
    monkeypatch.setattr(agent_games, "GAMES_AT_ONCE", 4)
    monkeypatch.setattr(agent_games, "CALIBRATION_GAMES", 4)
    return


def played(asked: Suite, folder: Path) -> list[AgentResult]:
    return run_suite(asked, folder, Follower())


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def whole(dqn_zip: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Suite, Path]:
    asked = Suite((str(dqn_zip),), ASKED, episodes=10, seed=5)
    folder = tmp_path_factory.mktemp("suite") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_games, "GAMES_AT_ONCE", 4)
        patch.setattr(agent_games, "CALIBRATION_GAMES", 4)
        played(asked, folder)
    return asked, folder


@pytest.mark.parametrize("killed_after", [1, 2, 5, 9, 11])
def test_a_killed_suite_resumes_to_the_same_bytes(
    whole: tuple[Suite, Path], killed_after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, expected = whole
    written = 0
    write = suite.write_cell

    def dies(*arguments: object) -> None:
        nonlocal written
        write(*arguments)  # type: ignore[arg-type]
        written += 1
        if written == killed_after:
            raise Interrupt

    folder = tmp_path / "whole"
    with monkeypatch.context() as patch:
        patch.setattr(suite, "write_cell", dies)
        with pytest.raises(Interrupt):
            played(asked, folder)
    played(asked, folder)
    assert content(folder) == content(expected)


def test_a_run_directory_that_was_not_finished_is(
    whole: tuple[Suite, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, expected = whole

    def dies(*arguments: object) -> None:
        raise Interrupt

    folder = tmp_path / "whole"
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "record_evaluation", dies)
        with pytest.raises(Interrupt):
            played(asked, folder)
    played(asked, folder)
    assert content(folder) == content(expected)


def test_nothing_is_played_twice(
    whole: tuple[Suite, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_games, "evaluate", None)
    (result,) = played(*whole)
    assert [len(cell.played.returns) for cell in result.cells] == [10, 10, 10]


def test_games_start_alike_whoever_plays(dqn: Teacher) -> None:
    """The first states of ten games, of policies whose games last differently long."""
    from qpd.environments.source import EnvironmentSource

    starts: list[list[bytes]] = []
    for weights in (8, 2):
        actor = quantized_actor(dqn, WeightQuantizer("affine", weights, "tensor"))
        policy, seen = agent_policy(dqn, actor), set[bytes]()

        def remembers(observations: np.ndarray, policy=policy, seen=seen) -> np.ndarray:
            # CartPole begins within 0.05 of 0 in every number.
            seen |= {row.tobytes() for row in observations if np.abs(row).max() < 0.05}
            return policy(observations)

        games = agent_games.AgentGames(dqn, EnvironmentSource("CartPole-v1"), 10, 1)
        games.play(
            type("P", (), {"actions": dqn.actions, "__call__": lambda s, o: remembers(o)})(),
            Played(), lambda known: None, Follower(), "",
        )  # fmt: skip
        games.close()
        starts.append(sorted(seen))
    assert len(set(starts[0]) & set(starts[1])) >= 10


def test_random_games_go_on_as_if_they_had_not_stopped(tmp_path: Path) -> None:
    agent = tmp_path / "ppo-Pendulum-v1.zip"
    PPO("MlpPolicy", "Pendulum-v1", n_steps=8, batch_size=8, device="cpu").save(agent)
    teacher, kept = load_teacher(agent), list[Played]()
    games = agent_games.AgentGames(teacher, EnvironmentSource("Pendulum-v1"), 10, 0)
    whole = games.play_randomly(Played(), kept.append, Follower())
    assert [len(each.returns) for each in kept] == [4, 8, 10]  # blocks of four
    assert games.play_randomly(kept[0], lambda _: None, Follower()) == whole
    draws = [random_policy(teacher.actions, block)(np.zeros((2, 3))) for block in (0, 1)]
    assert not np.array_equal(*draws)  # no block repeats another's
    games.close()


def test_an_agents_run_is_finetuned_and_evaluated(dqn_zip: Path, tmp_path: Path) -> None:
    asked = Suite((str(dqn_zip),), precisions_of([8], 8), 4)
    (found,) = played(asked, tmp_path / "s")
    folder = tmp_path / "s" / found.name / "W8A8-dorefa_scaled-column"
    short = {"finetune.epochs": 1, "finetune.samples_per_epoch": 512}
    run = qpd.finetune(folder, overrides=short)
    # Of Q-values that is chosen by their entropy, not the constant of earlier versions.
    assert run.phase("distill").metrics["temperature"] != 0.01
    assert run.phase("evaluate").state == "pending"
    integers = run.quantized_file.read_bytes()
    played(asked, tmp_path / "s")  # which leaves it alone
    done = qpd.run(run.path / "recipe.yaml", output=run)
    assert set(done.manifest.evaluations) == {"teacher", "distilled", "ptq", "qat"}
    played(asked, tmp_path / "s")
    assert done.quantized_file.read_bytes() == integers


def test_w8a8_is_a_run_directory_of_integers(whole: tuple[Suite, Path], dqn: Teacher) -> None:
    asked, folder = whole
    path = folder / "dqn-CartPole-v1" / "W8A8-dorefa_scaled-column"
    run = RunDirectory.open(path, read_only=True)
    cell = read_cell(Path(f"{path}.json"))
    assert cell is not None and cell.arithmetic == "integers"
    assert run.manifest.evaluations["ptq"]["returns"] == list(cell.played.returns)
    assert cell.layers[0].distinct_values <= 256
    # 64-64 agent of 4 inputs: bytes of packed weights, biases, gains, input ranges.
    assert cell.num_bytes == 64 * (4 + 9) + 64 * (64 + 9) + 2 * (64 + 4) + 4 * 8
    student = load_student_policy(run.distilled_file)
    seen = np.random.default_rng(0).uniform(-0.05, 0.05, (100, 4)).astype(np.float32)
    wanted = dqn(torch.from_numpy(seen)).labels.numpy()
    np.testing.assert_allclose(student.outputs(seen), wanted, atol=2e-6)
    integers = load_student_policy(run.quantized_file)
    assert np.abs(integers.outputs(seen) - wanted).max() < 0.1 * np.abs(wanted).max()


def test_an_agent_with_tanh_is_integers_too(teacher_zip: Path, tmp_path: Path) -> None:
    (result,) = played(Suite((str(teacher_zip),), precisions_of([8], 8), 4), tmp_path / "s")
    assert [cell.arithmetic for cell in result.cells] == ["float", "integers"]
    (manifest,) = (tmp_path / "s").rglob("manifest.json")
    run = RunDirectory.open(manifest.parent, read_only=True)
    assert run.recipe.student.activation == "tanh"
    # Its two tables are counted, 1,024 bytes each, beside the inputs' ranges.
    (integers,) = [cell for cell in result.cells if cell.arithmetic == "integers"]
    assert integers.num_bytes == stored_constant_bytes(run.quantized_file) + 4 * 8


def test_columns_of_integers_without_relu_are_no_row_of_their_own(
    teacher_zip: Path, dqn_zip: Path, tmp_path: Path
) -> None:
    """As they would be counted twice by Holm's correction."""
    precisions = precisions_of([8], 8, per=["channel", "column"])
    agents = (str(teacher_zip), str(dqn_zip))
    tanh, relu = played(Suite(agents, precisions, 4), tmp_path / "s")
    rows = [(cell.arithmetic, cell.per) for cell in tanh.cells]
    assert rows == [("float", "channel"), ("float", "column"), ("integers", "channel")]
    assert ("integers", "column") in [(cell.arithmetic, cell.per) for cell in relu.cells]


def test_an_agents_run_is_evaluated_by_the_suites_seed(whole: tuple[Suite, Path]) -> None:
    asked, folder = whole
    path = folder / "dqn-CartPole-v1" / "W8A8-dorefa_scaled-column"
    games = RunDirectory.open(path, read_only=True).manifest.evaluations
    target = load_target(path, "ptq", None, "cpu")
    assert target.seed == asked.seed == games["teacher"]["seed"] == games["ptq"]["seed"]
    caption = summary_caption(run_summary(path))
    assert "10 full games each" in caption and "evaluation seed 5" in caption


def test_other_activations_are_simulated(tmp_path: Path) -> None:
    kwargs = {"activation_fn": torch.nn.Softsign}
    path = tmp_path / "ppo-CartPole-v1.zip"
    options: dict[str, Any] = {"n_steps": 8, "batch_size": 8, "device": "cpu"}
    PPO("MlpPolicy", "CartPole-v1", policy_kwargs=kwargs, **options).save(path)
    (result,) = played(Suite((str(path),), precisions_of([8], 8), 4), tmp_path / "s")
    assert [cell.arithmetic for cell in result.cells] == ["float", "simulated"]
    assert not list((tmp_path / "s").rglob("manifest.json"))


def test_simulated_activations_take_few_values(teacher_zip: Path) -> None:
    teacher = load_teacher(teacher_zip)
    states = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    actor = actor_of(teacher.network, teacher.activation)
    ranges = activation_ranges(teacher, actor, states, 3)
    assert ranges.low is not None and len(ranges.hidden) == len(actor.layers) - 1
    assert all(-1.0 <= low < 0.0 < high <= 1.0 for low, high in ranges.hidden)  # of a tanh
    hidden = actor.layers[0](ranges.inputs(torch.from_numpy(states))).tanh()
    assert len(ranges.activations(0, hidden).unique()) <= 8
    exact, rounded = (
        agent_policy(teacher, actor)(states),
        agent_policy(teacher, actor, ranges)(states),
    )
    assert 0.0 < np.abs(exact - rounded).max() < 0.5 * np.abs(exact).max()


def test_flips_are_counted_by_hand(dqn: Teacher) -> None:
    states = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    found = quantize_agent(dqn, Precision(WeightQuantizer("affine", 2)), states, 1, 0)
    best = [
        policy(states).argmax(1)
        for policy in (agent_policy(dqn, actor_of(dqn.network, "ReLU")), found.policy)
    ]
    share = float((best[0] != best[1]).mean())
    assert share > 0.0 and action_changes(dqn, found.policy, states) == (pytest.approx(share), None)
    assert found.cell.action_flips == pytest.approx(share)


def test_an_agent_that_fails_leaves_the_others(dqn_zip: Path, tmp_path: Path) -> None:
    lost = tmp_path / "dqn-NoSuchGame-v0.zip"
    lost.write_bytes(dqn_zip.read_bytes())
    agents = ("absent.zip", str(lost), str(dqn_zip))
    found = played(Suite(agents, precisions_of(["fp16"]), 2), tmp_path / "s")
    assert "absent.zip: no such file" in str(found[0].why_not)
    assert "NoSuchGame-v0" in str(found[1].why_not)
    assert found[2].why_not is None and len(found[2].cells[0].played.returns) == 2


def test_a_suite_goes_on_wherever_its_agents_lie_now(dqn_zip: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved" / dqn_zip.name
    moved.parent.mkdir()
    moved.write_bytes(dqn_zip.read_bytes())
    first = played(Suite((str(dqn_zip),), precisions_of(["fp16"]), 2), tmp_path / "s")
    again = played(Suite((str(moved),), precisions_of(["fp16"]), 2), tmp_path / "s")
    assert again[0].cells == first[0].cells
    both = Suite((str(dqn_zip), str(moved)), precisions_of(["fp16"]), 2)
    with pytest.raises(AgentQuantizationError, match="is the agent that .* is; give it once"):
        played(both, tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_which_agent_has_a_numbered_name_is_said(dqn_zip: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.zip"
    agent = DQN.load(dqn_zip, device="cpu")
    agent.q_net.q_net[-1].bias.data += 1.0  # type: ignore[union-attr]
    agent.save(other)
    follower = Follower()
    asked = Suite(
        (str(dqn_zip), str(other)), precisions_of(["fp16"]), 2, wish=EnvironmentWish("CartPole-v1")
    )
    found = run_suite(asked, tmp_path / "s", follower)
    assert [each.name for each in found] == ["dqn-CartPole-v1", "dqn-CartPole-v1-2"]
    assert f"dqn-CartPole-v1-2 is {other}" in follower.notes


def test_a_suite_of_failures_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AgentQuantizationError, match=r"absent\.zip: no such file"):
        played(Suite(("absent.zip",), ASKED), tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_failures_leave_the_place_to_other_agents(dqn_zip: Path, tmp_path: Path) -> None:
    lost = tmp_path / "dqn-NoSuchGame-v0.zip"
    lost.write_bytes(dqn_zip.read_bytes())
    with pytest.raises(AgentQuantizationError, match="NoSuchGame-v0"):
        played(Suite((str(lost),), ASKED), tmp_path / "s")
    assert not (tmp_path / "s").exists()
    assert played(Suite((str(dqn_zip),), precisions_of(["fp16"]), 2), tmp_path / "s")


def test_another_suite_s_folder_is_refused(whole: tuple[Suite, Path], dqn_zip: Path) -> None:
    other = Suite((str(dqn_zip),), ASKED, episodes=11, seed=5)
    with pytest.raises(AgentQuantizationError, match="other episodes: 10, now 11; choose another"):
        played(other, whole[1])


def test_damaged_games_are_named(whole: tuple[Suite, Path], tmp_path: Path) -> None:
    asked, folder = whole
    file = tmp_path / "fp32.json"
    text = json.loads((folder / "dqn-CartPole-v1" / "fp32.json").read_text())
    text["played"]["returns"][0] += 1
    file.write_text(json.dumps(text))
    with pytest.raises(AgentQuantizationError, match="fp32.json: is damaged"):
        read_cell(file)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((["9"],), "--bits 9: expected fp16, or 2 to 8"),
        ((["half"],), "--bits half: expected fp16, or 2 to 8"),
        (([8], 16), "--activations 16: expected 2 to 8 bits"),
        ((["fp16"], 8), "--activations 8: is for --bits 2 to 8"),
        (([8], None, ["affin"]), "--scheme affin: expected .*; did you mean affine"),
        (([8], None, None, ["row"]), "--per row: expected tensor, channel, column"),
        (([],), "--bits: none given"),
    ],
)
def test_what_is_asked_for_is_checked(arguments: tuple[object, ...], line: str) -> None:
    with pytest.raises(AgentQuantizationError, match=line):
        precisions_of(*arguments)  # type: ignore[arg-type]


def test_precisions_are_weights_alone_then_with_activations() -> None:
    keys = [each.key for each in precisions_of(["fp16", 8, 8, 4], 8)]
    assert keys == ["fp16", "W8-affine-column", "W8A8-dorefa_scaled-column",
                    "W4-affine-column", "W4A8-dorefa_scaled-column"]  # fmt: skip
    literal = precisions_of([8], 8, ["affine-literal"], ["tensor"])
    assert [each.key for each in literal] == [
        "W8-affine-literal-tensor",
        "W8A8-affine-literal-tensor",
    ]


def test_its_card_and_report_call_it_no_student(
    whole: tuple[Suite, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, hub = whole[1] / "dqn-CartPole-v1" / "W8A8-dorefa_scaled-column", tmp_path / "hub"
    command = ("push", path, "me/x", "--dry-run", "-o", hub, "--formats", "c", "--no-video")
    code, _, err = call(capsys, *command)
    assert code == 0, err
    card = (hub / "README.md").read_text(encoding="utf-8")
    assert "# DQN on CartPole-v1 in 8-bit integers\n" in card
    for wrong in ("imitates", "distillation", "student of", "qpd run", "epoch was chosen"):
        assert wrong not in card
    again = "qpd quantize AGENT.zip --bits 8 --activations 8 --scheme dorefa_scaled --per column"
    assert (
        f"{again} --seed 5 --episodes 10 --env CartPole-v1 -o again   # makes such integers again"
        in card
    )
    # What it tells readers to do works in that folder.
    assert (
        "`qpd evaluate . --policy ptq --episodes 20`" in card and "one training run (eval" in card
    )
    assert "quantization-aware-training" not in card
    assert load_target(str(hub), "ptq", None, "cpu").label == "ptq"
    code, _, err = call(
        capsys, "report", path, "--no-video", "--no-umap", "-o", tmp_path / "r.html"
    )
    assert code == 0, err
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<p>DQN on CartPole-v1, its own network rounded to integers by QPD. Agent: " in page
    assert "Recipe: dqn" not in page


def test_the_same_text_twice_is_one_agent_twice(dqn_zip: Path, tmp_path: Path) -> None:
    name = str(dqn_zip)
    with pytest.raises(AgentQuantizationError, match="give it once"):
        played(Suite((name, name), ASKED, episodes=10), tmp_path / "suite")


def test_an_agent_is_named_from_the_root(
    dqn_zip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path of two parts would be a hub id in another folder."""
    (tmp_path / "agents").mkdir()
    shutil.copy(dqn_zip, tmp_path / "agents" / "dqn-CartPole-v1.zip")
    monkeypatch.chdir(tmp_path)
    asked = Suite(("agents/dqn-CartPole-v1",), precisions_of([8], 8), 4)
    played(asked, tmp_path / "suite")
    (recipe,) = (tmp_path / "suite").rglob("recipe.yaml")
    source = RunDirectory.open(recipe.parent, read_only=True).recipe.teacher.source
    assert source == str(tmp_path / "agents" / "dqn-CartPole-v1")


def test_fp32_is_shown_where_the_first_precision_failed(dqn_zip: Path) -> None:
    row = PrecisionRow("a", "E", "fp16", why_not="beyond 65,504")
    numbers = dict.fromkeys(
        ("return_fp32", "return_quantized", "low_quantized", "high_quantized", "error_percent",
         "difference", "low", "high"), 1.0,
    )  # fmt: skip
    known = replace(row, precision="W8", why_not=None, bytes_fp32=9, bytes_quantized=3, **numbers)
    shown = PrecisionTable((row, known), ()).text_rows()
    assert [cells[1] for cells in shown] == ["fp16", "fp32", "W8"]


def test_flags_have_both_values_in_their_range_however_rare_they_are() -> None:
    states = torch.zeros(4096, 4)
    states[0, 0], states[::2, 1], states[:, 2] = 1.0, 1.0, 1.0
    states[:, 3] = 0.5
    low, high = input_range(states)
    assert (low[:3] < 0).all() and (high[:3] > 1).all()
    assert high[3] - low[3] < 1e-3  # constant, and no flag
