"""Layers of named tensors: each takes its tensors as they are, or says what does not fit."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from qpd.errors.codes import ErrorCode
from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.training.layer_norm import LayerNormReLU, LayerNormTanh

ACTIVATIONS: dict[str, type[nn.Module]] = {
    cls.__name__: cls
    for cls in (
        nn.CELU, nn.ELU, nn.GELU, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Identity,
        nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.Sigmoid, nn.SiLU,
        nn.Softplus, nn.Softsign, nn.Tanh, nn.Tanhshrink, LayerNormReLU, LayerNormTanh,
    )
}  # fmt: skip


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, which is removed."""
    return {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}


def refuse_unknown(tensors: Mapping[str, Tensor], known: tuple[str, ...]) -> None:
    """Raise TeacherError where a name begins with none of `known`."""
    unknown = sorted(key for key in tensors if not key.startswith(known))
    if unknown:
        raise TeacherError(
            f"unknown network part '{unknown[0]}'; supported are SB3's CnnPolicy and MlpPolicy"
            " with net_arch and activation_fn, without layers of your own"
        )


def layer_index(name: str) -> int:
    """Return the number at the end of a layer's name, -1 if there is none."""
    last = name.rsplit(".", 1)[-1]
    return int(last) if last.isdecimal() else -1


def mlp(
    tensors: Mapping[str, Tensor],
    activation: type[nn.Module],
    *,
    last_is_output: bool = False,
    needs_bias: bool = True,
) -> nn.Sequential:
    """Rebuild SB3's create_mlp: linear layers at even indices, activations between them.

    With `last_is_output` no activation follows the last layer, and there has to be one.
    """
    num_layers = sum(key.endswith(".weight") for key in tensors)
    refuse_unknown(tensors, tuple(f"{2 * index}." for index in range(num_layers)) or ("-",))
    layers: list[nn.Module] = []
    for index in range(max(num_layers, int(last_is_output))):
        layers += [linear(tensors, str(2 * index), needs_bias=needs_bias), activation()]
    return nn.Sequential(*(layers[:-1] if last_is_output else layers))


def linear(tensors: Mapping[str, Tensor], name: str, *, needs_bias: bool = True) -> nn.Linear:
    """Make the linear layer of NAME.weight and NAME.bias; TeacherError if they do not fit.

    Without `needs_bias` the bias may be absent.
    """
    weight, bias = _weight_and_bias(tensors, name, 2, needs_bias)
    # On the meta device nothing is allocated or initialised: the tensors are put in at once.
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = weight
    layer.bias = bias
    return layer


def convolution(tensors: Mapping[str, Tensor], name: str, kernel: int, stride: int) -> nn.Conv2d:
    """Make a convolution of NAME.weight and NAME.bias; TeacherError if they do not fit."""
    weight, bias = _weight_and_bias(tensors, name, 4)
    if tuple(weight.shape[2:]) != (kernel, kernel):
        raise TeacherError(
            f"'{name}.weight' has kernel {tuple(weight.shape[2:])}; NatureCNN has {kernel}x{kernel}"
        )
    layer = nn.Conv2d(weight.shape[1], weight.shape[0], kernel, stride, device="meta")
    layer.weight, layer.bias = weight, bias
    return layer


def parameter(tensors: Mapping[str, Tensor], key: str) -> nn.Parameter:
    """Return a tensor in float32; TeacherError unless it is there, and all numbers are finite."""
    if key not in tensors:
        raise TeacherError(f"tensor '{key}' is missing", ErrorCode.TEACHER_DAMAGED)
    if not tensors[key].is_floating_point():
        raise TeacherError(
            f"tensor '{key}' is {tensors[key].dtype}; expected floating point",
            ErrorCode.TEACHER_DAMAGED,
        )
    # Agents made smaller by compact_agent hold float16.
    value = tensors[key].detach().to(torch.float32).contiguous()
    if not bool(torch.isfinite(value).all()):
        raise TeacherError(
            f"tensor '{key}' contains NaN or infinity; expected finite weights",
            ErrorCode.TEACHER_NOT_FINITE,
        )
    return nn.Parameter(value, requires_grad=False)


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    """Return a network's linear layers in their order."""
    return [module for module in network.modules() if isinstance(module, nn.Linear)]


def _weight_and_bias(
    tensors: Mapping[str, Tensor], name: str, num_dimensions: int, needs_bias: bool = True
) -> tuple[nn.Parameter, nn.Parameter]:
    weight = parameter(tensors, f"{name}.weight")
    has_bias = needs_bias or f"{name}.bias" in tensors
    bias = parameter(tensors, f"{name}.bias") if has_bias else None
    fits = bias is None or bias.shape == weight.shape[:1]
    if weight.dim() != num_dimensions or 0 in weight.shape or not fits:
        shapes = f"weight {tuple(weight.shape)}"
        shapes += f" and bias {tuple(bias.shape)}" if bias is not None else ""
        raise TeacherError(
            f"'{name}' has {shapes}; expected {num_dimensions} dimensions and one bias per output",
            ErrorCode.TEACHER_DAMAGED,
        )
    return weight, bias  # type: ignore[return-value]
