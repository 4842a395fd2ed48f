"""Off-policy agents with continuous actions: SAC and TQC, TD3 and DDPG.

Their actors end in a tanh, and their critics see what it returns: actions as shares of their range,
-1 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from qpd.errors.codes import ErrorCode
from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.networks.deviations import deviations
from qpd.teachers.networks.features import two_extractors
from qpd.teachers.networks.layers import (
    linear,
    linear_layers,
    mlp,
    parameter,
    refuse_unknown,
    under,
)


class GaussianActor(nn.Module):
    """The actor of SAC and TQC, from features to a Gaussian before the tanh.

    Under gSDE its mean is clipped to +-`clip_mean`, unless that is 0.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        activation: type[nn.Module],
        *,
        clip_mean: float,
        use_expln: bool,
    ) -> None:
        """Take the tensors under `actor.`, but the extractor's; TeacherError if they do not fit."""
        super().__init__()
        refuse_unknown(tensors, ("latent_pi.", "mu.", "log_std"))
        self.hidden = mlp(under(tensors, "latent_pi."), activation)
        # SB3 puts the clip behind the layer, which is then the first of two.
        is_clipped = "mu.0.weight" in tensors
        self.mean = linear(tensors, "mu.0" if is_clipped else "mu")
        self.clip_mean = clip_mean if is_clipped else None
        self.deviations = deviations(
            tensors, self.mean.out_features, self.mean.in_features, use_expln=use_expln
        )

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return means before the tanh and log-deviations, `[batch, actions]` both."""
        latent = self.hidden(features)
        means = self.mean(latent)
        if self.clip_mean is not None:
            means = means.clamp(-self.clip_mean, self.clip_mean)
        return means, self.deviations(latent)


class DeterministicActor(nn.Module):
    """The actor of TD3 and DDPG, from features to the tanh's input."""

    def __init__(self, tensors: Mapping[str, Tensor], activation: type[nn.Module]) -> None:
        """Take the tensors under `actor.`, but the extractor's; TeacherError if they do not fit."""
        super().__init__()
        refuse_unknown(tensors, ("mu.",))
        layers = list(mlp(under(tensors, "mu."), activation, last_is_output=True))
        self.hidden = nn.Sequential(*layers[:-1])
        assert isinstance(layers[-1], nn.Linear)
        self.mean: nn.Linear = layers[-1]

    def forward(self, features: Tensor) -> tuple[Tensor, None]:
        """Return means before the tanh, `[batch, actions]`, and no deviations."""
        return self.mean(self.hidden(features)), None


class Critics(nn.Module):
    """One or more critics of a state and an action in it."""

    def __init__(self, tensors: Mapping[str, Tensor], activation: type[nn.Module]) -> None:
        """Take `qf0`, `qf1` ...; TeacherError if they do not fit, or there is none."""
        super().__init__()
        count = sum(f"qf{index}.0.weight" in tensors for index in range(len(tensors)))
        if count == 0:
            parameter(tensors, "critic.qf0.0.weight")  # raises: it is missing
        refuse_unknown(tensors, tuple(f"qf{index}." for index in range(count)))
        self.networks = nn.ModuleList(
            mlp(under(tensors, f"qf{index}."), activation, last_is_output=True)
            for index in range(count)
        )

    def forward(self, features: Tensor, shares: Tensor) -> Tensor:
        """Return the least of the critics' values `[batch, 1]`; TQC's are means of quantiles."""
        inputs = torch.cat([features, shares], 1)
        each = [network(inputs).mean(1, keepdim=True) for network in self.networks]
        return torch.cat(each, 1).amin(1, keepdim=True)


class ContinuousNetwork(nn.Module):
    """An actor and its critics, which see its deterministic action."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        activation: type[nn.Module],
        *,
        is_gaussian: bool,
        is_quantile: bool = False,
        clip_mean: float = 2.0,
        use_expln: bool = False,
    ) -> None:
        """Take a policy's tensors under SB3's names; TeacherError if they do not fit.

        Where it `is_quantile` (TQC), a critic returns any number of quantiles, else one value.
        """
        super().__init__()
        refuse_unknown(tensors, ("actor.", "critic.", "actor_target.", "critic_target."))
        name = "features_extractor."
        actor, critics = under(tensors, "actor."), under(tensors, "critic.")
        self.actor_extractor, self.critic_extractor = two_extractors(
            under(actor, name), under(critics, name)
        )
        actor, critics = _without(actor, name), _without(critics, name)
        self.actor: GaussianActor | DeterministicActor = (
            GaussianActor(actor, activation, clip_mean=clip_mean, use_expln=use_expln)
            if is_gaussian
            else DeterministicActor(actor, activation)
        )
        self.num_actions = self.actor.mean.out_features
        self.critics = Critics(critics, activation)
        sizes = [linear_layers(critic)[-1].out_features for critic in self.critics.networks]
        expected = sizes[0] if is_quantile else 1
        if any(size != expected for size in sizes):
            raise TeacherError(
                f"critics return {', '.join(map(str, sizes))} numbers; expected {expected} each",
                ErrorCode.TEACHER_DAMAGED,
            )

    @property
    def hidden_layers(self) -> list[nn.Linear]:
        """The actor's linear layers between features and mean."""
        return linear_layers(self.actor.hidden)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Map float [batch, ...] to outputs [batch, n] and values [batch, 1].

        Outputs are means before the tanh, and a Gaussian's log-deviations after them. The value is
        the least of the critics' at the mean's action.
        """
        features = self.actor_extractor(observations)
        outputs = self._outputs(features)
        if self.critic_extractor is not self.actor_extractor:
            features = self.critic_extractor(observations)
        return outputs, self._values(features, outputs)

    @property
    def judges_apart(self) -> bool:
        """Tell whether the critics share no layer with the actor."""
        return not any(True for _ in self.critic_extractor.parameters())

    def act(self, observations: Tensor) -> Tensor:
        """Return the outputs of `forward` alone."""
        return self._outputs(self.actor_extractor(observations))

    def judge(self, observations: Tensor, outputs: Tensor) -> Tensor:
        """Return the values `[batch, 1]` of `forward`, given its outputs."""
        return self._values(self.critic_extractor(observations), outputs)

    def _outputs(self, features: Tensor) -> Tensor:
        means, log_deviations = self.actor(features)
        return means if log_deviations is None else torch.cat([means, log_deviations], 1)

    def _values(self, features: Tensor, outputs: Tensor) -> Tensor:
        values: Tensor = self.critics(features, torch.tanh(outputs[:, : self.num_actions]))
        return values


def _without(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key: value for key, value in tensors.items() if not key.startswith(prefix)}
