"""SB3's ActorCriticPolicy: PPO, A2C and TRPO."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.networks.deviations import deviations
from qpd.teachers.networks.features import two_extractors
from qpd.teachers.networks.layers import linear, linear_layers, mlp, refuse_unknown, under

_PARTS = ("features_extractor.", "pi_features_extractor.", "vf_features_extractor.",
          "mlp_extractor.shared_net.", "mlp_extractor.policy_net.", "mlp_extractor.value_net.",
          "action_net.", "value_net.", "log_std")  # fmt: skip


class ActorCriticNetwork(nn.Module):
    """An actor and a critic, which may share an extractor and first layers."""

    def __init__(
        self, tensors: Mapping[str, Tensor], activation: type[nn.Module], *, use_expln: bool = False
    ) -> None:
        """Take a policy's tensors under SB3's names; TeacherError if they do not fit.

        `log_std` among them makes it a Gaussian policy; `use_expln` is gSDE's setting.
        """
        super().__init__()
        refuse_unknown(tensors, _PARTS)
        shared = under(tensors, "features_extractor.")
        self.actor_extractor, self.critic_extractor = two_extractors(
            # SB3 >= 1.7 saves both beside `features_extractor`, which is one of them.
            under(tensors, "pi_features_extractor.") or shared,
            under(tensors, "vf_features_extractor.") or shared,
        )
        self.shared_net = mlp(under(tensors, "mlp_extractor.shared_net."), activation)
        self.policy_net = mlp(under(tensors, "mlp_extractor.policy_net."), activation)
        self.value_net = mlp(under(tensors, "mlp_extractor.value_net."), activation)
        self.action_head = linear(tensors, "action_net")
        self.value_head = linear(tensors, "value_net")
        if self.value_head.out_features != 1:
            raise TeacherError("'value_net' outputs more than 1 value; expected one per state")
        self.deviations: nn.Module | None = None
        if any(key.startswith("log_std") for key in tensors):
            head = self.action_head
            self.deviations = deviations(
                tensors, head.out_features, head.in_features, use_expln=use_expln
            )

    @property
    def hidden_layers(self) -> list[nn.Linear]:
        """The actor's linear layers between features and head, those it shares included."""
        return [*linear_layers(self.shared_net), *linear_layers(self.policy_net)]

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Map float [batch, ...] to outputs [batch, n] and values [batch, 1].

        Outputs are logits, or a Gaussian's means and then the logarithms of its deviations.
        """
        actor = self.shared_net(self.actor_extractor(observations))
        # Saves running the convolutions, most of the work, a second time.
        if self.critic_extractor is self.actor_extractor:
            critic = actor
        else:
            critic = self.shared_net(self.critic_extractor(observations))
        return self._outputs(actor), self.value_head(self.value_net(critic))

    @property
    def judges_apart(self) -> bool:
        """Tell whether the critic shares no layer with the actor."""
        shared = (*self.critic_extractor.parameters(), *self.shared_net.parameters())
        return not shared

    def act(self, observations: Tensor) -> Tensor:
        """Return the outputs of `forward` alone."""
        return self._outputs(self.shared_net(self.actor_extractor(observations)))

    def judge(self, observations: Tensor, outputs: Tensor) -> Tensor:
        """Return the values `[batch, 1]` of `forward`; its outputs are not needed."""
        critic = self.shared_net(self.critic_extractor(observations))
        values: Tensor = self.value_head(self.value_net(critic))
        return values

    def _outputs(self, features: Tensor) -> Tensor:
        latent = self.policy_net(features)
        outputs: Tensor = self.action_head(latent)
        if self.deviations is None:
            return outputs
        return torch.cat([outputs, self.deviations(latent)], 1)
