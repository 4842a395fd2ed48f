"""The online networks of DQN and QR-DQN."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from qpd.teachers.networks.features import extractor
from qpd.teachers.networks.layers import linear_layers, mlp, refuse_unknown, under


class QNetwork(nn.Module):
    """SB3's QNetwork, or QR-DQN's QuantileNetwork with the mean taken over its quantiles."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        activation: type[nn.Module],
        num_quantiles: int | None = None,
    ) -> None:
        """Take a policy's tensors: QR-DQN's where `num_quantiles` is given.

        Target networks are ignored. TeacherError if the tensors do not fit.
        """
        super().__init__()
        head = "q_net." if num_quantiles is None else "quantile_net."
        refuse_unknown(tensors, (head, head.replace("_net", "_net_target")))
        online = under(tensors, head)
        refuse_unknown(online, ("features_extractor.", head))
        self.extractor = extractor(under(online, "features_extractor."))
        self.layers = mlp(under(online, head), activation, last_is_output=True)
        self.num_quantiles = num_quantiles or 1

    @property
    def hidden_layers(self) -> list[nn.Linear]:
        """The linear layers between features and outputs."""
        return linear_layers(self.layers)[:-1]

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Map float [batch, ...] to Q-values [batch, num_actions] and their maximum [batch, 1]."""
        q_values = self.layers(self.extractor(observations))
        if self.num_quantiles > 1:
            # QR-DQN's last layer is [quantiles, actions], in this order; it acts by the mean.
            q_values = q_values.unflatten(1, (self.num_quantiles, -1)).mean(1)
        return q_values, q_values.amax(1, keepdim=True)
