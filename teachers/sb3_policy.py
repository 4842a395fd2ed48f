"""Stable-Baselines3's own policy object with a teacher's weights, nothing unpickled.

The policy's constructor gets what the shapes of the tensors say; then it loads the tensors. It is
what a user of the agent runs today, and what `qpd bench` compares with; training never needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from qpd.actions import ActionSpace, Box
from qpd.environments.action_spaces import space_of
from qpd.errors.codes import ErrorCode
from qpd.teachers.archive.algorithm import (
    ACTOR_CRITIC_ALGORITHMS,
    GAUSSIAN_ALGORITHMS,
    Q_ALGORITHMS,
    SEARCH_ALGORITHM,
)
from qpd.teachers.archive.errors import TeacherError, one_line
from qpd.teachers.archive.plain_data import read_flag
from qpd.teachers.archive.sb3_archive import Sb3Archive, read_sb3_archive
from qpd.teachers.networks.build import clip_mean, output_size
from qpd.teachers.networks.features import CombinedFeatures
from qpd.teachers.networks.layers import ACTIVATIONS, under
from qpd.teachers.networks.quantized import quantize_layers
from qpd.teachers.sb3_teacher import Teacher
from qpd.teachers.training.acting_layers import acting_layers
from qpd.version import pip_install

if TYPE_CHECKING:
    from stable_baselines3.common.policies import BasePolicy

_Q_NETWORKS = {"dqn": "q_net", "qrdqn": "quantile_net"}


def build_sb3_policy(teacher: Teacher) -> BasePolicy:
    """Build SB3's policy with the teacher's weights, on the CPU, in eval mode.

    What it sees, `sb3_observations` makes of a teacher's observations. Raises
    TeacherError without stable_baselines3 (for QR-DQN, TQC and ARS sb3_contrib), and for tensors
    that the installed version's policies cannot hold, such as shared layers from before SB3 1.8.
    """
    archive = read_sb3_archive(teacher.files.archive)
    build = _continuous_policy
    if teacher.algo in ACTOR_CRITIC_ALGORITHMS:
        build = _actor_critic_policy
    elif teacher.algo in Q_ALGORITHMS:
        build = _q_policy
    elif teacher.algo == SEARCH_ALGORITHM:
        build = _search_policy
    # Agents made smaller by `compact_agent` hold float16; load_state_dict widens it.
    try:
        policy = build(teacher, archive)
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
    if teacher.quantization is not None:
        quantize_layers(acting_layers(policy)[0], teacher.quantization)
    policy.set_training_mode(False)
    return policy


def sb3_logits(policy: BasePolicy) -> Callable[[Any], Tensor]:
    """Return a function from observations `[batch, ...]` to outputs `[batch, n]`, as SB3's.

    Observations are a Tensor, or of a Dict one for each key. The outputs are logits, Q-values of
    DQN and QR-DQN, or means of continuous actions: before the tanh of SAC and TQC, after that of
    TD3, DDPG and ARS. An actor-critic's critic is computed as well, as in the policy's `forward`.
    """
    from stable_baselines3.common.policies import ActorCriticPolicy

    network: Any = policy
    if isinstance(policy, ActorCriticPolicy):
        return lambda observations: _actor_critic_logits(network, observations)
    if hasattr(policy, "quantile_net"):
        return lambda observations: network.quantile_net(observations).mean(dim=1)
    if hasattr(policy, "q_net"):
        return lambda observations: network.q_net(observations)
    if not hasattr(policy, "actor"):
        flatten = network.features_extractor
        return lambda observations: network.action_net(flatten(observations))
    if hasattr(network.actor, "log_std"):
        return lambda observations: network.actor.get_action_dist_params(observations)[0]
    return lambda observations: network.actor(observations)


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


def _actor_critic_policy(teacher: Teacher, archive: Sb3Archive) -> BasePolicy:
    from stable_baselines3.common.policies import ActorCriticPolicy

    tensors = _with_all_extractors(archive.state_dict)
    shared = all(
        torch.equal(value, tensors[name.replace("pi_", "vf_", 1)])
        for name, value in tensors.items()
        if name.startswith("pi_features_extractor.")
    )
    arguments = _arguments(teacher, tensors, "pi_features_extractor.")
    log_std = tensors.get("log_std")
    if log_std is not None and log_std.dim() == 2:  # gSDE
        arguments |= {
            "use_sde": True,
            "full_std": tuple(log_std.shape)[1] == teacher.actions.num_outputs,
            "use_expln": read_flag(archive.data, "use_expln"),
            "squash_output": read_flag(archive.data, "squash_output"),
        }
    policy = ActorCriticPolicy(
        **arguments,
        net_arch={
            "pi": _widths(tensors, "mlp_extractor.policy_net."),
            "vf": _widths(tensors, "mlp_extractor.value_net."),
        },
        share_features_extractor=shared,
        ortho_init=False,  # the weights are replaced at once
    )
    policy.load_state_dict(tensors)
    return policy


def _search_policy(teacher: Teacher, archive: Sb3Archive) -> BasePolicy:
    from sb3_contrib.ars.policies import ARSPolicy

    # Linear policies of before sb3_contrib 1.5 had no Sequential.
    tensors = {
        name.replace("action_net.weight", "action_net.0.weight"): value
        for name, value in archive.state_dict.items()
    }
    arguments = _arguments(teacher, tensors, "features_extractor.")
    policy = ARSPolicy(
        arguments["observation_space"],
        arguments["action_space"],
        net_arch=_widths(tensors, "action_net.")[:-1],
        activation_fn=arguments["activation_fn"],
        with_bias="action_net.0.bias" in tensors,
        squash_output=_is_squashed(teacher.actions),
    )
    policy.load_state_dict(tensors)
    return policy


def _is_squashed(actions: ActionSpace) -> bool:
    return isinstance(actions, Box) and actions.squash == "tanh"


def _continuous_policy(teacher: Teacher, archive: Sb3Archive) -> BasePolicy:
    from stable_baselines3.sac.policies import SACPolicy
    from stable_baselines3.td3.policies import TD3Policy

    actor, critic = (under(archive.state_dict, f"{name}.") for name in ("actor", "critic"))
    arguments = _arguments(teacher, archive.state_dict, "actor.features_extractor.")
    num_critics = sum(f"qf{index}.0.weight" in critic for index in range(len(critic)))
    arguments["n_critics"] = num_critics
    kind: Any = TD3Policy
    if teacher.algo in GAUSSIAN_ALGORITHMS:
        kind = SACPolicy
        arguments |= {
            "use_sde": "log_std" in actor,
            "use_expln": read_flag(archive.data, "use_expln"),
            "clip_mean": clip_mean(archive) if "mu.0.weight" in actor else 0.0,
        }
    critics = _widths(critic, "qf0.")
    if teacher.algo == "tqc":
        from sb3_contrib.tqc.policies import TQCPolicy

        kind, arguments["n_quantiles"] = TQCPolicy, critics[-1]
    hidden = _widths(actor, "latent_pi.")
    if teacher.algo not in GAUSSIAN_ALGORITHMS:
        hidden = _widths(actor, "mu.")[:-1]
    policy = kind(**arguments, net_arch={"pi": hidden, "qf": critics[:-1]})
    # Target networks are training's.
    policy.actor.load_state_dict(actor)
    policy.critic.load_state_dict(critic)
    built: BasePolicy = policy
    return built


def _with_all_extractors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under all three names that SB3 >= 1.7 gives an extractor's."""
    prefix, full = "features_extractor.", dict(tensors)
    for name, value in tensors.items():
        if name.startswith(prefix):
            for head in ("pi_", "vf_"):
                full.setdefault(head + name, value)
    return full


def _q_policy(teacher: Teacher, archive: Sb3Archive) -> BasePolicy:
    name, tensors = _Q_NETWORKS[teacher.algo], archive.state_dict
    mine = under(tensors, f"{name}.")
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
    from stable_baselines3.common.torch_layers import (
        CombinedExtractor,
        FlattenExtractor,
    )

    from qpd.teachers.training.sized_cnn import SizedNatureCNN

    shape, combined = teacher.observation_shape, _combined_features(teacher)
    seen: spaces.Space[Any] = (
        spaces.Box(0, 255, shape, np.uint8)
        if teacher.is_image
        else spaces.Box(-np.inf, np.inf, shape, np.float32)
    )
    arguments: dict[str, Any] = {
        "observation_space": seen,
        "action_space": space_of(teacher.actions),
        "lr_schedule": lambda progress: 0.0,
        "activation_fn": ACTIVATIONS[teacher.activation],
        "normalize_images": teacher.scales_images,
        "features_extractor_class": FlattenExtractor,
    }
    if f"{extractor}linear.0.weight" in tensors:
        width = int(tensors[f"{extractor}linear.0.weight"].shape[0])
        channels = [int(tensors[f"{extractor}cnn.{k}.weight"].shape[0]) for k in (0, 2, 4)]
        arguments["features_extractor_class"] = SizedNatureCNN
        arguments["features_extractor_kwargs"] = {"features_dim": width, "channels": channels}
    if combined is not None:
        # Pairs, not a mapping: gymnasium would sort its keys.
        parts = [
            (key, spaces.Box(0, 255, part, np.uint8))
            if key in combined.images
            else (key, spaces.Box(-np.inf, np.inf, (prod(part),), np.float32))
            for key, _, part in combined.parts
        ]
        width = next(iter(combined.images.values())).linear.out_features
        arguments["observation_space"] = spaces.Dict(parts)
        arguments["features_extractor_class"] = CombinedExtractor
        arguments["features_extractor_kwargs"] = {"cnn_output_dim": width}
    return arguments


def sb3_observations(
    teacher: Teacher, observations: np.ndarray
) -> np.ndarray | dict[str, np.ndarray]:
    """Return what the policy of `build_sb3_policy` sees of a teacher's observations, `[n, ...]`.

    VecNormalize's statistics are applied. Of a Dict with images that is each part by its key,
    images uint8 `[n, channels, height, width]`, others float32 `[n, size]`.
    """
    if teacher.normalization is not None:
        observations = teacher.normalization.apply(observations)
    combined = _combined_features(teacher)
    if combined is None:
        return observations
    flat = observations.reshape(len(observations), -1)
    parts = {}
    for key, first, shape in combined.parts:
        part = flat[:, first : first + prod(shape)]
        is_image = key in combined.images
        parts[key] = part.reshape(-1, *shape).astype(np.uint8) if is_image else part
    return parts


def _combined_features(teacher: Teacher) -> CombinedFeatures | None:
    """Return the first extractor of a Dict with images, which is the actor's; None without."""
    return next((m for m in teacher.network.modules() if isinstance(m, CombinedFeatures)), None)


def _widths(tensors: Mapping[str, Tensor], prefix: str) -> list[int]:
    """Return the outputs of each linear layer that SB3's create_mlp made, in its order."""
    widths: list[int] = []
    while (weight := tensors.get(f"{prefix}{2 * len(widths)}.weight")) is not None:
        widths.append(int(weight.shape[0]))
    return widths
