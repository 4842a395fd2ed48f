"""Stable-Baselines3's own policy object with a teacher's weights, nothing unpickled.

The policy's constructor gets what the shapes of the tensors say; then it loads the tensors. It is
what a user of the agent runs today, and what `qpd bench` compares with; training never needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from qpd.errors.codes import ErrorCode
from qpd.teachers.archive.errors import TeacherError, one_line
from qpd.teachers.archive.sb3_archive import read_sb3_archive
from qpd.teachers.sb3_networks import ACTIVATIONS, output_size
from qpd.teachers.sb3_teacher import Teacher
from qpd.version import pip_install

if TYPE_CHECKING:
    from stable_baselines3.common.policies import BasePolicy

_Q_NETWORKS = {"dqn": "q_net", "qrdqn": "quantile_net"}


def build_sb3_policy(teacher: Teacher) -> BasePolicy:
    """Build SB3's policy with the teacher's weights, on the CPU, in eval mode.

    It sees normalized observations: `teacher.normalization` has to be applied before. Raises
    TeacherError without stable_baselines3 (for QR-DQN sb3_contrib), and for tensors that the
    installed version's policies cannot hold, such as shared layers from before SB3 1.8.
    """
    tensors = read_sb3_archive(teacher.files.archive).state_dict
    # Agents made smaller by `compact_agent` hold float16; load_state_dict widens it.
    try:
        if not teacher.actions.has_values:
            policy = _actor_critic_policy(teacher, tensors)
        else:
            policy = _q_policy(teacher, tensors)
    except ImportError as error:
        raise TeacherError(
            f"{error.name or 'stable_baselines3'} is missing: {pip_install('train')}",
            ErrorCode.PACKAGE_MISSING,
        ) from error
    except (RuntimeError, AssertionError) as error:
        raise TeacherError(
            f"{teacher.source}: no policy of the installed Stable-Baselines3 holds this agent's"
            f" tensors ({one_line(error)})"
        ) from error
    policy.requires_grad_(False)
    policy.set_training_mode(False)
    return policy


def sb3_logits(policy: BasePolicy) -> Callable[[Tensor], Tensor]:
    """Return a function from observations `[batch, ...]` to `[batch, actions]`, as SB3 computes it.

    These are logits, or Q-values of DQN and QR-DQN. An actor-critic's critic is computed as well,
    as in the policy's `forward`.
    """
    from stable_baselines3.common.policies import ActorCriticPolicy

    network: Any = policy
    if isinstance(policy, ActorCriticPolicy):
        return lambda observations: _actor_critic_logits(network, observations)
    if hasattr(policy, "quantile_net"):
        return lambda observations: network.quantile_net(observations).mean(dim=1)
    return lambda observations: network.q_net(observations)


def _actor_critic_logits(policy: Any, observations: Tensor) -> Tensor:
    # The body of ActorCriticPolicy.forward, up to the distribution that it samples from.
    features = policy.extract_features(observations)
    if policy.share_features_extractor:
        latent_pi, latent_vf = policy.mlp_extractor(features)
    else:
        latent_pi = policy.mlp_extractor.forward_actor(features[0])
        latent_vf = policy.mlp_extractor.forward_critic(features[1])
    policy.value_net(latent_vf)
    logits: Tensor = policy.action_net(latent_pi)
    return logits


def _actor_critic_policy(teacher: Teacher, tensors: Mapping[str, Tensor]) -> BasePolicy:
    from stable_baselines3.common.policies import ActorCriticPolicy

    tensors = _with_all_extractors(tensors)
    shared = all(
        torch.equal(value, tensors[name.replace("pi_", "vf_", 1)])
        for name, value in tensors.items()
        if name.startswith("pi_features_extractor.")
    )
    policy = ActorCriticPolicy(
        **_arguments(teacher, tensors, "pi_features_extractor."),
        net_arch={
            "pi": _widths(tensors, "mlp_extractor.policy_net."),
            "vf": _widths(tensors, "mlp_extractor.value_net."),
        },
        share_features_extractor=shared,
        ortho_init=False,  # the weights are replaced at once
    )
    policy.load_state_dict(tensors)
    return policy


def _with_all_extractors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under all three names that SB3 >= 1.7 gives an extractor's."""
    prefix, full = "features_extractor.", dict(tensors)
    for name, value in tensors.items():
        if name.startswith(prefix):
            for head in ("pi_", "vf_"):
                full.setdefault(head + name, value)
    return full


def _q_policy(teacher: Teacher, tensors: Mapping[str, Tensor]) -> BasePolicy:
    name = _Q_NETWORKS[teacher.algo]
    mine = {
        key.removeprefix(f"{name}."): value
        for key, value in tensors.items()
        if key.startswith(f"{name}.")
    }
    arguments = _arguments(teacher, mine, "features_extractor.")
    # The last layer is the output's, which SB3 adds to net_arch.
    arguments["net_arch"] = _widths(mine, f"{name}.")[:-1]
    policy: Any
    if teacher.algo == "qrdqn":
        from sb3_contrib.qrdqn.policies import QRDQNPolicy

        quantiles = output_size(tensors) // teacher.actions.num_outputs
        policy = QRDQNPolicy(**arguments, n_quantiles=quantiles)
    else:
        from stable_baselines3.dqn.policies import DQNPolicy

        policy = DQNPolicy(**arguments)
    # The target network is training's.
    getattr(policy, name).load_state_dict(mine)
    built: BasePolicy = policy
    return built


def _arguments(teacher: Teacher, tensors: Mapping[str, Tensor], extractor: str) -> dict[str, Any]:
    """Return the constructor's arguments that all policies share."""
    from gymnasium import spaces
    from stable_baselines3.common.torch_layers import FlattenExtractor, NatureCNN

    shape = teacher.observation_shape
    seen = (
        spaces.Box(0, 255, shape, np.uint8)
        if teacher.is_image
        else spaces.Box(-np.inf, np.inf, shape, np.float32)
    )
    arguments: dict[str, Any] = {
        "observation_space": seen,
        "action_space": spaces.Discrete(teacher.actions.num_outputs),
        "lr_schedule": lambda progress: 0.0,
        "activation_fn": _activation(teacher),
        "normalize_images": teacher.scales_images,
        "features_extractor_class": FlattenExtractor,
    }
    if f"{extractor}linear.0.weight" in tensors:
        width = int(tensors[f"{extractor}linear.0.weight"].shape[0])
        arguments["features_extractor_class"] = NatureCNN
        arguments["features_extractor_kwargs"] = {"features_dim": width}
    return arguments


def _activation(teacher: Teacher) -> type[nn.Module]:
    """Return the class of the teacher's activations; Tanh where no hidden layer has one."""
    known = tuple(ACTIVATIONS.values())
    return next((type(m) for m in teacher.network.modules() if isinstance(m, known)), nn.Tanh)


def _widths(tensors: Mapping[str, Tensor], prefix: str) -> list[int]:
    """Return the outputs of each linear layer that SB3's create_mlp made, in its order."""
    widths: list[int] = []
    while (weight := tensors.get(f"{prefix}{2 * len(widths)}.weight")) is not None:
        widths.append(int(weight.shape[0]))
    return widths
