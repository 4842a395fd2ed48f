"""Layer normalization before an activation (Ba et al., arXiv 1607.06450), as Stable-Baselines3 can.

SB3 builds hidden layers of a linear map and `activation_fn()`, which knows no width. So these have
no gain and no shift to learn: the layer's outputs get mean 0 and deviation 1, then the activation.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class LayerNormed(nn.Module):
    """Layer normalization, then an activation."""

    activation: type[nn.Module]

    def forward(self, mapped: Tensor) -> Tensor:
        """Normalize each of `[batch, units]` over its units, then apply the activation."""
        found: Tensor = self.activation()(F.layer_norm(mapped, mapped.shape[-1:]))
        return found


class LayerNormTanh(LayerNormed):
    """Layer normalization, then tanh."""

    activation = nn.Tanh


class LayerNormReLU(LayerNormed):
    """Layer normalization, then ReLU."""

    activation = nn.ReLU


_OF: dict[type[nn.Module], type[nn.Module]] = {
    kind.activation: kind for kind in (LayerNormTanh, LayerNormReLU)
}


def layer_normed(activation: type[nn.Module]) -> type[nn.Module]:
    """Return the class with layer normalization before `activation`.

    Raises ValueError where there is none.
    """
    if activation not in _OF:
        known = ", ".join(kind.__name__ for kind in _OF)
        raise ValueError(f"layer_norm: the activation is {activation.__name__}; expected {known}")
    return _OF[activation]


def has_layer_norm(network: nn.Module) -> bool:
    """Tell whether a layer of a network is normalized."""
    return any(isinstance(module, LayerNormed) for module in network.modules())
