"""Stable-Baselines3's SAC in low precision: parameters, activations, gradients, optimizer state.

Bjorck et al., Low-Precision RL: Running SAC in Half Precision (ICML 2021, arXiv 2102.13565).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import FlattenExtractor, NatureCNN
from stable_baselines3.sac.policies import LOG_STD_MAX, LOG_STD_MIN
from torch import Tensor, nn
from torch.nn import functional as F

from qpd.errors.codes import ErrorCode
from qpd.numerics.float_format import FloatFormat
from qpd.numerics.half_arithmetic import arithmetic_of
from qpd.recipe.train_schema import TrainPrecision
from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.low_precision.squashed_normal import (
    log_normal,
    log_slope,
    naive_log_normal,
    naive_log_slope,
    softplus_threshold,
)
from qpd.teachers.training.controller import AgentController
from qpd.teachers.training.low_precision_adam import LowPrecisionAdam


class LowPrecisionSAC(SAC):
    """SAC whose updates are computed in a format; it acts, and is saved, in float32.

    Tensors are float32 and hold numbers of the format. An update works on float16 tensors, too, and
    gives the same numbers (`HalfArithmetic`).

    All that its updates need beside the parameters is in the optimizers' states, so that SB3's
    own zip resumes it. `use_low_precision` makes one of a SAC. Under `hand_over` it is saved as
    Stable-Baselines3's SAC goes on from it.
    """

    form: FloatFormat
    methods: frozenset[str]
    is_placed: bool
    controller: AgentController | None

    def _excluded_save_params(self) -> list[str]:
        own = ["form", "methods", "is_placed", "controller"]
        return [*super()._excluded_save_params(), *own]

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Make `gradient_steps` updates, each with a batch of its own."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self._optimizers)
        seen = [
            self._update(batch_size, step % self.target_update_interval == 0)
            for step in range(gradient_steps)
        ]
        self._n_updates += gradient_steps
        record = self.logger.record
        record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name in seen[0] if seen else ():
            record(f"train/{name}", np.mean([each[name] for each in seen]))
        record("train/skipped_updates", sum(each.skipped for each in self._optimizers))
        scales = [each.loss_scale for each in self._optimizers if each.scales]
        record("train/loss_scale", min(scales, default=1.0))
        for name, scale in (
            {} if self.controller is None else self.controller.named_scales
        ).items():
            record(f"train/{name}", scale)

    @contextmanager
    def hand_over(self) -> Iterator[None]:
        """Save the optimizers as PyTorch's Adam has them."""
        for each in self._optimizers:
            each.state_dict = each.plain_state_dict
        try:
            yield
        finally:
            for each in self._optimizers:
                del each.state_dict

    @property
    def _optimizers(self) -> list[Any]:
        found = [self.actor.optimizer, self.critic.optimizer]
        return found if self.ent_coef_optimizer is None else [*found, self.ent_coef_optimizer]

    def _update(self, batch_size: int, moves_target: bool) -> dict[str, float]:
        assert self.replay_buffer is not None
        batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
        discounts = self.gamma if batch.discounts is None else self._rounded(batch.discounts)
        observations, next_observations = (
            self._seen(each) for each in (batch.observations, batch.next_observations)
        )
        actions, rewards, dones = (
            self._rounded(each) for each in (batch.actions, batch.rewards, batch.dones)
        )
        told: dict[str, float] = {}
        arithmetic = self._arithmetic()
        own_actions, log_probs = self._act(observations)
        if self.ent_coef_optimizer is None:
            alpha = self.form.round(self.ent_coef_tensor)
        else:
            assert self.log_ent_coef is not None and isinstance(self.target_entropy, float)
            with self._of_density():
                alpha = self.log_ent_coef.detach().exp()
                loss = -(self.log_ent_coef * (log_probs + self.target_entropy).detach()).mean()
            told["ent_coef_loss"] = self._minimize(self.ent_coef_optimizer, loss)
        told["ent_coef"] = float(alpha)
        with torch.no_grad():
            next_actions, next_log_probs = self._act(next_observations)
        with arithmetic, torch.no_grad():
            values = torch.cat(_values(self.critic_target, next_observations, next_actions), dim=1)
            value = values.min(dim=1, keepdim=True).values - alpha * next_log_probs
            wanted = rewards + (1 - dones) * discounts * value
        with arithmetic:
            found = _values(self.critic, observations, actions)
            loss = 0.5 * torch.stack([F.mse_loss(each, wanted) for each in found]).sum()
        told["critic_loss"] = self._minimize(self.critic.optimizer, loss)
        with arithmetic, _fixed(self.critic):
            values = torch.cat(_values(self.critic, observations, own_actions), dim=1)
            loss = (alpha * log_probs - values.min(dim=1, keepdim=True).values).mean()
        if self.controller is not None:
            self.controller.forget_gradients()
        of_actor: Any = self.actor.optimizer
        scale, skipped = of_actor.loss_scale, of_actor.skipped
        told["actor_loss"] = self._minimize(of_actor, loss)
        # Weights and scales learn from one loss, or both skip it.
        if self.controller is not None and of_actor.skipped == skipped:
            self.controller.learn(self.actor.optimizer.param_groups[0]["lr"], scale)
        if moves_target:
            optimizer: Any = self.critic.optimizer
            optimizer.move_target(list(self.critic_target.parameters()), self.tau)
        return told

    def _seen(self, observations: Any) -> Tensor:
        """Return what networks see: numbers of the format, images divided by 255."""
        policy, space = self.policy, self.observation_space
        seen = preprocess_obs(observations, space, normalize_images=policy.normalize_images)
        return self._rounded(seen)

    def _rounded(self, x: Any) -> Tensor:
        """Return numbers of the format, in the dtype that parameters have."""
        return self.form.round(x.float()).to(self._dtype)

    def _minimize(self, optimizer: Any, loss: Tensor) -> float:
        """Take a step along the loss's gradient; return the loss."""
        optimizer.zero_grad()
        with self._arithmetic():
            (loss * optimizer.loss_scale).backward()
        optimizer.step()
        return float(loss.detach())

    def _act(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions of the policy and their log-probabilities [batch, 1]."""
        with self._arithmetic():
            actor: Any = self.actor
            latent = actor.latent_pi(actor.features_extractor(observations))
            mean, log_deviation = actor.mu(latent), actor.log_std(latent)
            log_deviation = log_deviation.clamp(LOG_STD_MIN, LOG_STD_MAX)
            noise = torch.randn(mean.shape, device=mean.device).to(mean.dtype)
        with self._of_density():
            if "normal" in self.methods:  # SB3's least deviation, e^-20, is 0 in fp16
                log_deviation = log_deviation.clamp(min=math.log(self.form.smallest_normal))
            deviation = log_deviation.exp()
            u = mean + deviation * noise
            density = log_normal if "normal" in self.methods else naive_log_normal
            slope = (
                log_slope(u, softplus_threshold(self.form))
                if "softplus" in self.methods
                else naive_log_slope(u)
            )
            log_probs = (density(u, mean, deviation) - slope).sum(dim=1, keepdim=True)
            actions = torch.tanh(u)
        if self.is_placed:  # the critics read numbers of the format
            actions = actions + (self.form.round(actions.detach()) - actions.detach())
        return actions, log_probs

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.actor.parameters()).dtype

    def _arithmetic(self) -> AbstractContextManager[Any]:
        return arithmetic_of(self.form, self._dtype)

    def _of_density(self) -> AbstractContextManager[Any]:
        """Return the arithmetic of log-probabilities and of the entropy coefficient."""
        return nullcontext() if self.is_placed else self._arithmetic()


@contextmanager
def _fixed(network: nn.Module) -> Iterator[None]:
    """Return a context in which a network hands gradients on and gets none of its own."""
    learned = [each for each in network.parameters() if each.requires_grad]
    for each in learned:
        each.requires_grad_(False)
    try:
        yield
    finally:
        for each in learned:
            each.requires_grad_(True)


def _values(critic: Any, observations: Tensor, actions: Tensor) -> list[Tensor]:
    """Return each critic's values [batch, 1], as SB3's do, which would cast to float32."""
    # What is asked for its actions' sake alone has no use for its own gradients.
    with torch.set_grad_enabled(torch.is_grad_enabled() and not actions.requires_grad):
        features = critic.features_extractor(observations)
    inputs = torch.cat([features, actions], dim=1)
    return [network(inputs) for network in critic.q_networks]


def use_low_precision(
    model: BaseAlgorithm, settings: TrainPrecision, controller: AgentController | None = None
) -> None:
    """Make a SAC learn in `settings.format` from now on.

    Of an integer controller the few learned scales, and Adam's moments of these, stay float32.
    Raises TeacherError where it cannot.
    """
    assert settings.format is not None
    if type(model) is not SAC:
        _refuse(f"SAC learns in {settings.format}; {type(model).__name__} does not")
    assert isinstance(model, SAC)
    if model.use_sde:
        _refuse("gSDE is not written for low precision: set use_sde=false")
    scales = settings.baseline in ("loss_scaling", "mixed_precision", "placed_mixed_precision")
    if settings.loss_scale not in ("auto", "dynamic") or not settings.master_weights:
        _refuse("of SAC master_weights are true, and loss_scale is auto or dynamic")
    if settings.loss_scale == "dynamic" and not scales:
        _refuse("of SAC loss_scale=dynamic needs a baseline that scales the loss")
    if not isinstance(model.actor.features_extractor, FlattenExtractor | NatureCNN):
        _refuse("only agents that see vectors or images learn in low precision")
    if model.policy.share_features_extractor:
        _refuse("set share_features_extractor=False in policy_kwargs")
    if controller is not None and model.policy.activation_fn is not nn.ReLU:
        _refuse(
            "integer controllers have ReLU; this agent's hidden layers have "
            f"{model.policy.activation_fn.__name__}"
        )
    form = FloatFormat.parse(settings.format)
    methods = frozenset(settings.methods)
    with torch.no_grad():
        for each in model.policy.parameters():
            each.copy_(form.round(each))
    baseline, is_placed = settings.baseline, settings.baseline == "placed_mixed_precision"
    # The actor needs no compensated sum, as the paper says.
    own, others = ("kahan_actor" in methods), ("kahan_gradients" in methods)
    model.actor.optimizer = _optimizer(model.actor.optimizer, form, settings, own)
    model.critic.optimizer = _optimizer(model.critic.optimizer, form, settings, others)
    if model.ent_coef_optimizer is not None:
        assert model.log_ent_coef is not None
        # Mixed precision as the paper's authors have it leaves alpha in the format.
        its_settings = settings
        if baseline == "mixed_precision":
            its_settings = settings.model_copy(update={"baseline": None})
        its_form = FloatFormat.parse("fp32") if is_placed else form
        with torch.no_grad():
            model.log_ent_coef.copy_(its_form.round(model.log_ent_coef))
        model.ent_coef_optimizer = _optimizer(
            model.ent_coef_optimizer, its_form, its_settings, others
        )
    model.__class__ = LowPrecisionSAC
    assert isinstance(model, LowPrecisionSAC)
    model.form, model.methods, model.is_placed = form, methods, is_placed
    model.controller = controller


def _optimizer(
    plain: torch.optim.Optimizer,
    form: FloatFormat,
    settings: TrainPrecision,
    compensates: bool,
) -> LowPrecisionAdam:
    group = plain.param_groups[0]
    usual = {"betas": (0.9, 0.999), "weight_decay": 0, "amsgrad": False}
    if type(plain) is not torch.optim.Adam or any(group[key] != usual[key] for key in usual):
        _refuse("only Adam with its usual settings is written for low precision")
    return LowPrecisionAdam(group["params"], group["lr"], form, settings, compensates=compensates)


def _refuse(reason: str) -> None:
    raise TeacherError(f"precision: {reason}", ErrorCode.TEACHER_TRAINING)
