"""Several choices at once: MultiDiscrete and MultiBinary, whose parts are independent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from qpd.actions.acting_rule import ActingRule
from qpd.actions.bernoulli import kl_bernoulli, kl_bernoulli_gradients
from qpd.actions.discrete import Discrete
from qpd.actions.space import ActionSpace


@dataclass(frozen=True)
class MultiDiscrete(ActionSpace):
    """One choice in each of several parts; `nvec` counts each part's actions.

    Outputs are the logits of all parts, one part after the other, as SB3 has them.
    """

    nvec: tuple[int, ...]

    kind: ClassVar[str] = "multi_discrete"

    def __post_init__(self) -> None:
        if not self.nvec or min(self.nvec) < 1:
            raise ValueError(f"parts of {list(self.nvec)} actions: at least 1 each is needed")

    @cached_property
    def parts(self) -> tuple[Discrete, ...]:
        """The parts, each an action of its own."""
        return tuple(Discrete(n) for n in self.nvec)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action: a number for each part."""
        return (len(self.nvec),)

    @property
    def dtype(self) -> np.dtype:
        """Type of an action's numbers."""
        return np.dtype(np.int64)

    @property
    def num_outputs(self) -> int:
        """One for each action of each part."""
        return sum(self.nvec)

    @property
    def temperature(self) -> float | None:
        """3, the QPD paper's."""
        return 3.0

    def __str__(self) -> str:
        return f"{len(self.nvec)} choices among {', '.join(map(str, self.nvec))}"

    def _split(self, outputs: np.ndarray) -> list[np.ndarray]:
        return np.split(outputs, np.cumsum(self.nvec)[:-1], axis=1)

    def act(self, outputs: np.ndarray, rule: ActingRule, rng: np.random.Generator) -> np.ndarray:
        """Choose actions, int64 `[batch, parts]`, by logits `[batch, sum(nvec)]`."""
        # Exploring is one coin for all parts of a row, so the parts must not toss their own.
        own_rule = ActingRule("greedy") if rule.kind == "epsilon" else rule
        chosen = zip(self.parts, self._split(outputs), strict=True)
        best = np.stack([part.act(own, own_rule, rng) for part, own in chosen], axis=1)
        if rule.kind == "epsilon":
            explore = rng.random(len(outputs)) < rule.epsilon
            uniform = rng.integers(self.nvec, size=best.shape)
            best = np.where(explore[:, None], uniform, best)
        return best

    def probabilities(self, outputs: np.ndarray, rule: ActingRule) -> np.ndarray:
        """Return each action's probability within its part, float64 `[batch, sum(nvec)]`."""
        each = zip(self.parts, self._split(outputs), strict=True)
        return np.concatenate([part.probabilities(own, rule) for part, own in each], axis=1)

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray, rule: ActingRule) -> np.ndarray:
        """Return log-probabilities float32 `[batch]` of `actions`; NaN unless they were sampled."""
        each = zip(self.parts, self._split(outputs), actions.T, strict=True)
        return np.sum([part.log_probs(own, taken, rule) for part, own, taken in each], axis=0)

    def describe_labels(self, labels: Tensor, temperature: float) -> str:
        """Say how sure of its best choices the teacher is at this temperature, on average."""
        own = zip(self.parts, labels.split(list(self.nvec), 1), strict=True)
        found = [part.label_entropy(part_labels, temperature) for part, part_labels in own]
        entropy, best = np.mean(found, axis=0)
        return (
            f"labels at temperature {temperature:.3g}: the best choices have {best:.0%} on "
            f"average, {entropy:.2f} nats of entropy each"
        )

    def output_scale(self, labels: Tensor, temperature: float) -> float:
        """Return the scale of logits that Eq. 1 asks for: the labels' own over the temperature."""
        return self.logit_scale(labels, temperature)

    def centred(self, outputs: Tensor) -> Tensor:
        """Return logits less the mean of their part."""
        parts = outputs.split(list(self.nvec), 1)
        return torch.cat([own - own.mean(1, keepdim=True) for own in parts], 1)

    def _size(self) -> tuple[object, ...]:
        return self.nvec

    def outside(self, actions: np.ndarray) -> np.ndarray:
        """Tell which of `actions`, int `[batch, parts]`, are not in the space."""
        outside: np.ndarray = (actions < 0) | (actions >= np.array(self.nvec))
        return np.any(outside, axis=1)

    def divergence(
        self,
        labels: Tensor,
        outputs: Tensor,
        temperature: float,
        student_temperature: float = 1.0,
        *,
        reverse: bool = False,
    ) -> Tensor:
        """Compute Eq. 1, the sum of the parts' divergences: they are independent."""
        self.check_labels(labels, outputs)
        each = [
            part.divergence(*own, temperature, student_temperature, reverse=reverse)
            for part, own in self._both(labels, outputs)
        ]
        return torch.stack(each).sum(0)

    def divergence_gradient(
        self,
        labels: Tensor,
        outputs: Tensor,
        temperature: float,
        student_temperature: float = 1.0,
        *,
        reverse: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Compute `divergence` and its derivative by the outputs, graph-free."""
        self.check_labels(labels, outputs)
        found = [
            part.divergence_gradient(*own, temperature, student_temperature, reverse=reverse)
            for part, own in self._both(labels, outputs)
        ]
        divergences, slopes = zip(*found, strict=True)
        return torch.stack(divergences).sum(0), torch.cat(slopes, 1)

    def _both(
        self, labels: Tensor, outputs: Tensor
    ) -> Iterator[tuple[Discrete, tuple[Tensor, Tensor]]]:
        sizes = list(self.nvec)
        own = zip(labels.split(sizes, 1), outputs.split(sizes, 1), strict=True)
        return zip(self.parts, own, strict=True)


@dataclass(frozen=True)
class MultiBinary(ActionSpace):
    """`n` switches, each on or off; an output is the logit of `on`."""

    n: int

    kind: ClassVar[str] = "multi_binary"

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"{self.n} switches: at least 1 is needed")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action: a number for each switch."""
        return (self.n,)

    @property
    def dtype(self) -> np.dtype:
        """Type of an action's numbers, 0 or 1."""
        return np.dtype(np.int64)

    @property
    def num_outputs(self) -> int:
        """One for each switch."""
        return self.n

    @property
    def temperature(self) -> float | None:
        """3, the QPD paper's."""
        return 3.0

    def __str__(self) -> str:
        return f"{self.n} switches"

    def act(self, outputs: np.ndarray, rule: ActingRule, rng: np.random.Generator) -> np.ndarray:
        """Choose actions, int64 `[batch, n]` of 0 and 1, by logits `[batch, n]`."""
        if rule.kind == "sample":
            # Logistic noise is the difference of two Gumbels: the trick of Discrete.
            noise = rng.logistic(size=outputs.shape)
            return (rule.sharpness * outputs.astype(np.float64) + noise > 0).astype(np.int64)
        best = (outputs > 0).astype(np.int64)
        if rule.kind == "epsilon":
            explore = rng.random(len(outputs)) < rule.epsilon
            uniform = rng.integers(2, size=outputs.shape)
            best = np.where(explore[:, None], uniform, best)
        return best

    def probabilities(self, outputs: np.ndarray, rule: ActingRule) -> np.ndarray:
        """Return the probability that `act` turns each switch on, float64 `[batch, n]`."""
        if rule.kind == "sample":
            # 1 / (1 + exp(-x)), without an overflow.
            return np.exp(-np.logaddexp(0.0, -rule.sharpness * outputs.astype(np.float64)))
        best = (outputs > 0).astype(np.float64)
        if rule.kind == "epsilon":
            return (1.0 - rule.epsilon) * best + rule.epsilon / 2
        return best

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray, rule: ActingRule) -> np.ndarray:
        """Return log-probabilities float32 `[batch]` of `actions`; NaN unless they were sampled."""
        if rule.kind != "sample":
            return np.full(len(actions), np.nan, np.float32)
        logits = rule.sharpness * outputs.astype(np.float64)
        # -softplus(-x) is the log-probability of `on`, -softplus(x) that of `off`.
        return -np.logaddexp(0.0, np.where(actions == 1, -logits, logits)).sum(1).astype(np.float32)

    def output_scale(self, labels: Tensor, temperature: float) -> float:
        """Return the scale of logits that Eq. 1 asks for: the labels' own over the temperature."""
        return self.logit_scale(labels, temperature)

    def _size(self) -> tuple[object, ...]:
        return (self.n,)

    def outside(self, actions: np.ndarray) -> np.ndarray:
        """Tell which of `actions`, int `[batch, n]`, are not 0 and 1 alone."""
        outside: np.ndarray = (actions < 0) | (actions > 1)
        return np.any(outside, axis=1)

    def divergence(
        self,
        labels: Tensor,
        outputs: Tensor,
        temperature: float,
        student_temperature: float = 1.0,
        *,
        reverse: bool = False,
    ) -> Tensor:
        """Compute Eq. 1, the sum of the switches' divergences: they are independent."""
        self.check_labels(labels, outputs)
        teacher, student = labels / temperature, outputs / student_temperature
        return kl_bernoulli(student, teacher) if reverse else kl_bernoulli(teacher, student)

    def divergence_gradient(
        self,
        labels: Tensor,
        outputs: Tensor,
        temperature: float,
        student_temperature: float = 1.0,
        *,
        reverse: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Compute `divergence` and its derivative by the outputs, graph-free."""
        found = self.divergence(labels, outputs, temperature, student_temperature, reverse=reverse)
        teacher, student = labels / temperature, outputs / student_temperature
        if reverse:
            slope, _ = kl_bernoulli_gradients(student, teacher)
        else:
            _, slope = kl_bernoulli_gradients(teacher, student)
        return found, slope / student_temperature
