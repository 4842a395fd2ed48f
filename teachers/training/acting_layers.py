"""The layers of Stable-Baselines3's policies that act: what is quantized, in the order of play."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

_Q_NETWORKS = ("q_net", "quantile_net")


def acting_layers(policy: Any) -> list[list[nn.Module]]:
    """Return the acting layers of a policy, and of each of its target networks that act.

    Convolutions and linear layers from the observation to the head, which is last: the actor's, or
    the Q-network's. Critics and log-deviations are none of them.
    """
    if hasattr(policy, "mlp_extractor"):  # PPO, A2C, TRPO
        extractor = getattr(policy, "pi_features_extractor", policy.features_extractor)
        return [_layers([extractor, policy.mlp_extractor.policy_net, policy.action_net])]
    for name in _Q_NETWORKS:  # DQN, QR-DQN
        if hasattr(policy, name):
            networks = [getattr(policy, name), getattr(policy, f"{name}_target", None)]
            return [
                _layers([network.features_extractor, getattr(network, name)])
                for network in networks
                if network is not None
            ]
    actors = [policy.actor, getattr(policy, "actor_target", None)]  # SAC, TQC; DDPG, TD3
    return [
        _layers([actor.features_extractor, getattr(actor, "latent_pi", None), actor.mu])
        for actor in actors
        if actor is not None
    ]


def layer_names(layers: Iterable[nn.Module]) -> list[str]:
    """Name acting layers as those of students are: conv1, linear1, actor for the head."""
    names: list[str] = []
    for layer in layers:
        kind = "conv" if isinstance(layer, nn.Conv2d) else "linear"
        names.append(f"{kind}{1 + sum(name.startswith(kind) for name in names)}")
    return [*names[:-1], "actor"]


def _layers(modules: Iterable[nn.Module | None]) -> list[nn.Module]:
    return [
        layer
        for module in modules
        if module is not None
        for layer in module.modules()
        if isinstance(layer, (nn.Linear, nn.Conv2d))
    ]
