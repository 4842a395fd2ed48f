"""One update: losses, gradients, optimizer; compiled into few kernels where that pays."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from qpd.losses.objective import Objective
from qpd.losses.ppo import PolicyChange, clipped_objective, policy_change
from qpd.machine.compiled_graph import CompileError
from qpd.numerics.precision import compute_precision
from qpd.replay.sample import ReplaySample
from qpd.students import StudentOutputs
from qpd.training.compiled_backward import CompiledBackward, can_compile
from qpd.training.gradient_scaling import GradientScaling
from qpd.training.mixed_precision import MixedPrecision
from qpd.training.plan import PhasePlan
from qpd.training.relative_steps import RelativeSteps

Losses = Callable[[ReplaySample], tuple[Tensor, Tensor, Tensor]]


def phase_losses(
    outputs: tuple[Tensor, Tensor], sample: ReplaySample, plan: PhasePlan
) -> tuple[Tensor, Tensor, Tensor]:
    """Total (Eq. 2, and the reward term), actor (Eq. 1), critic (Eq. 3) loss, all scalars."""
    actor, critic = (each.mean() for each in plan.objective.divergences(outputs, sample))
    total = plan.objective.total(actor, critic)
    if plan.reward is not None:
        objective = clipped_objective(
            outputs[0], sample.actions, sample.log_probs, sample.advantages, plan.reward.clip
        )
        total = plan.reward.imitation * total + objective.mean()
    return total, actor, critic


def backward(
    passes: MixedPrecision, sample: ReplaySample, objective: Objective, dtype: torch.dtype
) -> Tensor:
    """Add the gradients of Eq. 2 by a batch, on a CPU; returns total, actor and critic loss, `[3]`.

    The derivatives of the losses by outputs and values are written down: a graph of them would cost
    as much as a small layer.
    """
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        outputs = passes.forward(sample.inputs)
    batch = len(sample.values)
    (actors, by_outputs), (critics, by_values) = objective.gradients(outputs, sample)
    actor, critic = float(actors.sum()) / batch, float(critics.sum()) / batch
    slopes = objective.slopes(actor, critic)
    given = [
        gradient.mul_(slope / batch)
        for gradient, slope in zip((by_outputs, by_values), slopes, strict=False)
    ]
    passes.backward(outputs, given)
    return torch.tensor([objective.total_of(actor, critic), actor, critic])


class TrainStep:
    """Update `module` by `plan`; a call takes a sample on the module's device.

    With `compile` on forward and backward pass are compiled for the first batch's size; batches of
    another size, such as an epoch's last, take the plain way. auto compiles on a CPU the steps of
    vectors if there are enough `updates` in the phase to repay it; of images a compiled step
    multiplies what observations share again. On a GPU all of a step can be captured instead
    (`qpd.training.updates`). `scaling` is the phase's, begun anew if it is None; where the recipe
    scales losses or counts gradients, nothing is compiled.
    """

    def __init__(
        self,
        plan: PhasePlan,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaling: GradientScaling | None = None,
        updates: int = 0,
    ) -> None:
        self._plan, self._module, self.optimizer = plan, module, optimizer
        self._parameters = list(module.parameters())
        self._steps = RelativeSteps(optimizer)
        self.device = self._parameters[0].device
        self._dtype = compute_precision(plan.settings.precision, self.device)
        scaling = GradientScaling.of(plan.settings) if scaling is None else scaling
        self._mixed = MixedPrecision(module, plan.settings, scaling)
        wanted = plan.settings.compile if self._mixed.is_plain else "off"
        self._compiled: Losses | None = None
        self._traced: CompiledBackward | None = None
        on_cpu, is_rewarded = self.device.type == "cpu", plan.reward is not None
        if on_cpu and not is_rewarded and can_compile(module, wanted, updates):
            self._traced = CompiledBackward(self._mixed, plan.objective, self._dtype)
        elif wanted == "on":
            # fullgraph: a graph that breaks would be slow without a word.
            self._compiled = torch.compile(self._losses, fullgraph=True, dynamic=False)
        self._compiled_size = 0
        self.must_compile = wanted == "on"
        # Of the others' optimizers some read numbers back.
        is_adam = isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW)
        self.can_be_captured = self.device.type == "cuda" and wanted != "off" and is_adam

    @property
    def reads_shared_frames(self) -> bool:
        """Tell whether samples may come as `SharedFrames`; False here switches sharing off."""
        # Plans are made on a CPU, and a compiled graph cannot depend on what the frames hold. With
        # rewards, the acting policy must use the same arithmetic, or PPO's ratios are wrong.
        # Sums in parts would be rounded in parts.
        is_exact = self._mixed.form is None
        is_plain = self._compiled is None and self._plan.reward is None
        return self.device.type == "cpu" and is_plain and is_exact

    def _losses(self, sample: ReplaySample) -> tuple[Tensor, Tensor, Tensor]:
        with torch.autocast(self.device.type, self._dtype, enabled=self._dtype != torch.float32):
            outputs = self._module(sample.inputs)
        return phase_losses(outputs, sample, self._plan)

    @torch.no_grad()
    def policy_change(self, sample: ReplaySample) -> PolicyChange | None:
        """Return how far the student is from the one that played `sample`; without rewards None."""
        reward = self._plan.reward
        if reward is None:
            return None
        with torch.autocast(self.device.type, self._dtype, enabled=self._dtype != torch.float32):
            logits = self._module(sample.inputs)[0]
        return policy_change(logits, sample.actions, sample.log_probs, reward.clip)

    @torch.no_grad()
    def total(self, sample: ReplaySample) -> float:
        """Return the total loss of a sample, and learn nothing from it."""
        return float(self._losses(sample)[0])

    def __call__(self, sample: ReplaySample) -> Tensor:
        """Take the step; returns total, actor and critic loss, `[3]`, outside the graph."""
        self._mixed.begin()
        losses = self._backward(sample)
        if not self._mixed.unscaled():
            return losses
        if self._plan.settings.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._plan.settings.max_grad_norm)
        self._steps.step()
        if self._plan.after_update is not None:
            self._plan.after_update()
        self._mixed.end()
        return losses

    def _backward(self, sample: ReplaySample) -> Tensor:
        if self._traced is not None and self._traced.takes(sample):
            try:
                return self._traced(sample)
            except CompileError as error:
                if self._plan.settings.compile == "on":
                    raise
                warnings.warn(f"{error}; training goes on without it", stacklevel=1)
                self._traced = None
        plain = self._compiled is None and self._plan.reward is None
        if plain and self.device.type == "cpu":  # where a loss's value can be had for nothing
            return backward(self._mixed, sample, self._plan.objective, self._dtype)
        if not self._mixed.is_plain:
            return self._scaled_backward(sample)
        losses: Losses = self._losses
        if self._compiled is not None:
            # One size: each further one would be compiled for, for seconds to minutes.
            self._compiled_size = self._compiled_size or len(sample.values)
            if len(sample.values) == self._compiled_size:
                losses = self._compiled
        total, actor, critic = losses(sample)
        total.backward()
        return torch.stack([total.detach(), actor.detach(), critic.detach()])

    def _scaled_backward(self, sample: ReplaySample) -> Tensor:
        """Add the gradients of the scaled loss; the loss itself is float32's."""
        with torch.autocast(self.device.type, self._dtype, enabled=self._dtype != torch.float32):
            outputs = self._mixed.forward(sample.inputs)
        cut = StudentOutputs(*(each.detach().requires_grad_() for each in outputs))
        found = phase_losses(cut, sample, self._plan)
        given = torch.autograd.grad(found[0], cut, materialize_grads=True)
        self._mixed.backward(outputs, given)
        return torch.stack([each.detach() for each in found])
