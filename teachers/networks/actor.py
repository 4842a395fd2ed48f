"""An agent's actor as a chain of layers: what is quantized, and what a student can be made of."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn import functional as F

from qpd.errors.codes import ErrorCode
from qpd.quantization.controller_layer import FrozenControllerLinear
from qpd.quantization.layer_quantizer import LayerQuantizer
from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.networks.actor_critic import ActorCriticNetwork
from qpd.teachers.networks.build import Network
from qpd.teachers.networks.continuous import ContinuousNetwork
from qpd.teachers.networks.features import CombinedFeatures, NatureCnn
from qpd.teachers.networks.layers import ACTIVATIONS, linear_layers
from qpd.teachers.networks.q_network import QNetwork


@dataclass(frozen=True)
class ActorLayer:
    """One layer: a convolution `[out, in, kh, kw]` without padding, or a linear map `[out, in]`.

    `bias` float32 `[out]`, zeros where the agent has none. `activation` is a class's name, None of
    the head's. `columns`: input channels; a linear layer behind convolutions has several inputs
    for each. `quantizer`: of the inputs, where the agent was trained to be quantized; its weights
    are quantized already.
    """

    name: str
    weight: Tensor
    bias: Tensor
    activation: str | None
    columns: int
    stride: int = 1
    quantizer: LayerQuantizer | None = None

    def __call__(self, inputs: Tensor) -> Tensor:
        """Apply the map, without its activation; images are flattened for a linear one."""
        if self.quantizer is not None:
            inputs = self.quantizer.quantized_inputs(inputs)
        if self.weight.dim() == 4:
            return F.conv2d(inputs, self.weight, self.bias, self.stride)
        return F.linear(inputs.flatten(1), self.weight, self.bias)


@dataclass(frozen=True)
class Actor:
    """The layers from a network's inputs to its outputs, the head last, named `actor`.

    Layers are called as a student's are. A head of QR-DQN's quantiles is their mean already. The
    outputs are clipped to +-`bound`, unless that is None.
    """

    layers: tuple[ActorLayer, ...]
    bound: float | None = None

    @property
    def num_parameters(self) -> int:
        """Weights and biases."""
        return sum(layer.weight.numel() + layer.bias.numel() for layer in self.layers)

    def with_weights(self, weights: list[Tensor]) -> Actor:
        """Return the same actor with other weights, in the order of its layers."""
        pairs = zip(self.layers, weights, strict=True)
        return replace(self, layers=tuple(replace(each, weight=w) for each, w in pairs))

    def clipped(self, outputs: Tensor) -> Tensor:
        """Return outputs within the bound."""
        return outputs if self.bound is None else outputs.clamp(-self.bound, self.bound)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Map a network's inputs, float32 `[batch, ...]`, to outputs `[batch, n]`."""
        for layer in self.layers:
            inputs = activate(layer, layer(inputs))
        return self.clipped(inputs)


def activate(layer: ActorLayer, mapped: Tensor) -> Tensor:
    """Apply a layer's activation to what its map returned."""
    if layer.activation is None:
        return mapped
    found: Tensor = ACTIVATIONS[layer.activation]()(mapped)
    return found


def actor_of(network: Network, activation: str) -> Actor:
    """Return the actor of an agent's network; `activation` is that of its linear layers.

    Raises TeacherError for an integer controller, whose outputs are quantized as well, and for an
    agent that sees an image and vectors, whose layers are no chain.
    """
    if any(isinstance(each, CombinedFeatures) for each in network.modules()):
        raise TeacherError(
            "sees a Dict with images, and its layers are no chain: distil it (`qpd run --teacher`"
            ", `qpd distill`) instead",
            ErrorCode.TEACHER_SETTINGS,
        )
    if any(isinstance(each, FrozenControllerLinear) for each in network.modules()):
        raise TeacherError(
            "was trained as an integer controller: the folder of its training has its integers "
            "(quantized.safetensors), which `qpd export` and `qpd fpga` take",
            ErrorCode.TEACHER_SETTINGS,
        )
    bound: float | None = None
    extractor: nn.Module
    head: nn.Module
    if isinstance(network, ActorCriticNetwork):
        extractor, head = network.actor_extractor, network.action_head
    elif isinstance(network, ContinuousNetwork):
        extractor, head = network.actor_extractor, network.actor.mean
        bound = getattr(network.actor, "clip_mean", None)
    elif isinstance(network, QNetwork):
        extractor, head = network.extractor, _mean_of_quantiles(network)
    else:
        extractor, head = network.flatten, linear_layers(network.layers)[-1]
    found = _extractor_layers(extractor)
    for layer in network.hidden_layers:
        number = 1 + sum(each.weight.dim() == 2 for each in found)
        found.append(_linear(f"linear{number}", layer, activation))
    found.append(_linear("actor", head, None))
    return Actor(tuple(found), bound)


def actor_modules(network: Network) -> list[nn.Module]:
    """Return the convolutions and linear layers that act, the head last."""
    if isinstance(network, ActorCriticNetwork):
        parts = [network.actor_extractor, *network.hidden_layers, network.action_head]
    elif isinstance(network, ContinuousNetwork):
        parts = [network.actor_extractor, *network.hidden_layers, network.actor.mean]
    elif isinstance(network, QNetwork):
        parts = [network.extractor, network.layers]
    else:
        parts = [network.layers]
    kinds = (nn.Linear, nn.Conv2d)
    return [each for part in parts for each in part.modules() if isinstance(each, kinds)]


def _extractor_layers(extractor: nn.Module) -> list[ActorLayer]:
    """Return a NatureCNN's layers, none for vectors."""
    if not isinstance(extractor, NatureCnn):
        return []
    layers = []
    for position, module in enumerate(extractor.convolutions, start=1):
        assert isinstance(module, nn.Conv2d) and module.bias is not None
        name, columns = f"conv{position}", module.in_channels
        stride = module.stride[0]
        quantizer = getattr(module, "quantizer", None)
        layers.append(
            ActorLayer(name, module.weight, module.bias, "ReLU", columns, stride, quantizer)
        )
    linear = _linear("linear1", extractor.linear, "ReLU", extractor.out_channels)
    return [*layers, linear]


def _linear(
    name: str, layer: nn.Module, activation: str | None, channels: int | None = None
) -> ActorLayer:
    assert isinstance(layer, nn.Linear)
    bias = layer.bias if layer.bias is not None else layer.weight.new_zeros(layer.out_features)
    quantizer = getattr(layer, "quantizer", None)
    columns = channels or layer.in_features
    return ActorLayer(name, layer.weight, bias, activation, columns, quantizer=quantizer)


def _mean_of_quantiles(network: QNetwork) -> nn.Linear:
    """Return the layer whose outputs are the means of QR-DQN's quantiles; DQN's own head."""
    head = linear_layers(network.layers)[-1]
    if network.num_quantiles == 1:
        return head
    # [quantiles, actions] in this order; in float64, as a sum of 200 numbers loses digits.
    means = [
        parameter.double().unflatten(0, (network.num_quantiles, -1)).mean(0).float()
        for parameter in (head.weight, head.bias)
    ]
    folded = nn.Linear(means[0].shape[1], means[0].shape[0], device="meta")
    folded.weight, folded.bias = (nn.Parameter(mean, requires_grad=False) for mean in means)
    if (quantizer := getattr(head, "quantizer", None)) is not None:
        folded.quantizer = quantizer
    return folded
