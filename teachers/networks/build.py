"""An archive's network: what its algorithm, its settings and its tensors say together."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from torch import Tensor

from qpd.actions.gaussian import Squash
from qpd.errors.codes import ErrorCode
from qpd.teachers.archive.algorithm import (
    ACTOR_CRITIC_ALGORITHMS,
    GAUSSIAN_ALGORITHMS,
    Q_ALGORITHMS,
    SEARCH_ALGORITHM,
)
from qpd.teachers.archive.errors import TeacherError
from qpd.teachers.archive.plain_data import (
    class_name,
    is_class_of,
    read_flag,
    read_policy_option,
)
from qpd.teachers.archive.sb3_archive import Sb3Archive
from qpd.teachers.networks.actor_critic import ActorCriticNetwork
from qpd.teachers.networks.continuous import ContinuousNetwork
from qpd.teachers.networks.layers import ACTIVATIONS, layer_index, linear_layers
from qpd.teachers.networks.q_network import QNetwork
from qpd.teachers.networks.search import SearchNetwork

Network = ActorCriticNetwork | QNetwork | ContinuousNetwork | SearchNetwork
_OUTPUT_LAYERS = ("action_net", "q_net.q_net", "quantile_net.quantile_net", "actor.mu")


def build_network(archive: Sb3Archive, algo: str, num_quantiles: int = 1) -> Network:
    """Build the network of an agent; `num_quantiles` is QR-DQN's.

    Raises TeacherError where tensors are missing or do not fit, for activations that QPD does not
    know, and for features extractors that are not SB3's.
    """
    refuse_custom_extractor(archive)
    tensors, activation = archive.state_dict, ACTIVATIONS[activation_name(archive, algo)]
    use_expln = read_flag(archive.data, "use_expln")
    if algo in ACTOR_CRITIC_ALGORITHMS:
        return ActorCriticNetwork(tensors, activation, use_expln=use_expln)
    if algo in Q_ALGORITHMS:
        return QNetwork(tensors, activation, num_quantiles if algo == "qrdqn" else None)
    if algo == SEARCH_ALGORITHM:
        return SearchNetwork(tensors, activation)
    return ContinuousNetwork(
        tensors,
        activation,
        is_gaussian=algo in GAUSSIAN_ALGORITHMS,
        is_quantile=algo == "tqc",
        clip_mean=clip_mean(archive),
        use_expln=use_expln,
    )


def activation_name(archive: Sb3Archive, algo: str) -> str:
    """Return the class of an agent's activations; TeacherError for one that QPD does not know."""
    text = read_policy_option(archive.data, "activation_fn")
    # SB3's defaults, which `data` leaves out: Tanh in ActorCriticPolicy, ReLU in all others.
    default = "Tanh" if algo in ACTOR_CRITIC_ALGORITHMS else "ReLU"
    name = class_name(text) if text else default
    is_known = is_class_of(text or "", "torch", "qpd")
    if name not in ACTIVATIONS or not is_known:
        # A partial or a class of the user's own is shown as it is stored.
        shown = f"'{name}'" if is_known and name.isidentifier() else f"{text:.80}"
        raise TeacherError(
            f"activation {shown} is not supported; expected PyTorch's own {', '.join(ACTIVATIONS)}"
        )
    return name


def refuse_custom_extractor(archive: Sb3Archive) -> None:
    """Raise TeacherError for a features extractor that is not SB3's."""
    text = read_policy_option(archive.data, "features_extractor_class")
    if text is not None and class_name(text) == "IntegerFeatures":
        raise TeacherError(
            "is an exported student of QPD, not a teacher; give the agent it was distilled from"
        )
    # SizedNatureCNN is QPD's, of other widths.
    known = ("NatureCNN", "SizedNatureCNN", "FlattenExtractor", "CombinedExtractor")
    is_own = is_class_of(text or "", "stable_baselines3", "qpd")
    if text is not None and (class_name(text) not in known or not is_own):
        raise TeacherError(
            f"features extractor {text:.160} is not supported;"
            " expected SB3's NatureCNN, FlattenExtractor or CombinedExtractor"
        )


def clip_mean(archive: Sb3Archive) -> float:
    """Return the bound of the means of SAC and TQC under gSDE, SB3's 2 unless they have another.

    Raises TeacherError where it is no number above 0.
    """
    text = read_policy_option(archive.data, "clip_mean")
    try:
        value = 2.0 if text is None else float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise TeacherError(
            f"clip_mean of its policy_kwargs is {text!r}; expected a number",
            ErrorCode.TEACHER_DAMAGED,
        )
    return value


def squash(archive: Sb3Archive, algo: str) -> Squash:
    """Return what keeps continuous actions within their bounds: SB3's tanh, or its clip."""
    if algo in ACTOR_CRITIC_ALGORITHMS:
        return "tanh" if read_flag(archive.data, "squash_output") else "clip"
    if algo == SEARCH_ALGORITHM:
        squashed = not _is_linear_policy(archive)
        return "tanh" if read_flag(archive.data, "squash_output", squashed) else "clip"
    return "tanh"


def _is_linear_policy(archive: Sb3Archive) -> bool:
    """Tell ARSLinearPolicy, which clips, from ARSPolicy, which ends in a tanh."""
    policy = archive.data.get("policy_class")
    text = " ".join(map(str, policy.values())) if isinstance(policy, Mapping) else str(policy)
    named = re.search(r"\bARS(Linear)?Policy\b", text[:10_000])
    if named:
        return named.group(1) is not None
    # Nothing names the class: only a linear policy has no bias.
    return not any(key.endswith(".bias") for key in archive.state_dict)


def output_size(state_dict: Mapping[str, Tensor]) -> int:
    """Return the size of the actor's last layer: outputs, for QR-DQN times quantiles."""
    for prefix in _OUTPUT_LAYERS:
        layers = [key for key in state_dict if key.startswith(prefix) and key.endswith(".weight")]
        if layers:
            # By number: as text "10" sorts before "2".
            last = max(layers, key=lambda key: layer_index(key.removesuffix(".weight")))
            return int(state_dict[last].shape[0]) if state_dict[last].dim() else 0
    raise TeacherError(
        "no output layer among the tensors (action_net, q_net, quantile_net or actor.mu)"
    )


def num_inputs(network: Network) -> int:
    """Return how many numbers a network without images sees."""
    # The actor comes first; the critics of off-policy agents see actions as well.
    return linear_layers(network)[0].in_features
