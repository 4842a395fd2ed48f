"""Whole phases on real games: done once, and the same whether or not they were interrupted."""

from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import DDPG, DQN
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from qpd.actions import Discrete
from qpd.api import resolve_recipe
from qpd.environments.errors import EnvironmentRunError
from qpd.environments.transition import TransitionBatch
from qpd.phases.distill import input_range
from qpd.phases.preparation import PreparationError, prepare, size_notes
from qpd.recipe.schema import Recipe
from qpd.replay.memory import ReplayMemory
from qpd.replay.play_stream import PlayStream
from qpd.runs.checkpoint import load_needed_checkpoint
from qpd.runs.run_directory import RunDirectory
from qpd.student_files.distilled import load_student, save_student
from qpd.student_files.quantized import load_integer_student
from qpd.students.shared_background import MultipliedBlocks
from qpd.teachers import load_teacher
from qpd.training import epochs
from qpd.training.epochs import TrainingError
from tests.tiny_run import (
    STUDENTS,
    Follower,
    Interrupt,
    outcome,
    recipe_of,
    work,
    write_dqn,
)

torch.set_num_threads(1)

ROOT = Path(__file__).parents[2]


def saved_state(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors and the rest of an interrupted run's checkpoint."""
    run = RunDirectory.open(path, read_only=True)
    saved = load_needed_checkpoint(run.checkpoint_folder, run)
    assert saved is not None
    return saved


@pytest.fixture(scope="module")
def finished(teacher_zip: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that was never interrupted."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    work(path, recipe_of(teacher_zip), Follower())
    return path


def test_a_q_learners_temperature_and_scale_are_its_labels(tmp_path: Path) -> None:
    """Phase 3's head holds logits that are `temperature * sharpness` times phase 1's."""
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=8, seed=0, device="cpu")
    with torch.no_grad():
        model.q_net.q_net[-1].weight.mul_(3)
    model.save(tmp_path / "dqn.zip")
    recipe = recipe_of(
        tmp_path / "dqn.zip",
        teacher={"algo": "dqn"},
        student={"size": "mlp-16", "sharpness": 2.0},
        distill={"epochs": 1, "label_entropy": 0.3},
        finetune={"epochs": 1},
        evaluation={"acting": "auto"},
    )
    for phase in ("distill", "finetune"):
        follower = Follower(lambda event, name, _: event == "epoch" and name == phase)  # noqa: B023
        with pytest.raises(Interrupt):
            work(tmp_path / "run", recipe, follower)
        tensors, plain = saved_state(tmp_path / "run")
        labels, added = tensors["replay.labels"], int(tensors["replay.num_added"])
        labels = labels[1 + torch.arange(added - 512, added) % (len(labels) - 1)]
        with RunDirectory.open(tmp_path / "run", read_only=True) as run:
            temperature = run.phase("distill").metrics["temperature"]
        if phase == "distill":
            # Chosen by the labels of the filled memory: a share of the entropy of two actions.
            entropy, _ = Discrete(2).label_entropy(labels, temperature)
            assert entropy == pytest.approx(recipe.distill.label_entropy * math.log(2.0), rel=1e-4)
        deviations = (labels - labels.mean(1, keepdim=True)).square().mean(1).sqrt()
        scale = float(deviations.median()) / temperature
        assert scale > 1.2  # or the factor would be 1 whatever it is made of
        fold = temperature * 2.0 if phase == "finetune" else 1.0
        assert plain["states"][""]["head_factor"] == pytest.approx(scale * fold, rel=1e-4)
        # Without a critic the loss is Eq. 1 alone, unless the recipe names a lambda.
        assert follower.reports[-1].loss == follower.reports[-1].actor_loss > 0
        assert follower.reports[-1].critic_loss > 0


def test_the_phases_write_students_and_metrics(finished: Path) -> None:
    student = load_student(finished / "distilled.safetensors")
    assert student.architecture.hidden == (16,)
    for name in ("ptq.safetensors", "quantized.safetensors"):
        integers = load_integer_student(finished / name)
        assert [layer.bits for layer in integers.layers] == [4, 4]
    rows = outcome(finished)["metrics"]
    assert [(row["phase"], int(row["epoch"])) for row in rows] == [
        *(("distill", epoch) for epoch in range(1, 7)),
        *(("finetune", epoch) for epoch in range(1, 5)),
    ]
    # Every epoch is validated; the first loss is the largest, the last learning rate 0.
    assert all(float(row["validation_return"]) >= 8 for row in rows)
    assert float(rows[5]["loss"]) < 0.5 * float(rows[0]["loss"])
    assert float(rows[5]["lr"]) == 0.0 < float(rows[0]["lr"]) < 0.003


def test_students_have_learnt_the_teachers_logits(finished: Path, teacher_zip: Path) -> None:
    # With the temperature folded back in, the softmax is the teacher's own, not a flat one.
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=1)
    observations = []
    for step in range(200):
        observations.append(observation)
        observation, _, done, *_ = env.step(step % 2)
        if done:
            observation, _ = env.reset()
    env.close()
    batch = torch.from_numpy(np.array(observations))
    teacher = load_teacher(teacher_zip, algo="ppo", env_id="CartPole-v1")
    with torch.no_grad():
        expected = teacher(batch).labels.softmax(1)[:, 0]
        found = load_student(finished / "distilled.safetensors")(batch).actor.softmax(1)[:, 0]
    assert expected.std() > 0.1
    assert torch.corrcoef(torch.stack([expected, found]))[0, 1] > 0.9
    assert 0.5 < found.std() / expected.std() < 1.5


def test_finished_phases_are_left_alone(finished: Path, teacher_zip: Path, tmp_path: Path) -> None:
    path = tmp_path / "again"
    shutil.copytree(finished, path)
    times = {name: (path / name).stat().st_mtime_ns for name in STUDENTS}
    follower = work(path, recipe_of(teacher_zip), Follower())
    assert follower.reports == []
    assert follower.notes == [
        f"{name}: already done in {path}, nothing to do"
        for name in ("distill", "quantize", "finetune")
    ]
    assert {name: (path / name).stat().st_mtime_ns for name in STUDENTS} == times
    assert outcome(path) == outcome(finished)


def test_phase_1_says_what_background_sharing_left(
    finished: Path, teacher_zip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunDirectory.open(finished) as run:  # vectors share nothing: nothing is said of it
        assert "multiplied_blocks" not in run.phase("distill").metrics
    asked = []

    def measured(memory: ReplayMemory, batch_size: int) -> MultipliedBlocks:
        asked.append(batch_size)
        return MultipliedBlocks(0.154, 0.38)

    monkeypatch.setattr(ReplayMemory, "multiplied_blocks", measured)
    follower = work(tmp_path / "run", recipe_of(teacher_zip), Follower())
    wanted = "background sharing: 15% of conv 1's blocks and 38% of conv 2's are multiplied"
    assert follower.notes.count(wanted) == 1 and asked == [16]
    with RunDirectory.open(tmp_path / "run") as run:
        assert run.phase("distill").state == "done"
        assert run.phase("distill").metrics["multiplied_blocks"] == {"conv1": 0.154, "conv2": 0.38}


def test_the_seed_decides_the_outcome(finished: Path, teacher_zip: Path, tmp_path: Path) -> None:
    recipe = recipe_of(teacher_zip)
    work(tmp_path / "same", recipe, Follower())
    assert outcome(tmp_path / "same") == outcome(finished)
    work(tmp_path / "other", recipe.model_copy(update={"seed": 4}), Follower())
    other = outcome(tmp_path / "other")
    assert all(other[key] != value for key, value in outcome(finished).items())


MOMENTS: dict[str, Callable[[str, str, int], bool]] = {
    "while filling": lambda event, phase, epoch: event == "filling",
    "first epoch": lambda event, phase, epoch: event == "batch",
    "mid-epoch": lambda event, phase, epoch: (event, phase, epoch) == ("batch", "distill", 3),
    "after an epoch": lambda event, phase, epoch: (event, epoch) == ("epoch", 2),
    "after the last": lambda event, phase, epoch: (event, epoch) == ("epoch", 6),
    "validation": lambda event, phase, epoch: (event, phase, epoch) == ("episodes", "distill", 2),
    "finetune": lambda event, phase, epoch: (event, phase, epoch) == ("batch", "finetune", 1),
    "finetune's validation": lambda event, phase, epoch: (
        (event, phase, epoch) == ("episodes", "finetune", 2)
    ),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_interrupted_and_resumed_equals_uninterrupted(
    moment: str, finished: Path, teacher_zip: Path, tmp_path: Path
) -> None:
    recipe, path = recipe_of(teacher_zip), tmp_path / "interrupted"
    with pytest.raises(Interrupt):
        work(path, recipe, Follower(MOMENTS[moment]))
    work(path, recipe, Follower())
    assert outcome(path) == outcome(finished)


def test_students_that_collect_resume_equally(
    finished: Path, teacher_zip: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(teacher_zip, collection={"student_fraction": 0.5})
    whole, path = tmp_path / "whole", tmp_path / "interrupted"
    work(whole, recipe, Follower())
    for moment in ("mid-epoch", "after the last", "finetune"):
        with pytest.raises(Interrupt):
            work(path, recipe, Follower(MOMENTS[moment]))
    work(path, recipe, Follower())
    assert outcome(path) == outcome(whole)
    # And they do collect: what is learnt differs from learning from the teacher's play alone.
    assert outcome(whole)["metrics"] != outcome(finished)["metrics"]


def test_collecting_beside_training_changes_no_number(
    teacher_zip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(teacher_zip, collection={"student_fraction": 0.5})
    threads = []
    refresh = PlayStream.refresh

    def spy(stream: PlayStream, student: Any = None) -> None:
        threads.append(threading.current_thread() is threading.main_thread())
        refresh(stream, student)

    def no_gpu(stream: object) -> None:
        raise AssertionError(
            "a CPU's phase asks for a GPU, which fails where there is another kind"
        )

    monkeypatch.setattr(PlayStream, "refresh", spy)
    monkeypatch.setattr(torch.cuda, "stream", no_gpu)
    for cores in (1, 64):
        monkeypatch.setattr(epochs, "usable_cores", lambda cores=cores: cores)
        work(tmp_path / str(cores), recipe, Follower())
    assert outcome(tmp_path / "1") == outcome(tmp_path / "64")
    assert threads == [True] * 10 + [False] * 10


@pytest.mark.slow
def test_rewards_lead_past_a_teacher_that_knows_nothing(teacher_zip: Path, tmp_path: Path) -> None:
    finetune = {
        "epochs": 25,
        "batch_size": 64,
        "lr": 0.01,
        "reward": {"imitation": 0.0, "rollout": 512, "passes": 4, "clip": 0.2},
    }
    evaluation = {"episodes": 4, "validation_episodes": 16, "validate_every": 5}
    recipe = recipe_of(
        teacher_zip,
        quantize={"weight_bits": 8, "activation_bits": 8},
        distill={"epochs": 2},
        finetune=finetune,
        evaluation={**evaluation, "acting": "greedy"},
        environment={"max_frames": 200},
    )
    whole, path = tmp_path / "whole", tmp_path / "interrupted"
    follower = work(whole, recipe, Follower())
    before = next(float(note.split()[-1]) for note in follower.notes if "before phase 3" in note)
    rows = [row for row in outcome(whole)["metrics"] if row["phase"] == "finetune"]
    best = max(float(row["validation_return"]) for row in rows if row["validation_return"])
    assert before < 100 and best > 150
    played = [float(row["rollout_return"]) for row in rows]
    assert all(float(row["approx_kl"]) > 0 for row in rows)
    assert np.mean(played[-5:]) > 3 * np.mean(played[:3])
    # The student's own play resumes as exactly as the teacher's.
    with pytest.raises(Interrupt):
        work(path, recipe, Follower(lambda event, phase, epoch: (event, epoch) == ("batch", 7)))
    # The head learns at the phase's rate: PPO's steps are small in terms of the acting policy.
    assert saved_state(path)[1]["states"][""]["head_factor"] == 1.0
    work(path, recipe, Follower())
    assert outcome(path) == outcome(whole)


def test_the_same_student_is_the_same_file(finished: Path, tmp_path: Path) -> None:
    path = finished / "distilled.safetensors"
    written = []
    for number in range(4):
        target = tmp_path / str(number)
        save_student(target, load_student(path), Discrete(2), {})
        written.append(target.read_bytes())
    assert len(set(written)) == 1


def test_lost_frames_are_noticed(teacher_zip: Path, tmp_path: Path) -> None:
    # Without its frames a checkpoint would train on empty observations.
    recipe, path = recipe_of(teacher_zip), tmp_path / "run"
    with pytest.raises(Interrupt):
        work(path, recipe, Follower(MOMENTS["mid-epoch"]))
    (path / "checkpoint" / "replay.bin").unlink()
    with pytest.raises(ValueError, match="replay.bin"):
        work(path, recipe, Follower())


def test_a_loss_that_is_not_finite_ends_training_in_one_line(
    teacher_zip: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(teacher_zip, distill={"temperature": 1e-40})
    with pytest.raises(TrainingError) as caught:
        work(tmp_path / "run", recipe, Follower())
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("distill: epoch 4: the loss is no longer finite (actor nan")
    assert "after 3 rollbacks" in text
    assert "distill.lr (now 0.003)" in text and "distill.max_grad_norm" in text
    assert not (tmp_path / "run" / "distilled.safetensors").exists()


def test_no_epochs_leave_an_untrained_student(teacher_zip: Path, tmp_path: Path) -> None:
    # The paper's ablation: phase 3 alone.
    recipe = recipe_of(teacher_zip, distill={"epochs": 0})
    follower = work(tmp_path / "run", recipe, Follower())
    assert len(follower.reports) == 4
    rows = outcome(tmp_path / "run")["metrics"]
    assert {row["phase"] for row in rows} == {"finetune"}


def test_patience_ends_a_phase_also_after_an_interruption(
    teacher_zip: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(teacher_zip, distill={"epochs": 60, "patience": 1})
    whole, path = tmp_path / "whole", tmp_path / "run"
    work(whole, recipe, Follower())
    last = int([r for r in outcome(whole)["metrics"] if r["phase"] == "distill"][-1]["epoch"])
    assert 2 <= last < 60
    with pytest.raises(Interrupt):
        work(path, recipe, Follower(lambda e, p, n: (e, p, n) == ("epoch", "distill", last)))
    work(path, recipe, Follower())
    assert outcome(path) == outcome(whole)


def test_lost_metrics_come_back_from_the_checkpoint(
    finished: Path, teacher_zip: Path, tmp_path: Path
) -> None:
    recipe, path = recipe_of(teacher_zip), tmp_path / "run"
    for moment, content in (("mid-epoch", "phase,epoch,other\n"), ("finetune", "")):
        with pytest.raises(Interrupt):
            work(path, recipe, Follower(MOMENTS[moment]))
        (path / "metrics.csv").write_text(content)
    work(path, recipe, Follower())
    assert outcome(path) == outcome(finished)


def test_a_memory_that_cannot_fit_is_refused_before_any_work(
    tmp_path: Path, teacher_zip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # CartPole: 2 logits and 3 floats, an action of 8 bytes, a row and a checksum: 36 bytes each.
    recipe = recipe_of(teacher_zip, replay={"capacity": 1000})
    monkeypatch.setattr("qpd.phases.preparation.total_memory", lambda: 36_000)
    prepare(recipe, "cpu")
    monkeypatch.setattr("qpd.phases.preparation.total_memory", lambda: 35_999)
    with pytest.raises(PreparationError, match="replay.capacity: 1,000 transitions need 0 GiB"):
        prepare(recipe, "cpu")


def test_the_students_share_of_play_is_not_rounded_away(teacher_zip: Path) -> None:
    prepare(recipe_of(teacher_zip, collection={"student_fraction": 0.25}), "cpu")
    recipe = recipe_of(teacher_zip, collection={"student_fraction": 0.1})
    with pytest.raises(PreparationError, match="student_fraction: of 4 environments 0.1 is none"):
        prepare(recipe, "cpu")


def test_what_is_large_is_said_before_phase_1(teacher_zip: Path) -> None:
    def said(recipe: Recipe) -> list[str]:
        return size_notes(recipe, prepare(recipe, "cpu"))

    assert said(resolve_recipe("quickstart", ["replay.capacity=1000000"])) == [
        "the memory of 1,000,000 observations takes 6.6 GiB on the disk: replay.capacity"
    ]
    assert said(resolve_recipe("quickstart")) == []
    # 64 and 64 units for 4 inputs and 2 actions: 4,610 parameters, as many as SB3's own actor.
    sizes = ("mlp-64-64", "mlp-64-65", "mlp-64-63")
    equal, larger, smaller = (said(recipe_of(teacher_zip, student={"size": s})) for s in sizes)
    assert equal[0].startswith("the student has 4,610 parameters, as many as the agent's actor: a")
    assert larger[0].startswith("the student has 4,677 parameters, more than the 4,610 of the ag")
    assert smaller == []


def test_rewards_need_a_policy_and_a_critic_in_their_units(
    teacher_zip: Path, tmp_path: Path
) -> None:
    write_dqn(tmp_path / "dqn.zip")
    reward = {"finetune": {"reward": {"rollout": 64}}}
    recipe = recipe_of(tmp_path / "dqn.zip", **reward, teacher={"algo": "dqn"})
    with pytest.raises(PreparationError, match=r"finetune\.reward: samples .* are Q-values"):
        prepare(recipe, "cpu")
    for norm_obs, norm_reward in ((True, False), (False, True)):
        env = VecNormalize(
            DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]),
            norm_obs=norm_obs, norm_reward=norm_reward,
        )  # fmt: skip
        env.save(str(tmp_path / "vecnormalize.pkl"))
        shutil.copy(teacher_zip, tmp_path / "ppo.zip")
        recipe = recipe_of(tmp_path / "ppo.zip", **reward)
        if norm_reward:
            with pytest.raises(PreparationError, match="trained with VecNormalize's rewards"):
                prepare(recipe, "cpu")
        else:
            prepare(recipe, "cpu")


def test_a_feature_wider_than_float32_is_named() -> None:
    memory = ReplayMemory(4, 2, (2,), 1, Discrete(2))
    zeros = torch.zeros(2)
    for value in (-3.3e38, 3.3e38):
        seen = np.array([[0.5, value], [0.5, 0.0]], np.float32)
        labels = torch.zeros(2, 2)
        memory.add(TransitionBatch(seen, np.zeros(2, np.int64), np.arange(2), labels, zeros))
    with pytest.raises(EnvironmentRunError, match="^feature 1 of the observations goes from"):
        input_range(memory)


@pytest.mark.parametrize("change", [{"loss": "reverse_kl"}, {"temperature": 2.0}])
@pytest.mark.parametrize("phase", ["distill", "finetune"])
def test_actions_without_a_distribution_have_neither_direction_nor_temperature(
    phase: str, change: dict[str, Any], tmp_path: Path
) -> None:
    DDPG("MlpPolicy", "Pendulum-v1", buffer_size=8, device="cpu").save(tmp_path / "ddpg.zip")
    about = {"algo": "ddpg", "env": "Pendulum-v1"}
    evaluation = {"acting": "auto"}
    recipe = recipe_of(tmp_path / "ddpg.zip", teacher=about, evaluation=evaluation)
    prepare(recipe, "cpu")
    sections = {"teacher": about, "evaluation": evaluation, phase: change}
    recipe = recipe_of(tmp_path / "ddpg.zip", **sections)
    with pytest.raises(PreparationError, match=f"{phase}.{next(iter(change))}: .* gives actions"):
        prepare(recipe, "cpu")
