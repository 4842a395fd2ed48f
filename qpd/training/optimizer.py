"""The optimizer of a training phase, its parameter groups and its learning rate schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from qpd.recipe.training_phases import TrainingPhase

# Of ranges and scales: 1 is slower to learn at 4 bits (`benchmarks.distillation.finetuning`).
QUANTIZER_FACTOR = 3.0


class Adam(torch.optim.Adam):
    """`torch.optim.Adam(fused=True)` to the bit, on a CPU without most of its Python.

    The arithmetic of a small student's update takes some 10 us, and what PyTorch's own step does
    around it ten times as long: a quarter of a compiled step.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the parameters that have gradients."""
        calls = []
        for group in self.param_groups:
            chosen = [each for each in group["params"] if each.grad is not None]
            states = [self.state[each] for each in chosen]
            if not all(states) or not all(each.is_cpu for each in chosen):
                super().step(closure)  # it makes the states of new parameters
                return
            calls.append((group, chosen, states))
        for group, chosen, states in calls:
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1.0)
            torch._fused_adam_(
                chosen,
                [each.grad for each in chosen],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                steps,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )

    step.hooked = True  # type: ignore[attr-defined]  # else PyTorch puts a profiler's hooks around it


def make_optimizer(
    module: nn.Module, settings: TrainingPhase, head_factor: float = 1.0
) -> torch.optim.Optimizer:
    """Make the recipe's optimizer, over all parameters that train.

    The actor head learns at `head_factor` times the learning rate: its logits may be so much larger
    than unit scale (Q-values over a temperature of 0.01), and Adam's steps do not grow with them.
    Ranges and scales of quantizers move by shares of their size (`RelativeSteps`), and do not
    decay.
    """
    groups: dict[str, list[nn.Parameter]] = {"trunk": [], "head": [], "quantizers": []}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            is_quantizer = name.startswith(("activation_ranges", "weight_scales"))
            is_head = "actor" in name.split(".")
            group = "quantizers" if is_quantizer else "head" if is_head else "trunk"
            groups[group].append(parameter)
    options: list[dict[str, Any]] = [
        {"name": "trunk", "params": groups["trunk"], "lr_factor": 1.0},
        {"name": "head", "params": groups["head"], "lr_factor": head_factor},
        {
            "name": "quantizers",
            "params": groups["quantizers"],
            "lr_factor": QUANTIZER_FACTOR,
            "weight_decay": 0.0,
            "is_relative": True,
        },
    ]
    # PyTorch's optimizers refuse empty groups; phase 1 has no quantizers.
    options = [group for group in options if group["params"]]
    common: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    # fused: one kernel for all parameters, instead of several small operations for each.
    if settings.optimizer == "adam":
        return Adam(options, fused=True, **common)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(options, fused=True, **common)
    if settings.optimizer == "rmsprop":
        return torch.optim.RMSprop(options, **common)
    return torch.optim.SGD(options, momentum=0.9, **common)


def learning_rate(settings: TrainingPhase, done: float) -> float:
    """Return the learning rate after a share `done` (0 to 1) of the phase's updates."""
    if settings.lr_schedule == "linear":
        return settings.lr * max(0.0, 1.0 - done)
    if settings.lr_schedule == "cosine":
        return settings.lr * 0.5 * (1.0 + float(np.cos(np.pi * min(done, 1.0))))
    return settings.lr
