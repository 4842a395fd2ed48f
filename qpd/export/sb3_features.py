"""The features extractor of an exported agent: the whole integer student, head included.

Of continuous actions it returns the actions themselves, in the environment's units.

Stable-Baselines3 imports it by name when it loads the agent: qpd must be installed there, and
neither this module nor the class can be renamed without breaking agents that were published.
"""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor

from qpd.actions import ActingRule, Box
from qpd.environments.observation import shown_keys
from qpd.integer.integer_student import IntegerEngine
from qpd.student_files.quantized import unpack_student


class IntegerFeatures(BaseFeaturesExtractor):
    """Observations -> the integer engine's logits or actions, float32 `[batch, n]`, bit for bit.

    The policy's own head is the identity. The packed integers are buffers: they are saved and
    loaded with the policy, and no optimizer touches them. `metadata` is that of a
    quantized.safetensors, `layout` the dtype and size of each of its tensors.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        metadata: dict[str, str],
        layout: dict[str, tuple[str, int]],
        num_actions: int,
    ) -> None:
        super().__init__(observation_space, features_dim=num_actions)
        self.metadata, self.names = metadata, list(layout)
        for name, (dtype, size) in layout.items():
            self.register_buffer(buffer_name(name), torch.zeros(size, dtype=getattr(torch, dtype)))
        # Built at the first call: SB3 constructs the module first and loads the buffers
        # afterwards.
        self._engine: IntegerEngine | None = None
        self.register_load_state_dict_post_hook(_forget_engine)

    def forward(self, observations: Tensor | dict[str, Tensor]) -> Tensor:
        """Return logits, or continuous actions, flat, float32 `[batch, n]`.

        Observations are levels or vectors as SB3's floats, or the parts of a Dict.
        """
        if self._engine is None:
            arrays = {name: self.get_buffer(buffer_name(name)).cpu().numpy() for name in self.names}
            self._engine = IntegerEngine(unpack_student(self.metadata, arrays))
        if isinstance(observations, dict):
            keys = shown_keys(self._observation_space)  # type: ignore[arg-type]
            observations = torch.cat([observations[key].flatten(1) for key in keys], dim=1)
        # SB3 casts frames to float32, which holds 0..255 exactly: the way back loses nothing.
        architecture = self._engine.student.architecture
        if architecture.is_image:
            inputs = observations.to(torch.uint8).view(-1, *architecture.observation_shape)
        else:
            inputs = observations.to(torch.float32).flatten(1)
        outputs, actions = self._engine(inputs.cpu().numpy()), self._engine.actions
        if isinstance(actions, Box):
            rule = ActingRule("greedy")
            found = actions.act(outputs, rule, np.random.default_rng(0))
            outputs = found.reshape(len(outputs), -1)
        return torch.from_numpy(outputs).to(observations.device)


def buffer_name(tensor_name: str) -> str:
    """Return the buffer name of a packed tensor; PyTorch allows no dots in buffer names."""
    return tensor_name.replace(".", "_")


def _forget_engine(module: torch.nn.Module, incompatible_keys: object) -> None:
    module._engine = None  # type: ignore[assignment]
