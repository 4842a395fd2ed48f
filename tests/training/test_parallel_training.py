"""Training in several processes: the same gradients, no process left behind, the same run."""

from __future__ import annotations

import copy
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qpd.environments.registry import make_vector_env
from qpd.environments.transition import TransitionBatch
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.recipe.phase_settings import (
    DistillSettings,
    FinetuneSettings,
    RewardSettings,
    TrainingPhase,
)
from qpd.replay.memory import ReplayMemory
from qpd.students import Student, architecture_for
from qpd.training.parallel.part import LEAST, part_sizes
from qpd.training.parallel.processes import ProcessLostError, num_processes
from qpd.training.parallel.processes import _environment as worker_environment
from qpd.training.plan import PhasePlan
from qpd.training.state import PhaseState, make_optimizer
from qpd.training.updates import Updates

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes are handed sockets")

SIZE = 3 * LEAST  # every process of three has a part
ROWS = 2 * SIZE + 10  # two batches, and one too small to be shared


def fill(memory: ReplayMemory, steps: int) -> None:
    """Random play of real Breakout, and labels that have nothing to do with it."""
    env = make_vector_env("BreakoutNoFrameskip-v4", 8, num_threads=1)
    env.reset(3)
    rng, labels = np.random.default_rng(0), torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = np.flatnonzero(env.acting)
        logits = 3 * torch.randn(len(rows), 4, generator=labels)
        values = torch.randn(len(rows), generator=labels)
        observations, ages = env.observations[rows].copy(), env.age[rows].copy()
        memory.add(TransitionBatch(observations, ages, rows, logits, values))
        env.step(rng.integers(0, 4, 8))
    env.close()


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    """There are never more processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> ReplayMemory:
    memory = ReplayMemory(ROWS, 8, (4, 84, 84), 4, tmp_path_factory.mktemp("memory") / "frames")
    fill(memory, ROWS // 8 + 20)
    assert len(memory) == ROWS
    return memory


def never() -> Any:
    raise AssertionError("nobody plays here")


def student(size: str, quantized: bool) -> nn.Module:
    module = Student(architecture_for(size, (4, 84, 84), 4), 0)
    if not quantized:
        return module
    simulation = QuantizedStudent(module, QuantizationConfig(learned_ranges=True))
    simulation.activation_ranges.data.fill_(2.0)
    return simulation


def members(
    modules: list[nn.Module], settings: TrainingPhase
) -> list[tuple[PhasePlan, PhaseState]]:
    plan = PhasePlan("distill", settings, 3.0, 1.0, 1, never, never)
    return [
        (plan, PhaseState(m, make_optimizer(m, settings, 3.0), np.random.default_rng(0)))
        for m in modules
    ]


def epoch(updates: Updates, memory: ReplayMemory, active: list[int]) -> torch.Tensor:
    """Losses `[batches, students, 3]` of an epoch over the whole memory."""
    assert all(part_sizes(SIZE, 2)) and all(part_sizes(SIZE, 3))
    batches = memory.shuffled(SIZE, np.random.default_rng(1))
    losses = []
    with updates.epoch(active, batches):
        for rows in batches:
            sample = updates.draw(rows)
            losses.append(torch.stack([updates.step(i, sample, len(rows)) for i in active]))
    return torch.stack(losses)


@pytest.mark.parametrize(
    ("quantized", "changes", "processes"),
    [
        (False, {"actor_weight": 0.5}, 2),
        (False, {"actor_weight": 1.0, "loss": "reverse_kl"}, 2),
        (True, {"actor_weight": 0.3, "max_grad_norm": 0.5}, 3),
    ],
)
def test_several_processes_take_the_step_that_one_takes(
    memory: ReplayMemory, quantized: bool, changes: dict[str, Any], processes: int
) -> None:
    """Up to the order of the sums in float32. SGD: Adam would hide the gradients' size."""
    kind: type[TrainingPhase] = FinetuneSettings if quantized else DistillSettings
    common: dict[str, Any] = {"precision": "fp32", "optimizer": "sgd", "lr": 0.03, **changes}
    alone, split = student("XXS", quantized), student("XXS", quantized)
    before = copy.deepcopy(alone.state_dict())
    with closing(Updates(members([alone], kind(processes=1, **common)), memory)) as updates:
        expected = epoch(updates, memory, [0])
    with closing(Updates(members([split], kind(processes=processes, **common)), memory)) as updates:
        found = epoch(updates, memory, [0])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for name, tensor in alone.state_dict().items():
        moved, wanted = split.state_dict()[name] - before[name], tensor - before[name]
        if not quantized and changes["actor_weight"] == 1.0 and name.startswith("critic"):
            assert not wanted.any() and not moved.any()
        else:
            assert wanted.any(), name
            assert (moved - wanted).norm() < 2e-3 * wanted.norm(), name


def test_students_of_a_group_train_in_the_same_processes(memory: ReplayMemory) -> None:
    """One of three pauses in the second epoch; all end as they would alone."""
    settings = DistillSettings(precision="fp32", processes=2, lr=1e-4)
    sizes = ["XXS", "XS", "XXS"]
    group = [student(size, False) for size in sizes]
    with closing(Updates(members(group, settings), memory)) as updates:
        epoch(updates, memory, [0, 1, 2])
        epoch(updates, memory, [0, 2])
    for index, size in enumerate(sizes):
        alone = student(size, False)
        with closing(Updates(members([alone], settings), memory)) as updates:
            for _ in range(1 if index == 1 else 2):
                epoch(updates, memory, [0])
        for name, tensor in alone.state_dict().items():
            assert torch.equal(group[index].state_dict()[name], tensor), (index, name)


def test_a_lost_process_ends_training_with_one_line(memory: ReplayMemory) -> None:
    module = student("XXS", False)
    settings = DistillSettings(processes=2)
    with closing(Updates(members([module], settings), memory)) as updates:
        epoch(updates, memory, [0])
        (process,) = updates._processes._processes  # type: ignore[union-attr]
        process.kill()
        with pytest.raises(ProcessLostError, match=r"^a training process was ended by signal 9: "):
            epoch(updates, memory, [0])
    assert all(parameter.isfinite().all() for parameter in module.parameters())


def test_no_process_outlives_the_first(memory: ReplayMemory) -> None:
    """Killed by `kill -9`, it can say nothing to the others."""
    program = (
        "import time, torch\n"
        "from tests.test_parallel_training import *\n"
        "from pathlib import Path\n"
        "torch.set_num_threads(3)\n"
        "memory = ReplayMemory(410, 8, (4, 84, 84), 4, Path(r'FILE'))\n"
        "fill(memory, 72)\n"
        "group = members([student('XXS', False)], DistillSettings(processes=3))\n"
        "updates = Updates(group, memory)\n"
        "epoch(updates, memory, [0])\n"
        "print(*[p.pid for p in updates._processes._processes], flush=True)\n"
        "while True: epoch(updates, memory, [0])\n"
    ).replace("FILE", f"{memory.frame_file}-other")
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as first:
        assert first.stdout is not None
        others = [int(number) for number in first.stdout.readline().split()]
        assert len(others) == 2 and all(map(runs, others))
        first.kill()
    until = time.monotonic() + 30
    while any(map(runs, others)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(runs, others))


def runs(pid: int) -> bool:
    """Whether the process exists and is not a zombie that nobody waits for."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return sys.platform != "linux"


@pytest.mark.parametrize("size", [1, 64, 135, 136, 137, 256, 257, 1000])
@pytest.mark.parametrize("processes", [2, 3, 7])
def test_parts_are_the_whole_and_none_is_small(size: int, processes: int) -> None:
    parts = part_sizes(size, processes)
    assert len(parts) == processes and sum(parts) == size
    assert parts[0] == size or min(parts) >= 64
    if parts[0] != size:
        assert parts[0] <= min(parts[1:]) and max(parts[1:]) - min(parts[1:]) <= 1


ORDINARY = {
    "background": "some",
    "device": torch.device("cpu"),
    "frame_file": Path("frames"),
    "capacity": 10_000,
}


@pytest.mark.parametrize(
    ("changes", "memory_changes", "expected"),
    [
        ({"epochs": 600}, {}, 2),  # a batch of 256 is two of 128
        ({"epochs": 600, "batch_size": 1024}, {}, 3),  # as many as threads
        ({"epochs": 600, "batch_size": 128}, {}, 1),
        ({"epochs": 39}, {}, 1),  # 390,000 samples: over before it pays
        ({"epochs": 600, "samples_per_epoch": 500}, {}, 1),
        ({"epochs": 1, "processes": 2}, {}, 2),  # as the recipe says
        ({"epochs": 600, "batch_size": 1024, "processes": 8}, {}, 3),  # but no more than threads
        ({"epochs": 600, "batch_size": 3 * LEAST - 1, "processes": 3}, {}, 2),  # no small parts
        ({"epochs": 600, "processes": 1}, {}, 1),
        ({"epochs": 600, "compile": "on"}, {}, 1),
        ({"epochs": 600, "processes": 2}, {"background": None}, 1),
        ({"epochs": 600, "processes": 2}, {"device": torch.device("cuda")}, 1),
        ({"epochs": 600, "processes": 2}, {"frame_file": None}, 1),
        ({"epochs": 600, "processes": 2, "reward": RewardSettings()}, {}, 1),
    ],
)
def test_how_many_processes_train(
    changes: dict[str, Any], memory_changes: dict[str, Any], expected: int
) -> None:
    reward = changes.pop("reward", None)
    plan = PhasePlan("x", DistillSettings(**changes), 3.0, 1.0, 1, never, never, reward)
    memory: Any = SimpleNamespace(**(ORDINARY | memory_changes))
    assert num_processes(plan, [student("XXS", False)], memory) == expected


@pytest.mark.parametrize(("size", "expected"), [("M", 2), ("L", 1)])
def test_large_students_train_in_one_process(size: str, expected: int) -> None:
    plan = PhasePlan("x", DistillSettings(), 3.0, 1.0, 1, never, never)
    memory: Any = SimpleNamespace(**ORDINARY)
    modules = [student("XXS", False), student(size, False)]
    assert num_processes(plan, modules, memory) == expected


def test_ctrl_c_is_for_the_first_process_alone(memory: ReplayMemory) -> None:
    """The terminal sends it to all; the others go on until they are told."""
    with closing(
        Updates(members([student("XXS", False)], DistillSettings(processes=2)), memory)
    ) as updates:
        (process,) = updates._processes._processes  # type: ignore[union-attr]
        process.send_signal(signal.SIGINT)
        losses = epoch(updates, memory, [0])
        process.send_signal(signal.SIGINT)
        assert epoch(updates, memory, [0])[-1, 0, 0] < losses[0, 0, 0]
    assert process.returncode == 0


def test_without_files_in_memory_one_on_the_disk_does(
    memory: ReplayMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS."""
    settings = DistillSettings(precision="fp32", processes=2)
    results = []
    for has_them in (True, False):
        if not has_them:
            monkeypatch.delattr(os, "memfd_create", raising=False)
        with closing(Updates(members([student("XXS", False)], settings), memory)) as updates:
            results.append(epoch(updates, memory, [0]))
    assert torch.equal(*results)


def test_a_message_cut_off_is_the_end_and_no_traceback(tmp_path: Path) -> None:
    """Ctrl-C while the first process sends megabytes to one that is still importing PyTorch."""
    (tmp_path / "torch.py").write_text("raise SystemExit('no library')")
    own, others = socket.socketpair()
    with (
        own,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "qpd.training.parallel.worker", str(others.fileno()), "0"],
            pass_fds=[others.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=worker_environment(1),
            cwd=tmp_path,
        ) as process,
    ):
        others.close()
        own.sendall(struct.pack("!i", 1000) + b"half of it")
        own.close()
        printed, _ = process.communicate(timeout=60)
    assert (process.returncode, printed) == (0, b"")


def test_what_ends_a_worker_by_itself_is_not_called_a_signal(
    memory: ReplayMemory, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = student("XXS", False)
    group = members([broken], DistillSettings(processes=2))
    with closing(Updates(group, memory)) as updates:
        rows = torch.arange(1, SIZE + 1)
        updates._processes._part = lambda *_: "no epoch"  # type: ignore
        with pytest.raises(ProcessLostError, match=r"failed \(exit code 1\), see its traceback"):
            with updates.epoch([0], [rows]):
                updates.step(0, memory.gather(torch.arange(1, 97)), SIZE)
    assert "AttributeError" in capfd.readouterr().err
