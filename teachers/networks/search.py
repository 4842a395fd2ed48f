"""The policies of ARS (augmented random search): an actor alone, often one linear layer."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from qpd.teachers.networks.layers import linear, linear_layers, mlp, refuse_unknown, under


class SearchNetwork(nn.Module):
    """sb3_contrib's ARSPolicy and ARSLinearPolicy; a tanh at the end is left to the actions."""

    def __init__(self, tensors: Mapping[str, Tensor], activation: type[nn.Module]) -> None:
        """Take a policy's tensors; layers may lack a bias. TeacherError if they do not fit."""
        super().__init__()
        refuse_unknown(tensors, ("action_net.",))
        layers = under(tensors, "action_net.")
        self.layers: nn.Sequential = (
            nn.Sequential(linear(tensors, "action_net", needs_bias=False))
            if "weight" in layers  # older linear policies, which were no Sequential
            else mlp(layers, activation, last_is_output=True, needs_bias=False)
        )
        self.flatten = nn.Flatten()

    @property
    def hidden_layers(self) -> list[nn.Linear]:
        """The linear layers before the last."""
        return linear_layers(self.layers)[:-1]

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Map float [batch, ...] to outputs [batch, n] and values [batch, 1], which are 0."""
        outputs = self.layers(self.flatten(observations))
        return outputs, outputs.new_zeros(len(outputs), 1)
