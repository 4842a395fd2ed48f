"""Stable-Baselines3's SAC, TD3 and DDPG with updates that take less time on a CPU.

They sample, log, save and load as before; `train` is another, and while it trains `predict` is
shorter. The update rules and the order of random draws are the same, so that numbers differ by
rounding alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DDPG, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import Tensor, nn

from qpd.errors.codes import ErrorCode
from qpd.numerics.float_format import FloatFormat
from qpd.numerics.layer_arithmetic import LayerArithmetic
from qpd.recipe.train_schema import ADAM_EPS, TrainPrecision
from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.off_policy.actor import Actor, FloatActor
from qpd.teachers.off_policy.critics import Critics
from qpd.teachers.off_policy.flat_parameters import FlatAdam, FlatParameters
from qpd.teachers.off_policy.squashed_gaussian import squashed_actions
from qpd.teachers.off_policy.stacked_mlp import Products
from qpd.teachers.off_policy.updates import SacUpdate, Td3Update, Transitions
from qpd.teachers.training.controller import AgentController, ControllerActor
from qpd.teachers.training.mixed_precision import check_of_mixed, first_scale

# Compiling takes 20 seconds, and saves 2 ms an update of 256-256.
LEAST_TIMESTEPS = 20_000

_NOT_SAVED = (
    "fast_actor", "fast_update", "fast_critics", "fast_alpha", "actor_vectors", "fast_arithmetic",
)  # fmt: skip


class _FastActing(OffPolicyAlgorithm):
    """Acting without the checks of observations that training itself has made."""

    fast_actor: Actor

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """Return actions as Stable-Baselines3 does, those of training in less time."""
        if deterministic or observation is not self._last_obs:
            return super().predict(observation, state, episode_start, deterministic)
        with torch.no_grad():
            outputs = self.fast_actor.act(_seen(self, torch.as_tensor(observation)))
            shape: Any = self.action_space.shape
            actions = self._actions(outputs).numpy().reshape(-1, *shape)
        return self.policy.unscale_action(actions), state

    def _actions(self, outputs: Tensor) -> Tensor:
        """Return actions, -1 to 1, for the actor's outputs."""
        return torch.tanh(outputs)


class FastSAC(_FastActing, SAC):
    """SAC with fast updates; `use_fast_learner` makes one of a SAC."""

    fast_update: SacUpdate
    fast_critics: Critics
    fast_alpha: FlatAdam | None
    fast_arithmetic: LayerArithmetic | None

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), *_NOT_SAVED]

    def _actions(self, outputs: Tensor) -> Tensor:
        noise = torch.randn(len(outputs), outputs.shape[1] // 2)
        return squashed_actions(outputs, noise)

    @torch.no_grad()
    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Make `gradient_steps` updates, each with a batch of its own."""
        optimizers = [self.actor.optimizer, self.critic.optimizer]
        if self.ent_coef_optimizer is not None:
            optimizers.append(self.ent_coef_optimizer)
        self._update_learning_rate(optimizers)
        temperature = _Temperature(self)
        told = []
        for step in range(gradient_steps):
            batch = _transitions(self, batch_size)
            told.append(self.fast_update(temperature, batch))
            if step % self.target_update_interval == 0:
                self.fast_critics.follow(self.tau)
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name in told[0] if told else ():
            self.logger.record(f"train/{name}", fmean([each[name] for each in told]))
        _record_scale(self)


class _FastTD3(_FastActing, TD3):
    """TD3 with fast updates."""

    fast_update: Td3Update
    fast_critics: Critics
    actor_vectors: tuple[FlatParameters, FlatParameters]
    fast_arithmetic: LayerArithmetic | None

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), *_NOT_SAVED]

    @torch.no_grad()
    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Make `gradient_steps` updates, each with a batch of its own."""
        self._update_learning_rate([self.actor.optimizer, self.critic.optimizer])
        critic_losses, actor_losses = [], []
        for _ in range(gradient_steps):
            self._n_updates += 1
            batch = _transitions(self, batch_size)
            noise, clip = self.target_policy_noise, self.target_noise_clip
            critic_losses.append(self.fast_update.of_critics(batch, noise, clip))
            if self._n_updates % self.policy_delay == 0:
                actor_losses.append(self.fast_update.of_actor(batch))
                self.fast_critics.follow(self.tau)
                online, target = self.actor_vectors
                target.values.lerp_(online.values, self.tau)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        if actor_losses:
            self.logger.record("train/actor_loss", fmean(actor_losses))
        if critic_losses:
            self.logger.record("train/critic_loss", fmean(critic_losses))
        _record_scale(self)


class FastTD3(_FastTD3):
    """TD3 with fast updates; `use_fast_learner` makes one of a TD3."""


class FastDDPG(_FastTD3, DDPG):
    """DDPG with fast updates; `use_fast_learner` makes one of a DDPG."""


_FAST: dict[type, type] = {SAC: FastSAC, TD3: FastTD3, DDPG: FastDDPG}


def _record_scale(model: Any) -> None:
    actor = model.fast_actor
    for name, scale in (actor.scales if isinstance(actor, ControllerActor) else {}).items():
        model.logger.record(f"train/{name}", scale)
    if model.fast_arithmetic is not None:
        scale = model.fast_arithmetic.scale
        model.logger.record("train/loss_scale", scale.scale)
        model.logger.record("train/skipped_updates", scale.skipped)


class _Temperature:
    """The entropy coefficient of a SAC, with the optimizer that it has."""

    def __init__(self, model: FastSAC) -> None:
        self._model = model

    def value(self) -> float:
        log = self._model.log_ent_coef
        if self._model.ent_coef_optimizer is None or log is None:
            return float(self._model.ent_coef_tensor)
        return math.exp(float(log.detach()))

    def learn(self, mean_log_prob: float) -> float | None:
        model = self._model
        if model.ent_coef_optimizer is None or model.log_ent_coef is None:
            return None
        assert isinstance(model.target_entropy, float)
        slope = -(mean_log_prob + model.target_entropy)
        loss = slope * float(model.log_ent_coef.detach())
        assert model.fast_alpha is not None
        model.fast_alpha.step(torch.tensor([slope]))
        return loss


def _transitions(model: Any, batch_size: int) -> Transitions:
    batch = model.replay_buffer.sample(batch_size, env=model._vec_normalize_env)
    discounts = model.gamma if batch.discounts is None else batch.discounts
    return Transitions(
        states=_seen(model, batch.observations),
        actions=batch.actions,
        rewards=batch.rewards.flatten(),
        next_states=_seen(model, batch.next_observations),
        discounts=((1 - batch.dones) * discounts).flatten(),
    )


def _seen(model: Any, observations: Tensor) -> Tensor:
    if not isinstance(model.observation_space, spaces.Box):  # whole numbers, one-hot
        observations = preprocess_obs(observations, model.observation_space)  # type: ignore[assignment]
    return observations.flatten(1).float()  # float64 where nothing normalizes MuJoCo's


def use_fast_learner(
    model: BaseAlgorithm,
    dtype: torch.dtype | None = None,
    controller: AgentController | None = None,
    precision: TrainPrecision | None = None,
    compiles: bool = False,
) -> None:
    """Make a SAC, TD3 or DDPG learn fast from now on, hidden layers' products in `dtype`.

    The actor's of a `controller` stay in float32. With a `precision` of few bits all layers learn
    in mixed precision, as Stable-Baselines3's do by `use_mixed_precision`; what is between networks
    and behind them, and Adam, is float32. With `compiles` PyTorch's compiler makes the kernels, at
    the first update, where all is in PyTorch's own dtypes.

    Raises TeacherError, one line, where it cannot; a controller has no `precision`.
    """
    _check(model)
    if controller is not None and precision is not None:
        _refuse("integer controllers and precision.format do not go together")
    agent: Any = model
    policy = agent.policy
    arithmetic = None if precision is None else _arithmetic(model, precision)
    products = dtype if arithmetic is None else arithmetic
    agent.fast_arithmetic = arithmetic
    actor, critic = FlatParameters(_actor_groups(policy.actor)), _critics(policy.critic)
    target = _critics(policy.critic_target)
    try:
        actor_adam = FlatAdam(actor, policy.actor.optimizer, arithmetic)
        critic_adam = FlatAdam(critic, policy.critic.optimizer, arithmetic)
    except ValueError as error:
        _refuse(f"{error}")
    if isinstance(model, SAC):
        agent.fast_alpha = None
        if model.ent_coef_optimizer is not None and model.log_ent_coef is not None:
            alpha: Any = FlatParameters([[model.log_ent_coef]])  # type: ignore[list-item]
            agent.fast_alpha = FlatAdam(alpha, model.ent_coef_optimizer)
    count = len(policy.critic.q_networks)
    critics = Critics(critic, target, critic_adam, count, products)
    compiles = compiles and arithmetic is None
    own = agent.fast_actor = _actor(policy.actor, actor, actor_adam, products, controller, compiles)
    if isinstance(model, SAC):
        agent.fast_update = SacUpdate(own, critics, compiles)
    else:
        followers = FlatParameters(_actor_groups(policy.actor_target))
        itself = _actor(policy.actor_target, followers, None, products, controller, compiles)
        agent.fast_update = Td3Update(own, itself, critics, compiles)
        agent.actor_vectors = (actor, followers)
    agent.fast_critics = critics
    policy.set_training_mode = _keep_mode
    model.__class__ = _FAST[type(model)]


def _keep_mode(mode: bool) -> None:
    """Set no mode, as Stable-Baselines3 does at every step: linear layers and ReLU have none."""


def _actor(
    network: Any,
    flat: FlatParameters,
    adam: FlatAdam | None,
    products: Products,
    controller: AgentController | None,
    compiles: bool,
) -> Actor:
    if controller is None:
        return FloatActor(flat, adam, products)
    return ControllerActor(network, flat, adam, controller, compiles)


def _arithmetic(model: Any, settings: TrainPrecision) -> LayerArithmetic:
    if isinstance(model, SAC):
        if settings.baseline != "placed_mixed_precision":
            _refuse("SAC learns in mixed precision by it: set precision.methods=[] and "
                    "precision.baseline=placed_mixed_precision")  # fmt: skip
    else:
        check_of_mixed(settings, type(model).__name__)
    if settings.eps != ADAM_EPS:
        _refuse("Adam's eps is in the policy's optimizer_kwargs, not precision.eps")
    assert settings.format is not None
    first, form = first_scale(settings), FloatFormat.parse(settings.format)
    masters = settings.master_weights
    return LayerArithmetic(form, model.critic.optimizer, first, masters=masters)


def _check(model: Any) -> None:
    if type(model) not in _FAST:
        _refuse(f"SAC, TD3 and DDPG have one; {type(model).__name__} does not")
    if model.device.type != "cpu":
        _refuse("it learns on a CPU: set device=cpu")
    if model.use_sde:
        _refuse("gSDE is not written for it: set use_sde=false")
    policy = model.policy
    has_images = policy.normalize_images and is_image_space(model.observation_space)
    if has_images or not isinstance(policy.actor.features_extractor, FlattenExtractor):
        is_dict = isinstance(model.observation_space, spaces.Dict) and not has_images
        way = "; --wrapper gymnasium.wrappers.FlattenObservation makes one of a Dict"
        _refuse(f"only agents that see vectors learn by it{way if is_dict else ''}")
    if policy.activation_fn is not nn.ReLU:
        _refuse(f"activations must be ReLU; this agent's are {policy.activation_fn.__name__}")


def _actor_groups(actor: Any) -> list[list[nn.Parameter]]:
    """Return weights and biases in turn, the layers' in the order of play."""
    if not hasattr(actor, "latent_pi"):
        return _groups([_linear(actor.mu)])
    hidden = _groups([_linear(actor.latent_pi)])
    heads = (actor.mu, actor.log_std)
    return [*hidden, [head.weight for head in heads], [head.bias for head in heads]]


def _critics(critic: Any) -> FlatParameters:
    return FlatParameters(_groups([_linear(network) for network in critic.q_networks]))


def _groups(networks: Sequence[list[nn.Linear]]) -> list[list[nn.Parameter]]:
    groups: list[list[nn.Parameter]] = []
    for layers in zip(*networks, strict=True):
        groups += [[each.weight for each in layers], [each.bias for each in layers]]
    return groups


def _linear(module: nn.Module) -> list[nn.Linear]:
    return [each for each in module.modules() if isinstance(each, nn.Linear)]


def _refuse(reason: str) -> None:
    raise TeacherError(f"train.learner=fast: {reason}", ErrorCode.TEACHER_TRAINING)
