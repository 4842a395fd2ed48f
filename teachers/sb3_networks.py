"""Rebuild SB3's policy networks from the shapes of their tensors.

Supported are NatureCNN (`CnnPolicy`) and flat (`MlpPolicy`) extractors under
actor-critic heads, DQN's Q-network and QR-DQN's quantile network. Whatever the tensors
do not prove to be one of these is refused, never guessed.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qpd.errors.codes import ErrorCode
from qpd.teachers.archive.errors import TeacherError

ACTIVATIONS: dict[str, type[nn.Module]] = {
    cls.__name__: cls
    for cls in (
        nn.CELU, nn.ELU, nn.GELU, nn.Hardtanh, nn.Identity, nn.LeakyReLU, nn.Mish, nn.ReLU,
        nn.ReLU6, nn.SELU, nn.Sigmoid, nn.SiLU, nn.Softplus, nn.Softsign, nn.Tanh,
    )
}  # fmt: skip

NATURE_CNN_LAYERS = ((8, 4), (4, 2), (3, 1))  # (kernel, stride), Mnih et al. 2015


class NatureCnn(nn.Module):
    """Three convolutions and a linear layer, ReLU after each.

    Input float [batch, channels, height, width]; output float [batch, features].
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Take `cnn.{0,2,4}` and `linear.0` as they are; TeacherError if they do not fit."""
        super().__init__()
        layers = [
            _convolution(tensors, f"cnn.{2 * index}", kernel, stride)
            for index, (kernel, stride) in enumerate(NATURE_CNN_LAYERS)
        ]
        self.convolutions = nn.ModuleList(layers)
        self.in_channels, self.out_channels = layers[0].in_channels, layers[-1].out_channels
        self.linear = _linear(tensors, "linear.0")

    def forward(self, images: Tensor) -> Tensor:
        """Return the features; keeps a channels-last layout through the convolutions."""
        for convolution in self.convolutions:
            images = F.relu(convolution(images))
        return F.relu(self.linear(images.flatten(1)))

    def flat_size(self, height: int, width: int) -> int:
        """Return how many numbers the convolutions leave of an image."""
        for kernel, stride in NATURE_CNN_LAYERS:
            height = (height - kernel) // stride + 1
            width = (width - kernel) // stride + 1
        return height * width * self.out_channels if min(height, width) > 0 else 0


class ActorCriticNetwork(nn.Module):
    """SB3's ActorCriticPolicy; actor and critic may share an extractor and first layers."""

    def __init__(self, tensors: Mapping[str, Tensor], activation: type[nn.Module]) -> None:
        """Take a policy's tensors under SB3's names."""
        super().__init__()
        self.actor_extractor, self.critic_extractor = _actor_critic_extractors(tensors)
        self.shared_net = _mlp(_under(tensors, "mlp_extractor.shared_net."), activation)
        self.policy_net = _mlp(_under(tensors, "mlp_extractor.policy_net."), activation)
        self.value_net = _mlp(_under(tensors, "mlp_extractor.value_net."), activation)
        self.action_head = _linear(tensors, "action_net")
        self.value_head = _linear(tensors, "value_net")
        if self.value_head.out_features != 1:
            raise TeacherError("'value_net' outputs more than 1 value; expected one per state")

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Map float [batch, ...] to logits [batch, num_actions] and values [batch, 1]."""
        actor = self.shared_net(self.actor_extractor(observations))
        # Saves running the convolutions, most of the work, a second time.
        if self.critic_extractor is self.actor_extractor:
            critic = actor
        else:
            critic = self.shared_net(self.critic_extractor(observations))
        return self.action_head(self.policy_net(actor)), self.value_head(self.value_net(critic))


class QNetwork(nn.Module):
    """SB3's QNetwork, or QR-DQN's QuantileNetwork with the mean taken over its quantiles."""

    def __init__(
        self, tensors: Mapping[str, Tensor], activation: type[nn.Module], num_quantiles: int = 1
    ) -> None:
        """Take the tensors under `q_net.` or `quantile_net.`, that prefix removed."""
        super().__init__()
        is_quantile = any(key.startswith("quantile_net.") for key in tensors)
        head = "quantile_net." if is_quantile else "q_net."
        self.extractor = _extractor(_under(tensors, "features_extractor."))
        self.layers = _mlp(_under(tensors, head), activation, last_is_output=True)
        self.num_quantiles = num_quantiles

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Map float [batch, ...] to Q-values [batch, num_actions] and their maximum [batch, 1]."""
        q_values = self.layers(self.extractor(observations))
        if self.num_quantiles > 1:
            # QR-DQN's last layer is [quantiles, actions], in this order; it acts by the mean.
            q_values = q_values.unflatten(1, (self.num_quantiles, -1)).mean(1)
        return q_values, q_values.amax(1, keepdim=True)


def build_actor_critic(
    state_dict: Mapping[str, Tensor], activation: type[nn.Module]
) -> ActorCriticNetwork:
    """Build the actor-critic of a policy's tensors; TeacherError if they do not fit."""
    known = ("features_extractor.", "pi_features_extractor.", "vf_features_extractor.",
             "mlp_extractor.", "action_net.", "value_net.")  # fmt: skip
    _refuse_unknown(state_dict, known)
    return ActorCriticNetwork(state_dict, activation)


def build_q_network(
    state_dict: Mapping[str, Tensor], activation: type[nn.Module], num_quantiles: int | None = None
) -> QNetwork:
    """Build the online network of DQN, or of QR-DQN where `num_quantiles` is given.

    Target networks are ignored. TeacherError if the tensors do not fit.
    """
    prefix = "q_net." if num_quantiles is None else "quantile_net."
    _refuse_unknown(state_dict, (prefix, prefix.replace("_net", "_net_target")))
    tensors = _under(state_dict, prefix)
    _refuse_unknown(tensors, ("features_extractor.", prefix))
    return QNetwork(tensors, activation, num_quantiles or 1)


def output_size(state_dict: Mapping[str, Tensor]) -> int:
    """Return the size of the last layer: actions, or actions times quantiles."""
    for prefix in ("action_net", "q_net.q_net", "quantile_net.quantile_net"):
        layers = [key for key in state_dict if key.startswith(prefix) and key.endswith(".weight")]
        if layers:
            # By number: as text "10" sorts before "2".
            last = max(layers, key=lambda key: _layer_index(key.removesuffix(".weight")))
            return int(state_dict[last].shape[0])
    raise TeacherError("no output layer among the tensors (action_net, q_net or quantile_net)")


def _refuse_unknown(tensors: Mapping[str, Tensor], known: tuple[str, ...]) -> None:
    unknown = sorted(key for key in tensors if not key.startswith(known))
    if unknown:
        raise TeacherError(
            f"unknown network part '{unknown[0]}'; supported are SB3's CnnPolicy and MlpPolicy"
            " of PPO, A2C, TRPO, DQN and QR-DQN"
        )


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}


def _extractor(tensors: Mapping[str, Tensor]) -> nn.Module:
    # MlpPolicy's FlattenExtractor has no parameters.
    if not tensors:
        return nn.Flatten()
    _refuse_unknown(tensors, ("cnn.0.", "cnn.2.", "cnn.4.", "linear.0."))
    return NatureCnn(tensors)


def _actor_critic_extractors(tensors: Mapping[str, Tensor]) -> tuple[nn.Module, nn.Module]:
    # SB3 >= 1.7 saves a shared extractor three times: features_, pi_features_ and vf_features_;
    # with share_features_extractor=False the last two differ. Equal numbers mean that it was one.
    shared = _under(tensors, "features_extractor.")
    actor = _under(tensors, "pi_features_extractor.") or shared
    critic = _under(tensors, "vf_features_extractor.") or shared
    same = actor.keys() == critic.keys() and all(
        torch.equal(actor[key], critic[key]) for key in actor
    )
    first = _extractor(actor)
    return first, first if same else _extractor(critic)


def _layer_index(name: str) -> int:
    last = name.rsplit(".", 1)[-1]
    return int(last) if last.isdecimal() else -1


def _mlp(
    tensors: Mapping[str, Tensor], activation: type[nn.Module], last_is_output: bool = False
) -> nn.Sequential:
    """Rebuild SB3's create_mlp: linear layers at even indices, activations between them."""
    num_layers = sum(key.endswith(".weight") for key in tensors)
    _refuse_unknown(tensors, tuple(f"{2 * index}." for index in range(num_layers)) or ("-",))
    layers: list[nn.Module] = []
    for index in range(num_layers):
        layers += [_linear(tensors, str(2 * index)), activation()]
    return nn.Sequential(*(layers[:-1] if last_is_output else layers))


def _linear(tensors: Mapping[str, Tensor], name: str) -> nn.Linear:
    weight, bias = _weight_and_bias(tensors, name, 2)
    # On the meta device nothing is allocated or initialised: the tensors are put in at once.
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = weight, bias
    return layer


def _convolution(tensors: Mapping[str, Tensor], name: str, kernel: int, stride: int) -> nn.Conv2d:
    weight, bias = _weight_and_bias(tensors, name, 4)
    if tuple(weight.shape[2:]) != (kernel, kernel):
        raise TeacherError(
            f"'{name}.weight' has kernel {tuple(weight.shape[2:])}; NatureCNN has {kernel}x{kernel}"
        )
    layer = nn.Conv2d(weight.shape[1], weight.shape[0], kernel, stride, device="meta")
    layer.weight, layer.bias = weight, bias
    return layer


def _weight_and_bias(
    tensors: Mapping[str, Tensor], name: str, num_dimensions: int
) -> tuple[nn.Parameter, nn.Parameter]:
    weight, bias = _parameter(tensors, f"{name}.weight"), _parameter(tensors, f"{name}.bias")
    if weight.dim() != num_dimensions or bias.shape != weight.shape[:1]:
        raise TeacherError(
            f"'{name}' has weight {tuple(weight.shape)} and bias {tuple(bias.shape)};"
            f" expected {num_dimensions} dimensions and one bias per output",
            ErrorCode.TEACHER_DAMAGED,
        )
    return weight, bias


def _parameter(tensors: Mapping[str, Tensor], key: str) -> nn.Parameter:
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
