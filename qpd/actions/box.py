"""Continuous actions within bounds: Gaussian policies, and deterministic ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from qpd.actions.acting_rule import ActingKind, ActingRule
from qpd.actions.gaussian import (
    LEAST_DEVIATION,
    SATURATION,
    Squash,
    action_divergence,
    kl_gaussian,
)
from qpd.actions.space import ActionSpace

Labels = Literal["gaussian", "deterministic"]

_PRINTED = 1e-8  # NumPy prints 8 decimals; float32 has a relative precision of 6e-8
_WIDE = 4096.0  # at its middle float32 has steps of 1/8192 beside a bound of so wide a range


@dataclass(frozen=True)
class Box(ActionSpace):
    """Numbers from `low` to `high`, flat, one for each number of an action of shape `shape`.

    An output is an action's mean before the squash, in units of its range: -1 stands for the lower
    bound and 1 for the upper one, where `squash` is `clip`; a `tanh` brings all outputs inside.
    Labels of `gaussian` teachers end in the logarithms of their deviations, in the same units;
    students have none, and act by their means.

    Means are clipped to +-`mean_bound` before the squash, unless it is None: what SAC and TQC do
    under gSDE, where a network does not do it itself.

    Outputs that are `coded` are the shares of the range that a student's integers stand for: what
    they are in the environment's units is computed as exports compute it.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    squash: Squash = "clip"
    labels: Labels = "gaussian"
    shape: tuple[int, ...] = ()
    mean_bound: float | None = None
    coded: bool = False

    kind: ClassVar[str] = "box"

    def __post_init__(self) -> None:
        if not self.shape:
            object.__setattr__(self, "shape", (len(self.low),))
        if not self.low or not math.prod(self.shape) == len(self.low) == len(self.high):
            raise ValueError(
                f"bounds of {len(self.low)} and {len(self.high)} numbers for actions of shape "
                f"{self.shape}"
            )
        for name, known in (("squash", get_args(Squash)), ("labels", get_args(Labels))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r:.40}: one of {', '.join(known)}")
        if self.mean_bound is not None and not 0.0 < self.mean_bound < math.inf:
            raise ValueError(f"a mean_bound of {self.mean_bound:g}; expected a number above 0")
        # As float32, what actions are: a width beyond it would make them NaN.
        with np.errstate(over="ignore", invalid="ignore"):
            widths = np.array(self.high, np.float32) - np.array(self.low, np.float32)
        for low, high, width in zip(self.low, self.high, widths, strict=True):
            if not 0.0 < width < math.inf:  # NaN compares false
                raise ValueError(
                    f"an action from {low:g} to {high:g}: bounds must be finite, and the lower "
                    "one below the upper one (set such ones, near what the agent does, in the "
                    "environment or in a gymnasium.ActionWrapper of your own)"
                )

    @property
    def dtype(self) -> np.dtype:
        """Type of an action's numbers."""
        return np.dtype(np.float32)

    @property
    def num_outputs(self) -> int:
        """One mean for each number of an action."""
        return len(self.low)

    @property
    def num_labels(self) -> int:
        """Means, and where the teacher is Gaussian the logarithms of its deviations."""
        return len(self.low) * (2 if self.labels == "gaussian" else 1)

    @property
    def is_tempered(self) -> bool:
        """No: a temperature widens the teacher's variance, and leaves the means as they are."""
        return False

    @property
    def temperature(self) -> float | None:
        """1: the teacher's own variance."""
        return 1.0

    @property
    def exploring(self) -> ActingKind:
        """A Gaussian teacher draws its actions; a deterministic one has nothing to draw from."""
        return "sample" if self.labels == "gaussian" else "greedy"

    def __str__(self) -> str:
        count, bounds = len(self.low), list(zip(self.low, self.high, strict=True))
        if len(set(bounds)) == 1:  # else in their order
            bounds = bounds[:1]
        said = ", ".join(f"{low:g} to {high:g}" for low, high in bounds[:4])
        more = ", ..." if len(bounds) > 4 else ""
        return f"{count} continuous action{'s' if count > 1 else ''} ({said}{more})"

    def rule(self, kind: str, *, on_atari: bool, epsilon: float, sharpness: float) -> ActingRule:
        """Resolve `auto` to greedy; raises ValueError for `epsilon` and for a sharpness."""
        if kind == "epsilon":
            raise ValueError(f"acting epsilon: {self} have no uniform one among them; use greedy")
        if sharpness != 1.0:
            raise ValueError(f"sharpness {sharpness:g}: {self} have no logits to sharpen; use 1")
        return super().rule(kind, on_atari=on_atari, epsilon=epsilon, sharpness=sharpness)

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The lower and the upper bound of each number, float32 `[num_outputs]`."""
        return np.array(self.low, np.float32), np.array(self.high, np.float32)

    def labels_of(self, means: Tensor, log_deviations: Tensor | None = None) -> Tensor:
        """Return labels, float32 `[batch, num_labels]`, of a policy's own means and deviations.

        Those of a clipped policy are in the action's units, those before a tanh in the range's.
        """
        if self.squash == "clip":
            low, high = (torch.from_numpy(bound).to(means.device) for bound in self.bounds)
            half = 0.5 * (high - low)
            # From the middle: of wide bounds the lower one would swallow the mean.
            means = (means - 0.5 * (low + high)) / half
            log_deviations = None if log_deviations is None else log_deviations - half.log()
        return means if log_deviations is None else torch.cat([means, log_deviations], 1)

    def squashed(self, means: np.ndarray) -> np.ndarray:
        """Return shares of the range, -1 to 1, of outputs `[batch, num_outputs]`."""
        if self.mean_bound is not None:
            means = np.clip(means, -self.mean_bound, self.mean_bound)
        return np.tanh(means) if self.squash == "tanh" else np.clip(means, -1.0, 1.0)

    def scaled(self, shares: np.ndarray) -> np.ndarray:
        """Return actions float32 `[batch, *shape]` of shares of their range, -1 to 1."""
        low, high = (bound + 0.0 for bound in self.bounds)  # never -0.0, as in the C export
        shares = shares.astype(np.float32)
        # SB3's unscale_action, in its order of operations; rounding may leave the bounds.
        actions = low + 0.5 * (shares + 1.0) * (high - low)
        if (
            self.squash == "clip" and not self.coded
        ):  # of wide bounds the lower one would swallow the share
            from_middle = 0.5 * (low + high) + 0.5 * (high - low) * shares
            actions = np.where(high - low > _WIDE, from_middle, actions)
        return np.clip(actions, low, high).astype(np.float32).reshape(-1, *self.shape)

    def as_codes(self) -> Box:
        """Return the same actions, for outputs that are shares of the range already."""
        return replace(self, squash="clip", labels="deterministic", mean_bound=None, coded=True)

    def act(self, outputs: np.ndarray, rule: ActingRule, rng: np.random.Generator) -> np.ndarray:
        """Choose actions, float32 `[batch, *shape]`, by outputs or labels.

        Sampled ones are drawn before the squash; what has no deviations acts by its means.
        """
        count = self.num_outputs
        means = outputs[:, :count]
        if rule.kind == "sample" and outputs.shape[1] == 2 * count:
            means = means + np.exp(outputs[:, count:]) * rng.standard_normal(means.shape)
        return self.scaled(self.squashed(means))

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray, rule: ActingRule) -> np.ndarray:
        """Return NaN `[batch]`: nothing here learns from the probability of an action."""
        return np.full(len(actions), np.nan, np.float32)

    def random_outputs(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return outputs float32 `[count, num_outputs]` whose actions are uniform."""
        shares = rng.uniform(-1.0, 1.0, (count, self.num_outputs)).astype(np.float32)
        return np.arctanh(shares) if self.squash == "tanh" else shares

    def describe_labels(self, labels: Tensor, temperature: float) -> str | None:
        """Say how far the teacher's actions spread, and how often they are at a bound."""
        count = self.num_outputs
        bound = SATURATION[self.squash]
        said = f"{float((labels[:, :count].abs() >= bound).float().mean()):.0%} at a bound"
        if self.labels == "gaussian":
            spread = float(labels[:, count:].exp().median())
            before = f"before the {self.squash} (of a range of 2)"
            said = f"a median deviation of {spread:.2g} {before}, {said}"
        if float(labels[:, :count].float().std(0).max()) < LEAST_DEVIATION:
            said += (
                "; they differ by less than the 255 steps of an 8-bit action within these bounds: "
                "a student needs an environment with nearer ones"
            )
        return f"the teacher's actions: {said}"

    def same(self, actions: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Tell which actions are within one step of an 8-bit action of each other."""
        low, high = self.bounds
        apart = np.abs(actions - others).reshape(len(actions), -1)
        return np.all(apart <= (high - low) / 255.0, axis=1)

    def outputs_of(self, policy: ActionSpace, outputs: np.ndarray) -> np.ndarray:
        """Return outputs before this tanh, for those of a policy whose own are squashed already."""
        if not isinstance(policy, Box) or policy.squash == self.squash:
            return outputs
        bound = SATURATION[self.squash]
        inside = np.clip(outputs, -math.tanh(bound), math.tanh(bound))
        return np.arctanh(inside) if self.squash == "tanh" else np.tanh(outputs)

    def _size(self) -> tuple[object, ...]:
        return self.low, self.high, self.shape

    def differs_from(self, other: ActionSpace) -> bool:
        """Tell whether the actions are others; bounds have the 8 decimals that SB3's zips print."""
        if not isinstance(other, Box) or self.shape != other.shape:
            return True
        pairs = zip((*self.low, *self.high), (*other.low, *other.high), strict=True)
        return not all(abs(one - two) <= _slack(two) for one, two in pairs)

    def outside(self, actions: np.ndarray) -> np.ndarray:
        """Tell which of `actions`, float `[batch, *shape]`, are beyond the bounds, or NaN.

        By less than the bounds of an agent may be rounded they are not.
        """
        low, high = self.bounds
        flat = actions.reshape(len(actions), -1)
        # NaN compares false.
        outside: np.ndarray = ~((flat >= low - _slack(low)) & (flat <= high + _slack(high)))
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
        """Compute Eq. 1 of Gaussians, or the divergence of actions; see `qpd.actions.gaussian`."""
        return self._found(labels, outputs, temperature)[0]

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
        return self._found(labels, outputs, temperature)

    def _found(self, labels: Tensor, outputs: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        # Equal variances: both directions are one, and the student's temperature is the teacher's.
        self.check_labels(labels, outputs)
        count = self.num_outputs
        if self.labels == "deterministic":
            return action_divergence(labels, outputs, self.squash)
        means, log_deviations = labels[:, :count], labels[:, count:]
        return kl_gaussian(means, log_deviations, outputs, temperature, self.squash)


def _slack(bound: Any) -> Any:
    """Return by how much a bound that was printed may be off."""
    return _PRINTED + 1e-7 * abs(bound)
