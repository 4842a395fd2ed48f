"""The state of a training phase: module, optimizer and progress, as checkpoints keep it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qpd.training.gradient_scaling import GradientScaling
from qpd.training.selection import Score, Selection, Validated


@dataclass
class PhaseState:
    """The trained module, its optimizer and its progress.

    `best` is a copy of the module's parameters at the best validation so far, `best_score` what it
    scored, `best_validated` the validation itself, which checkpoints do not hold; `stale` counts
    the validations since. `floor` is the highest lower end of a validation's return: not of the
    best one alone, or returns could sink step by step. After `rollbacks` (`qpd.training.health`)
    the learning rate is `lr_scale` times the recipe's; `recent_losses` are those of the last good
    epochs. `scaling` is there where the loss is scaled or gradients are counted.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    shuffle: np.random.Generator
    epoch: int = 0
    best_score: Score | None = None
    floor: float = -math.inf
    best_epoch: int = 0
    stale: int = 0
    best: dict[str, Tensor] = field(default_factory=dict)
    best_validated: Validated | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    lr_scale: float = 1.0
    rollbacks: int = 0
    recent_losses: list[float] = field(default_factory=list)
    scaling: GradientScaling | None = None

    @property
    def head_factor(self) -> float:
        """Return how many times as fast as the rest the actor head learns."""
        return float(self._head["lr_factor"])

    @head_factor.setter
    def head_factor(self, factor: float) -> None:
        self._head["lr_factor"] = factor

    @property
    def _head(self) -> dict[str, Any]:
        return next(group for group in self.optimizer.param_groups if group["name"] == "head")

    def keep_if_best(
        self, validated: Validated, by: Selection, validate: Callable[[], Validated]
    ) -> None:
        """Compare a validation with the best one (`Score.beats`), and keep the parameters if so.

        `validate` validates the module as it is: after a checkpoint the best one's games are played
        again, as their states are not in it.
        """
        self.stale += 1
        score = Score.of(validated)
        self.floor = max(self.floor, score.low)
        best, mine = self.best_score, score
        if best is not None and by == "divergence":
            mine, best = Score.of_both(validated, self._validated_best(validate))
        if best is None or mine.beats(best, by, self.floor):
            self.best_score, self.best_epoch, self.stale = score, self.epoch, 0
            self.best = self._parameters()
            # Of Atari's frames the states are 116 MB.
            self.best_validated = validated if by == "divergence" else None

    def _validated_best(self, validate: Callable[[], Validated]) -> Validated:
        if self.best_validated is None:
            now = self._parameters()
            self.module.load_state_dict(self.best)
            self.best_validated = validate()
            self.module.load_state_dict(now)
        return self.best_validated

    def _parameters(self) -> dict[str, Tensor]:
        return {k: v.detach().clone() for k, v in self.module.state_dict().items()}

    def has_settled(self, patience: int | None) -> bool:
        """Tell whether as many validations as `patience` have not improved on the best one."""
        return patience is not None and self.stale >= patience

    def add_time(self, what: str, seconds: float) -> None:
        """Add to the time accounted to `what`."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors, and what JSON can hold."""
        tensors = {f"model.{k}": v for k, v in self.module.state_dict().items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        for index, entry in self.optimizer.state_dict()["state"].items():
            tensors |= {
                f"optimizer.{index}.{k}": v for k, v in entry.items() if isinstance(v, Tensor)
            }
        plain = {
            "epoch": self.epoch,
            "best_score": None if self.best_score is None else self.best_score.to_json(),
            "floor": self.floor if math.isfinite(self.floor) else None,
            "best_epoch": self.best_epoch,
            "stale": self.stale,
            "seconds": self.seconds,
            "lr_scale": self.lr_scale,
            "head_factor": self.head_factor,
            "rollbacks": self.rollbacks,
            "recent_losses": self.recent_losses,
            "shuffle": json.dumps(self.shuffle.bit_generator.state),
        }
        if self.scaling is not None:
            plain["scaling"] = self.scaling.to_json()
        return tensors, plain

    def load_state_dict(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
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
        # The groups are this recipe's, not the file's: only moments are taken from a checkpoint.
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.epoch, self.stale = plain["epoch"], plain["stale"]
        self.best_epoch, self.seconds = plain["best_epoch"], plain["seconds"]
        self.lr_scale, self.rollbacks = plain["lr_scale"], plain["rollbacks"]
        self.head_factor = float(plain["head_factor"])
        self.recent_losses = plain["recent_losses"]
        score = plain["best_score"]
        if isinstance(score, int | float):  # a checkpoint from before divergences were measured
            self.best_score = Score(score, score, score)
        else:
            self.best_score = None if score is None else Score.from_json(score)
        floor = plain.get("floor")  # of earlier checkpoints the best one's
        self.floor = -math.inf if floor is None else float(floor)
        if self.best_score is not None:
            self.floor = max(self.floor, self.best_score.low)
        if self.scaling is not None:
            self.scaling.load_json(plain["scaling"])
        self.shuffle.bit_generator.state = json.loads(plain["shuffle"])
