"""The integer student as a Stable-Baselines3 agent: a zip for `PPO.load` or `DQN.load`.

Students of policies become PPO agents, which sample their actions; students of DQN and QR-DQN
become DQN agents, which explore with probability 0.01. Continuous actions are a PPO agent's too,
whatever taught them: its deterministic path passes them on unchanged, but for a clip to the bounds.
"""

from __future__ import annotations

import io
from typing import Any

import torch
from gymnasium import spaces

from qpd.actions import Discrete
from qpd.errors.codes import ErrorCode
from qpd.export.action_texts import sb3_texts
from qpd.export.bundle import ExportError, ExportSource, GoldenVectors
from qpd.export.environment_code import environment_code
from qpd.export.runtime_files import bundle_text, golden_npz, model_metadata
from qpd.export.sb3_observations import action_space, golden_in_space, observation_space
from qpd.student_files.origin import imitates_policy, student_environment
from qpd.student_files.quantized import pack_student
from qpd.version import pip_install

EXPLORATION_RATE = 0.01  # as the RL Zoo evaluates DQN
LOG_DEVIATION = -20.0  # of continuous actions, which students have none of: 2e-9 is none


def export_sb3(source: ExportSource, golden: GoldenVectors) -> dict[str, bytes]:
    """Return the bundle's files by name. Raises ExportError without stable_baselines3."""
    _algorithms()
    algo = sb3_algorithm(source)
    fields = {"algo": algo, **model_metadata(source), **sb3_texts(source.student)}
    kind = "atari" if source.student.architecture.stacks_frames else "vector"
    fields |= environment_code(student_environment(source.about))
    golden, shown = golden_in_space(source, golden, observation_space(source))
    return {
        "student.zip": sb3_zip(source),
        "golden.npz": golden_npz(source, golden, shown),
        "selftest.py": bundle_text("sb3_selftest.py", {"ALGO": algo}),
        "README.md": bundle_text(f"sb3_{kind}.md", fields),
    }


def sb3_algorithm(source: ExportSource) -> str:
    """Return `PPO` or `DQN`, the class whose `load` reads the zip."""
    is_choice = isinstance(source.student.actions, Discrete)
    return "DQN" if is_choice and not imitates_policy(source.about) else "PPO"


def sb3_zip(source: ExportSource) -> bytes:
    """Return the bytes of the agent's zip file. Raises ExportError without stable_baselines3."""
    PPO, DQN = _algorithms()
    seen = observation_space(source)
    common: dict[str, Any] = {
        "policy": _policy_name(source, seen),
        # No environment and no setup yet: spaces are set below, which needs none installed.
        "env": None,
        "policy_kwargs": _policy_kwargs(source),
        "device": "cpu",
        "_init_setup_model": False,
    }
    if sb3_algorithm(source) == "PPO":
        # SB3 warns unless a rollout is a whole number of batches.
        model: Any = PPO(n_steps=64, batch_size=64, **common)
    else:
        # The default buffer of a million observations would be allocated at once.
        model = DQN(buffer_size=1, **common)
    model.observation_space = seen
    model.action_space = action_space(source)
    model.n_envs = 1
    model._setup_model()
    if sb3_algorithm(source) == "DQN":
        model.exploration_rate = EXPLORATION_RATE
    _fill(model.policy, source)
    file = io.BytesIO()
    model.save(file)
    return file.getvalue()


def _algorithms() -> tuple[Any, Any]:
    try:
        from stable_baselines3 import DQN, PPO
    except ImportError as error:
        message = f"the sb3 export needs stable_baselines3: {pip_install('train')}"
        raise ExportError(message, ErrorCode.PACKAGE_MISSING) from error
    return PPO, DQN


def _policy_kwargs(source: ExportSource) -> dict[str, Any]:
    from qpd.export.sb3_features import IntegerFeatures

    tensors, metadata = pack_student(source.student, source.about)
    layout = {
        name: (str(tensor.dtype).removeprefix("torch."), len(tensor))
        for name, tensor in tensors.items()
    }
    return {
        "features_extractor_class": IntegerFeatures,
        "features_extractor_kwargs": {
            "metadata": metadata,
            "layout": layout,
            "num_actions": source.student.architecture.num_outputs,
        },
        "net_arch": [],  # the heads follow the extractor directly
        "normalize_images": False,  # the integers read 0..255
    }


def _policy_name(source: ExportSource, seen: spaces.Space[Any]) -> str:
    if isinstance(seen, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if source.student.architecture.is_image else "MlpPolicy"


@torch.no_grad()
def _fill(policy: torch.nn.Module, source: ExportSource) -> None:
    """Load the integers into every extractor; make the action head the identity, the value 0."""
    from qpd.export.sb3_features import IntegerFeatures, buffer_name

    tensors, _ = pack_student(source.student, source.about)
    packed = {buffer_name(name): tensor for name, tensor in tensors.items()}
    deviations = getattr(policy, "log_std", None)
    if deviations is not None:
        deviations.fill_(LOG_DEVIATION)
    # DQN has a target network with an extractor of its own.
    for name, module in policy.named_modules():
        if isinstance(module, IntegerFeatures):
            module.load_state_dict(packed)
        elif isinstance(module, torch.nn.Linear):
            module.bias.zero_()
            if "value_net" in name:
                module.weight.zero_()
            else:
                torch.nn.init.eye_(module.weight)
