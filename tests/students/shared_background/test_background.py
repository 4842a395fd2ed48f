"""What a memory's frames have in common: known for every draw, whatever was added since."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qpd.actions import Discrete
from qpd.environments.transition import TransitionBatch
from qpd.replay.memory import BLOCKED_FRAME, ReplayMemory
from qpd.students import Student, StudentArchitecture
from qpd.students.shared_background import MultipliedBlocks, SharedFrames
from qpd.students.shared_background import background as background_module
from qpd.students.shared_background.background import (
    VOTERS,
    _voters,
    differing_blocks,
    most_frequent,
    packed,
    unpacked,
)

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
    assert memory.background.pixels is not None
    return memory.background.pixels


def assert_draws_are_right(memory: ReplayMemory) -> None:
    rows = torch.from_numpy(memory.transition_rows())
    whole, drawn = memory.gather(rows), memory.start_drawing(shared=True)(rows)
    assert isinstance(drawn.inputs, SharedFrames)
    assert torch.equal(drawn.observations, whole.observations)
    assert torch.equal(drawn.labels, whole.labels)
    blocks = whole.observations.view(len(rows), 4, 441, 16)
    differs = (blocks != background(memory)).any(-1).any(1)
    assert torch.equal(drawn.inputs.differs, differs)
    assert 0 < differs.sum() < differs.numel()


def test_draws_tell_what_differs_whenever_it_was_added(tmp_path: Path) -> None:
    memory = ReplayMemory(
        CAPACITY, STREAMS, (4, 84, 84), 4, Discrete(4), tmp_path / "frames", spare=30
    )
    play(memory, 40, 1)
    rows = torch.from_numpy(memory.transition_rows())
    assert isinstance(memory.start_drawing(shared=False)(rows).inputs, Tensor)
    assert memory.background.pixels is None  # nobody has asked for a vote
    assert_draws_are_right(memory)
    for seed in range(2, 8):  # around the ring, more than once
        play(memory, 25, seed)
        assert_draws_are_right(memory)


def test_what_an_epoch_draws_is_right_while_others_are_added(tmp_path: Path) -> None:
    memory = ReplayMemory(
        CAPACITY, STREAMS, (4, 84, 84), 4, Discrete(4), tmp_path / "frames", spare=40
    )
    play(memory, 90, 1)
    memory.start_drawing(shared=True)
    play(memory, 10, 2)
    rows = torch.from_numpy(memory.transition_rows())
    draw = memory.start_drawing(shared=True)
    before = draw(rows)
    assert isinstance(before.inputs, SharedFrames)
    observations, differs = before.observations, before.inputs.differs
    play(memory, 10, 3, scene_seed=1)  # into spare rows
    after = draw(rows)
    assert isinstance(after.inputs, SharedFrames)
    assert torch.equal(after.observations, observations)
    assert torch.equal(after.inputs.differs, differs)
    assert_draws_are_right(memory)


def test_between_votes_only_new_frames_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ReplayMemory(CAPACITY, STREAMS, (4, 84, 84), 4, Discrete(4))
    play(memory, CAPACITY // STREAMS, 1)
    memory.start_drawing(shared=True)
    compared: list[int] = []

    def counted(frames: Tensor, pixels: Tensor) -> Tensor:
        compared.append(len(frames))
        return differing_blocks(frames, pixels)

    monkeypatch.setattr(background_module, "differing_blocks", counted)
    play(memory, 10, 2)
    memory.start_drawing(shared=True)
    memory.start_drawing(shared=True)  # nothing new
    assert sum(compared) == 10 * STREAMS


def test_there_is_a_vote_once_the_memory_is_another(tmp_path: Path) -> None:
    memory = ReplayMemory(CAPACITY, STREAMS, (4, 84, 84), 4, Discrete(4))
    memory.start_drawing(shared=True)  # nothing to vote on
    play(memory, CAPACITY // STREAMS, 1)
    memory.start_drawing(shared=True)
    before = background(memory)
    play(memory, CAPACITY // STREAMS - 1, 2, scene_seed=1)  # all but 4 transitions are others now
    memory.start_drawing(shared=True)
    assert background(memory) is before
    play(memory, 1, 3, scene_seed=1)
    memory.start_drawing(shared=True)
    assert not torch.equal(background(memory), before)
    assert_draws_are_right(memory)


def test_a_restored_memory_draws_and_votes_like_one_never_interrupted(tmp_path: Path) -> None:
    def filled(file: Path | None) -> ReplayMemory:
        memory = ReplayMemory(CAPACITY, STREAMS, (4, 84, 84), 4, Discrete(4), file)
        play(memory, CAPACITY // STREAMS, 1)
        memory.start_drawing(shared=True)
        play(memory, 40, 2)
        return memory

    twin, memory = filled(None), filled(tmp_path / "frames")
    state = {name: tensor.clone() for name, tensor in memory.state_dict().items()}
    del memory
    restored = ReplayMemory(CAPACITY, STREAMS, (4, 84, 84), 4, Discrete(4), tmp_path / "frames")
    restored.load_state_dict(state)
    for one in (restored, twin):
        assert_draws_are_right(one)
    assert torch.equal(background(restored), background(twin))
    for one in (restored, twin):
        play(one, 40, 3, scene_seed=1)  # 80 steps since the vote: it is due
        assert_draws_are_right(one)
    assert torch.equal(background(restored), background(twin))


def test_a_checkpoint_from_before_there_were_backgrounds_is_read(tmp_path: Path) -> None:
    memory = ReplayMemory(CAPACITY, STREAMS, (4, 84, 84), 4, Discrete(4), tmp_path / "frames")
    play(memory, CAPACITY // STREAMS, 1)
    state = {name: tensor.clone() for name, tensor in memory.state_dict().items()}
    assert "background" not in state
    memory.load_state_dict(state)
    assert_draws_are_right(memory)


def test_vectors_have_no_background() -> None:
    memory = ReplayMemory(20, 1, (3,), 1, Discrete(2))
    none = np.zeros(1, np.int64)
    observation = np.ones((1, 3), np.float32)
    memory.add(TransitionBatch(observation, none, none, torch.zeros(1, 2), torch.zeros(1)))
    sample = memory.start_drawing(shared=True)(torch.tensor([1]))
    assert memory.multiplied_blocks(64) is None
    assert torch.equal(sample.observations, torch.ones(1, 3))


@pytest.mark.parametrize("share", ["much in common", "nothing in common"])
def test_a_student_learns_the_same_from_a_draw(share: str) -> None:
    memory = ReplayMemory(CAPACITY, STREAMS, (4, 84, 84), 4, Discrete(4))
    play(memory, CAPACITY // STREAMS, 1)
    draw = memory.start_drawing(shared=True)
    if share == "nothing in common":  # as where the vote was on other scenes
        background(memory).add_(1)
        memory.background.load_state_dict(memory.state_dict())
        draw = memory.start_drawing(shared=True)
    rows = torch.from_numpy(memory.transition_rows()[:96])
    student = Student(StudentArchitecture((4, 84, 84), 4, (8, 8, 8), (16,)), 0)
    drawn, whole = draw(rows).inputs, memory.gather(rows).inputs
    assert isinstance(drawn, SharedFrames)
    assert drawn.plan is drawn.plan  # made once, for a group's students too
    assert (drawn.plan is None) == (share == "nothing in common")
    gradients = []
    for inputs in (drawn, whole):
        student.zero_grad()
        outputs = student(inputs)
        (outputs.actor.square().sum() + outputs.values.sum()).backward()
        gradients.append({name: p.grad.clone() for name, p in student.named_parameters()})
    for name, gradient in gradients[1].items():
        assert (gradients[0][name] - gradient).norm() <= 1e-4 * gradient.norm(), name


def test_a_memory_tells_what_its_batches_multiply() -> None:
    memory = ReplayMemory(CAPACITY, STREAMS, (4, 84, 84), 4, Discrete(4))
    play(memory, CAPACITY // STREAMS, 1)
    assert memory.multiplied_blocks(96) is None  # nobody has voted: no draws were shared
    draw = memory.start_drawing(shared=True)
    drawn = draw(memory.shuffled(96, np.random.default_rng(0))[0]).inputs
    assert isinstance(drawn, SharedFrames) and drawn.plan is not None
    blocks = memory.multiplied_blocks(96)
    assert blocks == drawn.plan.multiplied
    assert blocks is not None and 0 < blocks.conv1 < blocks.conv2 < 1
    assert memory.multiplied_blocks(63) is None  # too few to share anything
    play(memory, CAPACITY // STREAMS, 2, scene_seed=1)  # another game, and no vote on it yet
    assert memory.multiplied_blocks(96) == MultipliedBlocks(1.0, 1.0)
    assert str(memory.multiplied_blocks(96)) == "none, observations have too little in common"


@given(st.integers(1, 600_000))
def test_voters_are_spread_evenly(count: int) -> None:
    wanted = np.linspace(0, count - 1, VOTERS).astype(np.int64)
    assert _voters(count).tolist() == wanted.tolist()


@given(st.integers(0, 9), st.integers(0, 99), st.sampled_from([0.0, 0.2, 1.0]))
def test_differences_are_kept_in_bits(count: int, seed: int, share: float) -> None:
    differs = torch.rand(count, 441, generator=torch.Generator().manual_seed(seed)) < share
    bits = packed(differs)
    assert bits.shape == (count, 56) and bits.dtype == torch.uint8
    assert torch.equal(unpacked(bits), differs)


def test_the_background_is_what_is_seen_most_often() -> None:
    frames = torch.zeros(27, 21, 21, 16, dtype=torch.uint8)
    frames[::3, 3, 4] = 7  # one of each three neighbours
    frames[:, 5, 6] = 8
    frames[9:18, 5, 6] = 0
    background = most_frequent(frames)
    assert background[3 * 21 + 4].tolist() == [0] * 16
    assert background[5 * 21 + 6].tolist() == [8] * 16
    assert background.sum() == 16 * 8
    differing = differing_blocks(frames, background)
    assert differing.sum() == 9 + 9


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
    assert shared.plan is not None
    with torch.no_grad():
        plain = student(shared.stacked)
    assert not torch.allclose(plain.actor[5], plain.actor[4])
    torch.testing.assert_close(student(shared).actor, plain.actor, rtol=1e-4, atol=1e-6)
