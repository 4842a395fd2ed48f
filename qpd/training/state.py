"""What a training phase is made of while it runs, and how it is saved and restored."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qpd.recipe.schema import TrainingPhase


@dataclass
class PhaseState:
    """The trained module, its optimizer and its progress.

    `best` is a copy of the module's parameters at the best validation so far, `best_score` its
    mean return; `stale` counts the validations since. After `rollbacks` (see training_health) the
    learning rate is `lr_scale` times the recipe's; `recent_losses` are those of the last good
    epochs.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    shuffle: np.random.Generator
    epoch: int = 0
    best_score: float = float("-inf")
    best_epoch: int = 0
    stale: int = 0
    best: dict[str, Tensor] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    lr_scale: float = 1.0
    rollbacks: int = 0
    recent_losses: list[float] = field(default_factory=list)

    @property
    def head_factor(self) -> float:
        """How many times as fast as the rest the actor head learns."""
        return float(self._head["lr_factor"])

    @head_factor.setter
    def head_factor(self, factor: float) -> None:
        self._head["lr_factor"] = factor

    @property
    def _head(self) -> dict[str, Any]:
        return next(group for group in self.optimizer.param_groups if group["name"] == "head")

    def keep_if_best(self, score: float) -> None:
        """Compare a validation's mean return with the best one; ties go to the later epoch."""
        self.stale += 1
        if score >= self.best_score or not self.best:
            self.best_score, self.best_epoch, self.stale = score, self.epoch, 0
            self.best = {k: v.detach().clone() for k, v in self.module.state_dict().items()}

    def spend(self, what: str, seconds: float) -> None:
        """Add to the time accounted to `what`."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors, and what JSON can hold."""
        tensors = {f"model.{k}": v for k, v in self.module.state_dict().items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        for index, entry in self.optimizer.state_dict()["state"].items():
            tensors |= {
                f"optimizer.{index}.{k}": v for k, v in entry.items() if isinstance(v, Tensor)
            }
        plain = {
            "epoch": self.epoch,
            "best_score": self.best_score if self.best else None,
            "best_epoch": self.best_epoch,
            "stale": self.stale,
            "seconds": self.seconds,
            "lr_scale": self.lr_scale,
            "head_factor": self.head_factor,
            "rollbacks": self.rollbacks,
            "recent_losses": self.recent_losses,
            "shuffle": json.dumps(self.shuffle.bit_generator.state),
        }
        return tensors, plain

    def load_state_dict(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimizer": {}}
        for name, tensor in tensors.items():
            kind, _, rest = name.partition(".")
            if kind in parts:
                parts[kind][rest] = tensor
        self.module.load_state_dict(parts["model"])
        self.best = parts["best"]
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts["optimizer"].items():
            index, _, key = name.partition(".")
            moments.setdefault(int(index), {})[key] = tensor
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.epoch, self.stale = plain["epoch"], plain["stale"]
        self.best_epoch, self.seconds = plain["best_epoch"], plain["seconds"]
        self.lr_scale, self.rollbacks = plain["lr_scale"], plain["rollbacks"]
        self.head_factor = float(plain["head_factor"])
        self.recent_losses = plain["recent_losses"]
        score = plain["best_score"]
        self.best_score = float("-inf") if score is None else score
        self.shuffle.bit_generator.state = json.loads(plain["shuffle"])


def make_optimizer(
    module: nn.Module, settings: TrainingPhase, head_factor: float = 1.0
) -> torch.optim.Optimizer:
    """The recipe's optimizer over all parameters that train.

    The actor head learns at `head_factor` times the learning rate: its logits may be so much larger
    than unit scale (Q-values over a temperature of 0.01; a temperature folded in), and Adam's steps
    do not grow with them. Ranges and scales of quantizers do not decay.
    """
    groups: dict[str, list[nn.Parameter]] = {"trunk": [], "head": [], "quantizers": []}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            is_quantizer = name.startswith(("activation_ranges", "weight_scales"))
            is_head = "actor" in name.split(".")
            groups["head" if is_head else "quantizers" if is_quantizer else "trunk"].append(
                parameter
            )
    options: list[dict[str, Any]] = [
        {"name": "trunk", "params": groups["trunk"], "lr_factor": 1.0},
        {"name": "head", "params": groups["head"], "lr_factor": head_factor},
        {
            "name": "quantizers",
            "params": groups["quantizers"],
            "lr_factor": 1.0,
            "weight_decay": 0.0,
        },
    ]
    options = [group for group in options if group["params"]]
    common: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    if settings.optimizer == "adam":
        return torch.optim.Adam(options, fused=True, **common)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(options, fused=True, **common)
    if settings.optimizer == "rmsprop":
        return torch.optim.RMSprop(options, **common)
    return torch.optim.SGD(options, momentum=0.9, **common)


def learning_rate(settings: TrainingPhase, done: float) -> float:
    """The learning rate after a share `done` (0 to 1) of the phase's updates."""
    if settings.lr_schedule == "linear":
        return settings.lr * max(0.0, 1.0 - done)
    if settings.lr_schedule == "cosine":
        return settings.lr * 0.5 * (1.0 + float(np.cos(np.pi * min(done, 1.0))))
    return settings.lr
