"""The one notion of an action: all that depends on the kind of action is a method of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from torch import Tensor

from qpd.actions.acting_rule import ACTING_KINDS, ActingKind, ActingRule


class ActionSpace(ABC):
    """A space of actions, and the policies over it.

    A policy's `outputs` are the numbers of its actor head, float `[batch, num_outputs]`; a
    teacher's `labels`, float `[batch, num_labels]`, begin with them and may hold more, which the
    student does not learn (a Gaussian's deviations). Both may be acted by.

    Attributes:
        kind: its name in files.
        shape: of one action; `dtype`: its type.
        num_outputs: numbers that a student's actor head returns.
        num_labels: numbers of a teacher's label.
        has_values: outputs are the values of actions (Q-values), not a distribution.
    """

    kind: ClassVar[str]
    has_values: bool = False

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one action."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype:
        """Type of one action's numbers."""

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Numbers that a student's actor head returns."""

    @property
    def num_labels(self) -> int:
        """Numbers of a teacher's label; the first `num_outputs` of them are outputs."""
        return self.num_outputs

    @property
    def is_tempered(self) -> bool:
        """Tell whether Eq. 1's temperature divides the outputs, and sharpness multiplies them."""
        return True

    @property
    @abstractmethod
    def temperature(self) -> float | None:
        """Tau of Eq. 1 unless a recipe says otherwise; None: it depends on the labels' size."""

    @abstractmethod
    def __str__(self) -> str:
        """Describe the actions in words, such as `4 actions`."""

    def fold(self, temperature: float, sharpness: float) -> float:
        """Return the factor from outputs trained on tempered labels to the acting policy's.

        At the optimum of Eq. 1 logits are the teacher's divided by tau; times `temperature` they
        are the teacher's own, times `sharpness` those that act.
        """
        return temperature * sharpness if self.is_tempered else 1.0

    def rule(self, kind: str, *, on_atari: bool, epsilon: float, sharpness: float) -> ActingRule:
        """Resolve `auto` to how SB3 and the RL Zoo let agents act; check all else.

        Atari: sampled, epsilon-greedy for Q-values. Elsewhere the zoo acts deterministically.
        Raises ValueError for what these actions cannot do.
        """
        resolved: str = kind
        if kind == "auto":
            resolved = self.exploring if on_atari else "greedy"
        if resolved not in ACTING_KINDS:
            raise ValueError(f"acting {kind!r}: one of auto, {', '.join(ACTING_KINDS)}")
        return ActingRule(resolved, epsilon, sharpness)

    @property
    def exploring(self) -> ActingKind:
        """Say how a teacher acts where its play is to be varied."""
        return "epsilon" if self.has_values else "sample"

    @abstractmethod
    def act(self, outputs: np.ndarray, rule: ActingRule, rng: np.random.Generator) -> np.ndarray:
        """Choose actions `[batch, *shape]` of `dtype`, by outputs or labels, floats."""

    @abstractmethod
    def log_probs(self, outputs: np.ndarray, actions: np.ndarray, rule: ActingRule) -> np.ndarray:
        """Return log-probabilities float32 `[batch]` of `actions`; NaN unless they were sampled."""

    def empty(self, count: int) -> np.ndarray:
        """Return an array for actions, `[count, *shape]` of `dtype`, all 0."""
        return np.zeros((count, *self.shape), self.dtype)

    def random_outputs(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return outputs float32 `[count, num_outputs]` by which sampling acts at random."""
        # Equal logits: every action equally often.
        return np.zeros((count, self.num_outputs), np.float32)

    def differs_from(self, other: ActionSpace) -> bool:
        """Tell whether the actions are others, whatever a policy's outputs mean."""
        return self.kind != other.kind or self._size() != other._size()

    @abstractmethod
    def _size(self) -> tuple[object, ...]:
        """Return what makes the actions these, and not others of their kind."""

    def centred(self, outputs: Tensor) -> Tensor:
        """Return outputs `[batch, num_outputs]` less what no action depends on."""
        return outputs

    def same(self, actions: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Tell which of two batches of actions are the same, bool `[batch]`."""
        same: np.ndarray = actions.reshape(len(actions), -1) == others.reshape(len(others), -1)
        return np.all(same, axis=1)

    def outputs_of(self, policy: ActionSpace, outputs: np.ndarray) -> np.ndarray:
        """Return what another policy's outputs are in these units; they have the same actions."""
        return outputs

    @abstractmethod
    def outside(self, actions: np.ndarray) -> np.ndarray:
        """Tell which of `actions` `[batch, *shape]` are not in the space, bool `[batch]`."""

    def describe_labels(self, labels: Tensor, temperature: float) -> str | None:
        """Say in words how sure the teacher is, by labels `[n, num_labels]`; None for nothing."""
        return None

    def output_scale(self, labels: Tensor, temperature: float) -> float:
        """Return how large the outputs are that Eq. 1 asks for: 1 (unit scale) or larger.

        The actor head has to learn that many times as fast. `labels` are `[n, num_labels]`.
        """
        return 1.0

    def logit_scale(self, labels: Tensor, temperature: float) -> float:
        """Return `output_scale` where labels are logits: their deviation over the temperature.

        Logits of a policy are of unit scale, and a temperature of 1 or more does not make them
        larger.
        """
        if temperature >= 1.0:
            return 1.0
        deviation = float(self.centred(labels).square().mean().sqrt())
        return min(max(deviation / temperature, 1.0), 1.0 / temperature)

    @abstractmethod
    def divergence(
        self,
        labels: Tensor,
        outputs: Tensor,
        temperature: float,
        student_temperature: float = 1.0,
        *,
        reverse: bool = False,
    ) -> Tensor:
        """Compute Eq. 1 for each state: how far a student's outputs are from a teacher's labels.

        KL(teacher || student) in nats, or where `reverse` KL(student || teacher). Inputs float
        `[batch, num_labels]` and `[batch, num_outputs]`; returns `[batch]`. Raises ValueError for
        other shapes.
        """

    @abstractmethod
    def divergence_gradient(
        self,
        labels: Tensor,
        outputs: Tensor,
        temperature: float,
        student_temperature: float = 1.0,
        *,
        reverse: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Compute `divergence` and its derivative by the outputs, graph-free.

        Returns `[batch]` and `[batch, num_outputs]`. Call it under `torch.no_grad()`.
        """

    def check_labels(self, labels: Tensor, outputs: Tensor) -> None:
        """Raise ValueError unless labels and outputs are those of a batch of these actions."""
        batch = len(labels)
        wanted = ((batch, self.num_labels), (batch, self.num_outputs))
        if (tuple(labels.shape), tuple(outputs.shape)) != wanted:
            raise ValueError(
                f"teacher outputs {tuple(labels.shape)} and student outputs "
                f"{tuple(outputs.shape)} are not those of {self}: {wanted[0]} and {wanted[1]}"
            )
