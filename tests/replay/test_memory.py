"""The rolling replay against a plain list of whole observations."""

from __future__ import annotations

import errno
import resource
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qpd.actions import Discrete
from qpd.environments.registry import make_vector_env
from qpd.environments.transition import TransitionBatch
from qpd.replay.memory import ReplayMemory
from qpd.replay.sample import ReplaySample

torch.set_num_threads(1)

FRAMES = (4, 84, 84)
ACTIONS = 3


@dataclass(frozen=True)
class Stored:
    """A transition as the naive memory keeps it: the whole stacked observation."""

    observation: np.ndarray
    logits: np.ndarray
    value: float


def stack_of(shape: tuple[int, ...]) -> int:
    """Return the frame stack of an environment with such observations: Atari's, or none."""
    return 4 if shape == FRAMES else 1


class Streams:
    """Random play in `num_envs` environments, with random ends of episodes and forced steps."""

    def __init__(self, num_envs: int, seed: int, shape: tuple[int, ...] = FRAMES) -> None:
        self.rng = np.random.default_rng(seed)
        self.num_envs, self.shape = num_envs, shape
        self.age = np.zeros(num_envs, np.int64)
        self.stacks = np.zeros((num_envs, *shape), np.uint8)
        self.count = 0

    def step(self, end: float = 0.2) -> tuple[TransitionBatch, list[Stored]]:
        """One vector step: who acts gets a new frame; who has just ended may miss some steps."""
        fresh = self.rng.random(self.num_envs) < end
        self.age[fresh] = 0
        missing = fresh & (self.rng.random(self.num_envs) < 0.5)
        rows = np.flatnonzero(~missing)
        for row in rows:
            if self.age[row] == 0:
                self.stacks[row] = 0
            self.stacks[row, :-1] = self.stacks[row, 1:]
            self.stacks[row, -1] = self.rng.integers(1, 256, self.shape[1:], dtype=np.uint8)
        count = len(rows)
        ids = self.count + np.arange(count)
        self.count += count
        logits = self.rng.normal(size=(count, ACTIONS)).astype(np.float32)
        ages = np.minimum(self.age[rows], 3)  # capped, as the environments cap it
        batch = TransitionBatch(
            self.stacks[rows].copy(),
            ages,
            rows,
            torch.from_numpy(logits),
            torch.from_numpy(ids * 1.0).float(),
        )
        self.age[rows] += 1
        self.age[missing] = 0
        stored = zip(batch.observations, logits, ids, strict=True)
        return batch, [Stored(o.copy(), x, float(i)) for o, x, i in stored]


def ordinary(blocked: Tensor) -> np.ndarray:
    """`[batch, 4, 21, 21, 16]` -> `[batch, 4, 84, 84]`: channel 4 i + j is pixel (i, j) of 4x4."""
    patches = blocked.numpy().reshape(*blocked.shape[:2], 21, 21, 4, 4)
    return patches.transpose(0, 1, 2, 4, 3, 5).reshape(*blocked.shape[:2], 84, 84)


def assert_holds(sample: ReplaySample, expected: list[Stored]) -> None:
    """The sample is these transitions, in this order."""
    assert sample.values.tolist() == [stored.value for stored in expected]
    if not expected:
        return
    np.testing.assert_array_equal(sample.labels, np.array([s.logits for s in expected]))
    observations = sample.observations
    images = ordinary(observations) if observations.dim() == 5 else observations.numpy()
    np.testing.assert_array_equal(images, np.array([s.observation for s in expected]))


def everything(memory: ReplayMemory) -> ReplaySample:
    return memory.gather(torch.from_numpy(memory.transition_rows()))


@settings(max_examples=40, deadline=None)
@given(
    num_envs=st.integers(1, 5),
    spare=st.integers(0, 40),
    num_steps=st.integers(1, 40),
    end=st.sampled_from([0.0, 0.1, 0.5]),
    seed=st.integers(0, 2**31),
)
def test_stacks_equal_those_of_a_naive_memory(
    num_envs: int, spare: int, num_steps: int, end: float, seed: int
) -> None:
    capacity = num_envs + spare
    memory = ReplayMemory(capacity, num_envs, FRAMES, 4, Discrete(ACTIONS))
    streams, naive = Streams(num_envs, seed), []
    for step in range(num_steps):
        batch, stored = streams.step(end)
        memory.add(batch)
        naive = (naive + stored)[-capacity:]  # the oldest is evicted first
        assert len(memory) == len(naive) <= capacity
        if step % 7 == 0 or step == num_steps - 1:
            assert_holds(everything(memory), naive)


@pytest.mark.parametrize("shape", [FRAMES, (4,)])
def test_an_epoch_draws_every_transition_once_in_random_order(shape: tuple[int, ...]) -> None:
    memory = ReplayMemory(100, 4, shape, stack_of(shape), Discrete(ACTIONS))
    fill_with_ids(memory, 130, shape)
    orders = []
    for seed in (1, 1, 2):
        shuffled = memory.shuffled(32, np.random.default_rng(seed))
        batches = [memory.gather(rows) for rows in shuffled]
        assert [len(batch.values) for batch in batches] == [32, 32, 32, 4]
        orders.append([v for batch in batches for v in batch.values.tolist()])
    assert sorted(orders[0]) == list(range(30, 130))
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])
    part = [memory.gather(rows) for rows in memory.shuffled(32, np.random.default_rng(1), 50)]
    assert [value for batch in part for value in batch.values.tolist()] == orders[0][:50]


@pytest.mark.parametrize("shape", [FRAMES, (4,)])
def test_a_copy_on_a_device_gives_the_same_and_is_restored(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    device = torch.device("cpu:0")  # not the plain CPU: the memory keeps a copy there
    plain = ReplayMemory(100, 4, shape, stack_of(shape), Discrete(ACTIONS))
    copied = ReplayMemory(
        100, 4, shape, stack_of(shape), Discrete(ACTIONS), tmp_path / "a.bin", device=device
    )
    for memory in (plain, copied):
        fill_with_ids(memory, 130, shape)
    restored = ReplayMemory(
        100, 4, shape, stack_of(shape), Discrete(ACTIONS), tmp_path / "a.bin", device=device
    )
    restored.load_state_dict(copied.state_dict())
    rows = torch.from_numpy(plain.transition_rows())
    expected = plain.gather(rows)
    for memory in (copied, restored):
        found = memory.gather(rows)
        assert torch.equal(found.observations, expected.observations)
        assert torch.equal(found.labels, expected.labels)
        assert torch.equal(found.values, expected.values)
        assert memory.value_moments() == plain.value_moments()


def fill_with_ids(memory: ReplayMemory, count: int, shape: tuple[int, ...]) -> None:
    """Transitions whose value is their number, in vector steps of 4 (the last one shorter)."""
    dtype = np.uint8 if len(shape) == 3 else np.float32
    while memory.num_added < count:
        ids = memory.num_added + np.arange(min(4, count - memory.num_added))
        observations = np.broadcast_to(
            ids.reshape(-1, *(1,) * len(shape)) % 251, (len(ids), *shape)
        ).astype(dtype)
        zeros, streams = torch.zeros(len(ids), ACTIONS), np.arange(len(ids))
        values = torch.from_numpy(ids).float()
        memory.add(TransitionBatch(observations, np.zeros_like(streams), streams, zeros, values))


@pytest.mark.parametrize("shape", [FRAMES, (3, 40, 48)])
def test_images_that_are_no_stack_come_back_channel_by_channel(shape: tuple[int, ...]) -> None:
    # Four cameras, or RGB and depth, have the shape of Atari's stack: the environment knows.
    memory, rng, seen = (
        ReplayMemory(20, 3, shape, 1, Discrete(ACTIONS)),
        np.random.default_rng(0),
        [],
    )
    for step in range(9):
        images = rng.integers(0, 256, (3, *shape), dtype=np.uint8)
        zeros = torch.zeros(3, ACTIONS), torch.zeros(3)
        memory.add(TransitionBatch(images, np.full(3, min(step, 3)), np.arange(3), *zeros))
        seen += list(images)
    found = everything(memory).observations.numpy()
    assert found.shape == (20, *shape)
    for channel in range(shape[0]):
        np.testing.assert_array_equal(found[:, channel], np.stack(seen[-20:])[:, channel])


@pytest.mark.parametrize("pixels", [3, 8])
def test_an_image_beside_features_takes_a_byte_a_pixel(pixels: int, tmp_path: Path) -> None:
    rng, shape = np.random.default_rng(0), (pixels + 2,)
    file = tmp_path / "replay.bin"
    memory = ReplayMemory(20, 3, shape, 1, Discrete(ACTIONS), file, pixels=pixels)
    seen: list[np.ndarray] = []
    for step in range(9):
        levels = rng.integers(0, 256, (3, pixels)).astype(np.float32)
        vectors = np.concatenate([levels, rng.normal(size=(3, 2)).astype(np.float32)], 1)
        zeros = torch.zeros(3, ACTIONS), torch.zeros(3)
        memory.add(TransitionBatch(vectors, np.full(3, min(step, 3)), np.arange(3), *zeros))
        seen += list(vectors)
    assert file.stat().st_size == (20 + 1) * (pixels + 8)
    memory.check_frames()
    held = np.stack(seen[-20:])
    np.testing.assert_array_equal(everything(memory).observations.numpy(), held)
    low, high = memory.observation_range()
    assert low.shape == (2,)
    np.testing.assert_allclose(low, held[:, pixels:].min(0), atol=0.02)
    np.testing.assert_allclose(high, held[:, pixels:].max(0), atol=0.02)


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 30), st.integers(1, 25), st.integers(0, 2**31))
def test_vector_observations_are_kept_as_they_are(capacity: int, num_steps: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    memory = ReplayMemory(capacity, 3, (5,), 1, Discrete(ACTIONS))
    naive: list[Stored] = []
    for _ in range(num_steps):
        streams = np.flatnonzero(rng.random(3) < 0.8)
        observations = rng.normal(size=(len(streams), 5)).astype(np.float32)
        logits = rng.normal(size=(len(streams), ACTIONS)).astype(np.float32)
        values = rng.integers(0, 1000, len(streams)).astype(np.float32)
        ages = rng.integers(0, 4, len(streams))
        memory.add(
            TransitionBatch(
                observations, ages, streams, torch.from_numpy(logits), torch.from_numpy(values)
            )
        )
        rows = zip(observations, logits, values, strict=True)
        naive = (naive + [Stored(o, x, float(v)) for o, x, v in rows])[-capacity:]
    if naive:
        assert_holds(everything(memory), naive)
        low, high = memory.observation_range()
        held = np.array([stored.observation for stored in naive])
        # Of so few the range is the whole one, but for a two-thousandth of the gap to the next.
        np.testing.assert_allclose(low, held.min(0), atol=0.02 * np.ptp(held, axis=0).max())
        np.testing.assert_allclose(high, held.max(0), atol=0.02 * np.ptp(held, axis=0).max())
    assert len(memory) == len(naive)


def test_the_range_is_that_of_all_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qpd.replay.memory._RANGE_SAMPLE", 100)
    memory = ReplayMemory(200, 2, (1,), 1, Discrete(ACTIONS))
    both, ages, logits = np.arange(2), np.zeros(2, np.int64), torch.zeros(2, ACTIONS)
    for step in range(100):
        observations = np.array([[0.5], [10.0]], np.float32) * np.sin(step)
        memory.add(TransitionBatch(observations, ages, both, logits, torch.zeros(2)))
    low, high = memory.observation_range()
    assert low[0] < -9.0 and high[0] > 9.0


def test_frames_of_real_breakout_come_back_stacked(tmp_path: Path) -> None:
    env = make_vector_env("BreakoutNoFrameskip-v4", 4, num_threads=1, max_frames=200)
    env.reset(3)
    memory = ReplayMemory(150, 4, FRAMES, 4, Discrete(4), tmp_path / "replay.bin")
    rng, naive, ends = np.random.default_rng(0), [], 0
    for step in range(110):
        rows = np.flatnonzero(env.acting)
        observations, ages = env.observations[rows].copy(), env.age[rows].copy()
        logits, values = torch.randn(len(rows), 4), torch.full((len(rows),), float(step))
        memory.add(TransitionBatch(observations, ages, rows, logits, values))
        kept = zip(observations, logits.numpy(), strict=True)
        naive = (naive + [Stored(o, x, float(step)) for o, x in kept])[-150:]
        ends += int(env.step(rng.integers(0, 4, 4)).game_over.sum())
    env.close()
    assert ends >= 4 and len(naive) == 150
    assert_holds(everything(memory), naive)


@pytest.mark.parametrize("shape", [FRAMES, (4,)])
def test_frame_file_and_state_restore_the_memory(shape: tuple[int, ...], tmp_path: Path) -> None:
    file = tmp_path / "replay.bin"
    memory = ReplayMemory(40, 4, shape, stack_of(shape), Discrete(ACTIONS), file)
    twin = ReplayMemory(40, 4, shape, stack_of(shape), Discrete(ACTIONS))  # never interrupted
    for one in (memory, twin):
        fill_with_ids(one, 71, shape)
    state = {name: tensor.clone() for name, tensor in memory.state_dict().items()}
    del memory
    restored = ReplayMemory(40, 4, shape, stack_of(shape), Discrete(ACTIONS), file)
    restored.load_state_dict(state)
    for one in (restored, twin):
        fill_with_ids(one, 90, shape)
    assert len(restored) == 40
    mine, theirs = everything(restored), everything(twin)
    assert torch.equal(mine.observations, theirs.observations)
    assert torch.equal(mine.labels, theirs.labels) and torch.equal(mine.values, theirs.values)


def test_restored_streams_go_on_within_their_episodes(tmp_path: Path) -> None:
    file = tmp_path / "replay.bin"
    memory, streams = ReplayMemory(30, 3, FRAMES, 4, Discrete(ACTIONS), file), Streams(3, 0)
    naive: list[Stored] = []
    for step in range(25):
        if step == 15:  # in the middle of episodes
            state = {name: tensor.clone() for name, tensor in memory.state_dict().items()}
            memory = ReplayMemory(30, 3, FRAMES, 4, Discrete(ACTIONS), file)
            memory.load_state_dict(state)
        batch, stored = streams.step(end=0.05)
        memory.add(batch)
        naive = (naive + stored)[-30:]
        assert_holds(everything(memory), naive)


def test_a_frame_file_of_another_size_is_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "replay.bin"
    fill_with_ids(ReplayMemory(40, 4, FRAMES, 4, Discrete(ACTIONS), file), 40, FRAMES)
    ReplayMemory(20, 4, FRAMES, 4, Discrete(ACTIONS), file)
    assert not np.fromfile(file, np.uint8).any()


def test_an_empty_step_changes_nothing() -> None:
    memory = ReplayMemory(8, 2, FRAMES, 4, Discrete(ACTIONS))
    none = np.zeros(0, np.int64)
    memory.add(
        TransitionBatch(
            np.zeros((0, *FRAMES), np.uint8), none, none, torch.zeros(0, ACTIONS), torch.zeros(0)
        )
    )
    assert len(memory) == 0


def test_the_papers_memory_takes_4_gigabytes() -> None:
    # 540,000 frames of 7,056 bytes are 3.81 GB, and a refresh's spare tenth 0.38 GB more; labels
    # and a bit for each of a frame's blocks are 108 bytes. Bytes grow linearly with the rows: two
    # small memories tell the rate.
    small, large = (
        ReplayMemory(n, 4, FRAMES, 4, Discrete(4), spare=n // 10).num_bytes for n in (100, 1100)
    )
    per_transition = (large - small) / 1000
    assert per_transition == pytest.approx(1.1 * (7056 + 108))
    assert 3.8e9 < 540_000 * per_transition < 4.3e9


@pytest.mark.parametrize("shape", [FRAMES, (4,)])
def test_spare_rows_keep_what_a_checkpoint_draws(shape: tuple[int, ...], tmp_path: Path) -> None:
    # What a killed process added after the last checkpoint must not show in what it restores.
    file = tmp_path / "replay.bin"
    memory = ReplayMemory(40, 4, shape, stack_of(shape), Discrete(ACTIONS), file, spare=14)
    fill_with_ids(memory, 173, shape)
    state = {name: tensor.clone() for name, tensor in memory.state_dict().items()}
    before = everything(memory)
    fill_with_ids(memory, 173 + 14, shape)
    del memory
    restored = ReplayMemory(40, 4, shape, stack_of(shape), Discrete(ACTIONS), file, spare=14)
    restored.load_state_dict(state)
    after = everything(restored)
    assert torch.equal(after.observations, before.observations)
    assert torch.equal(after.values, before.values)
    assert after.values.tolist() == list(range(133, 173))


@pytest.mark.parametrize(("capacity", "num_envs"), [(0, 1), (4, 0)])
def test_an_empty_memory_is_refused(capacity: int, num_envs: int) -> None:
    with pytest.raises(ValueError, match="replay of"):
        ReplayMemory(capacity, num_envs, FRAMES, 4, Discrete(ACTIONS))


def test_transitions_must_have_one_row_each() -> None:
    rows = np.arange(2)
    with pytest.raises(ValueError, match="one row each is needed"):
        TransitionBatch(np.zeros((2, 4)), rows, rows, torch.zeros(2, 3), torch.zeros(3))


def test_labels_are_those_of_what_is_held() -> None:
    memory = ReplayMemory(2, 1, (4,), 1, Discrete(2))
    none, one = np.zeros((1, 4), np.float32), np.zeros(1, np.int64)
    for age, row in enumerate([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]):
        memory.add(TransitionBatch(none, one + age, one, torch.tensor([row]), torch.zeros(1)))
    assert memory.labels().tolist() == [[2.0, 3.0], [4.0, 5.0]]


def test_rare_extremes_do_not_widen_the_range_of_a_feature() -> None:
    # 4,000 values of -1 to 1, and one far out at each end: an ordinary one of 2,000 may lie beyond.
    memory = ReplayMemory(4002, 1, (2,), 1, Discrete(2))
    values = np.linspace(-1.0, 1.0, 4002)
    values[[0, -1]] = -1e6, 1e9
    rows = np.random.default_rng(0).permutation(values).astype(np.float32)
    one = np.zeros(1, np.int64)
    for row in rows:
        observation = np.array([[row, 0.5 * row]], np.float32)
        memory.add(TransitionBatch(observation, one, one, torch.zeros(1, 2), torch.zeros(1)))
    low, high = memory.observation_range()
    torch.testing.assert_close(low, torch.tensor([-1.0, -0.5]), rtol=0, atol=2e-3)
    torch.testing.assert_close(high, torch.tensor([1.0, 0.5]), rtol=0, atol=2e-3)


def test_a_rare_flag_has_both_its_values() -> None:
    memory = ReplayMemory(3000, 1, (1,), 1, Discrete(2))
    one = np.zeros(1, np.int64)
    for row in range(3000):
        observation = np.array([[float(row != 1000)]], np.float32)
        memory.add(TransitionBatch(observation, one, one, torch.zeros(1, 2), torch.zeros(1)))
    assert [end.tolist() for end in memory.observation_range()] == [[0.0], [1.0]]


def test_a_disk_without_room_is_named_with_the_key(tmp_path: Path) -> None:
    """4 environments and 100 transitions of 7 float32: 28 bytes a row; files may have 1,000."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError) as caught:
            ReplayMemory(100, 4, (7,), 1, Discrete(ACTIONS), tmp_path / "replay.bin")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(tmp_path / "replay.bin")
    assert "the frames of replay.capacity take" in (caught.value.strerror or "")
    assert list(tmp_path.iterdir()) == []
