"""What a memory's frames have in common: known for every draw, whatever was added since."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from qpd.environments.transition import TransitionBatch
from qpd.replay.memory import BLOCKED_FRAME, ReplayMemory
from qpd.students import Student, StudentArchitecture
from qpd.students.shared_background.shared_frames import SharedFrames, plan_of

torch.set_num_threads(1)

CAPACITY, STREAMS = 300, 4


def play(memory: ReplayMemory, steps: int, seed: int, scene_seed: int = 0) -> None:
    """Frames of a scene in which about 9 of 441 blocks are anything; an episode is 10 frames."""
    scene = np.random.default_rng(scene_seed).integers(0, 256, (84, 84), dtype=np.uint8)
    rng = np.random.default_rng(seed)
    stacks = np.zeros((STREAMS, 4, 84, 84), np.uint8)
    for step in range(steps):
        age = step % 10
        if age == 0:
            stacks[:] = 0
        differs = rng.random((STREAMS, 21, 21)) < 0.02
        differs = differs.repeat(4, 1).repeat(4, 2)
        noise = rng.integers(0, 256, (STREAMS, 84, 84), dtype=np.uint8)
        stacks[:, :-1] = stacks[:, 1:]
        stacks[:, -1] = np.where(differs, noise, scene)
        ages = np.full(STREAMS, min(age, 3))
        logits = torch.from_numpy(rng.normal(size=(STREAMS, 4)).astype(np.float32))
        batch = TransitionBatch(stacks.copy(), ages, np.arange(STREAMS), logits, logits[:, 0])
        memory.add(batch)


def background(memory: ReplayMemory) -> Tensor:
    assert memory.background is not None and memory.background.pixels is not None
    return memory.background.pixels


def assert_draws_are_right(memory: ReplayMemory) -> None:
    rows = torch.from_numpy(memory.transition_rows())
    whole, drawn = memory.gather(rows), memory.draw(rows)
    assert isinstance(drawn.inputs, SharedFrames)
    assert torch.equal(drawn.observations, whole.observations)
    assert torch.equal(drawn.logits, whole.logits)
    blocks = whole.observations.view(len(rows), 4, 441, 16)
    differs = (blocks != background(memory)).any(-1).any(1)
    assert torch.equal(drawn.inputs.differs, differs)
    assert 0 < differs.sum() < differs.numel()


def test_draws_tell_what_differs_whenever_it_was_added(tmp_path: Path) -> None:
    memory = ReplayMemory(CAPACITY, STREAMS, (4, 84, 84), 4, tmp_path / "frames", spare=30)
    play(memory, 40, 1)
    rows = torch.from_numpy(memory.transition_rows())
    assert isinstance(memory.draw(rows).inputs, Tensor)  # nobody has voted yet
    memory.renew_background()
    assert_draws_are_right(memory)
    for seed in range(2, 8):  # around the ring, more than once
        play(memory, 25, seed)
        assert_draws_are_right(memory)


def test_there_is_a_vote_once_the_memory_is_another(tmp_path: Path) -> None:
    memory = ReplayMemory(CAPACITY, STREAMS, (4, 84, 84), 4)
    memory.renew_background()  # nothing to vote on
    play(memory, CAPACITY // STREAMS, 1)
    memory.renew_background()
    before = background(memory)
    play(memory, CAPACITY // STREAMS - 1, 2, scene_seed=1)  # all but 4 transitions are others now
    memory.renew_background()
    assert background(memory) is before
    play(memory, 1, 3, scene_seed=1)
    memory.renew_background()
    assert not torch.equal(background(memory), before)
    assert_draws_are_right(memory)


def test_a_restored_memory_draws_and_votes_like_one_never_interrupted(tmp_path: Path) -> None:
    def filled(file: Path | None) -> ReplayMemory:
        memory = ReplayMemory(CAPACITY, STREAMS, (4, 84, 84), 4, file)
        play(memory, CAPACITY // STREAMS, 1)
        memory.renew_background()
        play(memory, 40, 2)
        return memory

    twin, memory = filled(None), filled(tmp_path / "frames")
    state = {name: tensor.clone() for name, tensor in memory.state_dict().items()}
    del memory
    restored = ReplayMemory(CAPACITY, STREAMS, (4, 84, 84), 4, tmp_path / "frames")
    restored.load_state_dict(state)
    for one in (restored, twin):
        one.renew_background()
        assert_draws_are_right(one)
    assert torch.equal(background(restored), background(twin))
    for one in (restored, twin):
        play(one, 40, 3, scene_seed=1)  # 80 steps since the vote: it is due
        one.renew_background()
        assert_draws_are_right(one)
    assert torch.equal(background(restored), background(twin))


def test_a_checkpoint_from_before_there_were_backgrounds_is_read(tmp_path: Path) -> None:
    memory = ReplayMemory(CAPACITY, STREAMS, (4, 84, 84), 4, tmp_path / "frames")
    play(memory, CAPACITY // STREAMS, 1)
    state = {name: tensor.clone() for name, tensor in memory.state_dict().items()}
    assert "background" not in state
    memory.load_state_dict(state)
    memory.renew_background()
    assert_draws_are_right(memory)


def test_vectors_have_no_background() -> None:
    memory = ReplayMemory(20, 1, (3,), 2)
    none = np.zeros(1, np.int64)
    observation = np.ones((1, 3), np.float32)
    memory.add(TransitionBatch(observation, none, none, torch.zeros(1, 2), torch.zeros(1)))
    memory.renew_background()
    sample = memory.draw(torch.tensor([1]))
    assert torch.equal(sample.observations, torch.ones(1, 3))


@pytest.mark.parametrize("share", ["much in common", "nothing in common"])
def test_a_student_learns_the_same_from_a_draw(share: str) -> None:
    memory = ReplayMemory(CAPACITY, STREAMS, (4, 84, 84), 4)
    play(memory, CAPACITY // STREAMS, 1)
    memory.renew_background()
    if share == "nothing in common":  # as where the vote was on other scenes
        background(memory).add_(1)
        memory.background.note(np.arange(memory.num_rows), memory.background._frames)  # type: ignore
    rows = torch.from_numpy(memory.transition_rows()[:96])
    student = Student(StudentArchitecture((4, 84, 84), 4, (8, 8, 8), (16,)), 0)
    drawn, whole = memory.draw(rows).inputs, memory.gather(rows).inputs
    plan = student.background_plan(drawn)
    assert plan is student.background_plan(drawn)  # made once, for a group's students too
    assert (plan is None) == (share == "nothing in common")
    gradients = []
    for inputs in (drawn, whole):
        student.zero_grad()
        outputs = student(inputs)
        (outputs.logits.square().sum() + outputs.values.sum()).backward()
        gradients.append({name: p.grad.clone() for name, p in student.named_parameters()})
    for name, gradient in gradients[1].items():
        assert (gradients[0][name] - gradient).norm() <= 1e-4 * gradient.norm(), name


@pytest.mark.skipif(sys.platform != "linux", reason="wants files with holes, and without names")
def test_blocks_beyond_32_bits_are_found(tmp_path: Path) -> None:
    """5 million frames, 35 GB: a file with holes, of which three frames are written."""
    count = 5_000_000
    frames = torch.from_numpy(
        np.memmap(tmp_path / "frames", np.uint8, "w+", shape=(count, *BLOCKED_FRAME))
    )
    assert count * 441 > 2**31
    (tmp_path / "frames").unlink()  # nobody shall copy it, holes and all
    frames[-1, 20, 20] = 7
    stack = torch.full((64, 4), count - 2, dtype=torch.int32)
    stack[5, 3] = count - 1
    differs = torch.zeros(64, 441, dtype=torch.bool)
    differs[5, 440] = True
    nothing = torch.zeros(441, 16, dtype=torch.uint8)
    shared = SharedFrames(frames, stack, differs, nothing)
    student = Student(StudentArchitecture((4, 84, 84), 4, (8, 8, 8), (16,)), 0)
    assert plan_of(shared, student.layer("conv1").weight) is not None
    with torch.no_grad():  # the ordinary convolutions, of whole observations
        plain = student(shared.stacked)
    assert not torch.allclose(plain.logits[5], plain.logits[4])
    torch.testing.assert_close(student(shared).logits, plain.logits, rtol=1e-4, atol=1e-6)
