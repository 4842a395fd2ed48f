"""Students of one stream, updated together: as one by one, and on a GPU as kernel by kernel."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from qpd.actions import Discrete
from qpd.environments.transition import TransitionBatch
from qpd.quantization.config import QuantizationConfig
from qpd.quantization.quantized_student import QuantizedStudent
from qpd.recipe.training_phases import DistillSettings, FinetuneSettings
from qpd.replay.memory import ReplayMemory
from qpd.students import Student, architecture_for
from qpd.training.optimizer import make_optimizer
from qpd.training.plan import PhasePlan
from qpd.training.step import TrainStep
from qpd.training.updates import Updates

torch.set_num_threads(1)
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    ),
]
CAPACITY, BATCH, STREAMS = 360, 32, 4  # eleven whole batches and one of 8


def never() -> Any:
    raise AssertionError("an update does not play")


def filled_memory(device: str) -> ReplayMemory:
    rng = np.random.default_rng(0)
    memory = ReplayMemory(
        CAPACITY, STREAMS, (4, 84, 84), 4, Discrete(4), device=torch.device(device)
    )
    ages, streams = np.full(STREAMS, 3), np.arange(STREAMS)
    while memory.num_added < CAPACITY:
        frames = rng.integers(0, 256, (STREAMS, 4, 84, 84), dtype=np.uint8)
        labels = torch.from_numpy(rng.normal(size=(STREAMS, 4)).astype(np.float32))
        memory.add(TransitionBatch(frames, ages, streams, labels, labels[:, 0]))
    return memory


def students(kind: str, count: int, device: str) -> list[torch.nn.Module]:
    made: list[torch.nn.Module] = []
    for seed in range(count):
        module: torch.nn.Module = Student(architecture_for("XXS", (4, 84, 84), 4), seed)
        if kind == "finetune":
            module = QuantizedStudent(module, QuantizationConfig(learned_ranges=True))
            module.activation_ranges.data.fill_(2.0)
        made.append(module.to(device))
    return made


def steps_of(kind: str, modules: list[torch.nn.Module], compile_: str) -> list[TrainStep]:
    made = []
    for module in modules:
        settings: Any = DistillSettings(precision="fp32", compile=compile_, max_grad_norm=1.0)
        if kind == "finetune":
            settings = FinetuneSettings(precision="fp32", compile=compile_)
        plan = PhasePlan(
            "distill", settings, Discrete(4), 0.5, 3.0, 1.0, 1, never, never, "divergence"
        )
        if isinstance(module, QuantizedStudent):
            plan = replace(plan, after_update=module.keep_ranges_positive)
        made.append(TrainStep(plan, module, make_optimizer(module, settings, 3.0)))
    return made


def trained(kind: str, modules: list[torch.nn.Module], memory: ReplayMemory, how: str) -> Any:
    """Return the losses `[updates, students, 3]` of two epochs at falling rates, with a rollback
    between; `how` is the recipe's compile.
    """
    steps, rng, losses = steps_of(kind, modules, how), np.random.default_rng(1), []
    updates = Updates(steps)
    for epoch in range(2):
        updates.begin_epoch(range(len(steps)), memory.start_drawing(shared=False))
        for number, rows in enumerate(memory.shuffled(BATCH, rng)):
            for step in steps:
                for group in step.optimizer.param_groups:
                    group["lr"] = 1e-3 / (1 + epoch + number)
            losses.append(torch.stack(updates(rows)).cpu())
        for step in steps:  # as a rollback does: other tensors from here on
            step.optimizer.load_state_dict(copy.deepcopy(step.optimizer.state_dict()))
    return torch.stack(losses)


@pytest.mark.parametrize("kind", ["distill", "finetune"])
@pytest.mark.parametrize("device", DEVICES)
def test_students_of_a_stream_learn_as_each_does_alone(kind: str, device: str) -> None:
    memory, together = filled_memory(device), students(kind, 2, device)
    apart = [copy.deepcopy(one) for one in together]
    found = trained(kind, together, memory, "auto")
    wanted = torch.cat([trained(kind, [one], memory, "off") for one in apart], dim=1)
    # A GPU adds in any order, after which a level may round the other way.
    tolerance = {"cpu": 0.0, "cuda": 2e-2 if kind == "finetune" else 2e-3}[device]
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    for one, other in zip(together, apart, strict=True):
        for name, weight in one.state_dict().items():
            torch.testing.assert_close(
                weight, other.state_dict()[name], rtol=tolerance, atol=tolerance
            )
    assert found[-1, 0, 0] < found[0, 0, 0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_updates_by_a_graph() -> None:
    memory, modules = filled_memory("cuda"), students("distill", 1, "cuda")
    updates = Updates(steps_of("distill", modules, "auto"))
    updates.begin_epoch([0], memory.start_drawing(shared=False))
    rows = memory.shuffled(BATCH, np.random.default_rng(0))[0]
    before = [updates(rows)[0].clone() for _ in range(4)]
    first = updates(rows)[0]
    assert updates(rows)[0].data_ptr() == first.data_ptr()  # the graph's own
    assert first[0] < before[0][0]
