"""The features extractor of an exported agent: the integer student whole, head included.

Stable-Baselines3 imports it by name when it loads the agent, so qpd must be installed there.
"""

from __future__ import annotations

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor

from qpd.integer.integer_student import IntegerEngine
from qpd.student_files.quantized import unpack_student


class IntegerFeatures(BaseFeaturesExtractor):
    """Observations -> the integer engine's logits, float32 `[batch, actions]`, bit for bit.

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
        self._engine: IntegerEngine | None = None
        self.register_load_state_dict_post_hook(_forget_engine)

    def forward(self, observations: Tensor) -> Tensor:
        """Levels or vectors as float (what SB3's preprocessing makes of them) -> logits."""
        if self._engine is None:
            arrays = {name: self.get_buffer(buffer_name(name)).cpu().numpy() for name in self.names}
            self._engine = IntegerEngine(unpack_student(self.metadata, arrays))
        is_image = self._engine.student.architecture.is_image
        inputs = observations.to(torch.uint8 if is_image else torch.float32)
        return torch.from_numpy(self._engine(inputs.cpu().numpy())).to(observations.device)


def buffer_name(tensor_name: str) -> str:
    """The name of a packed tensor's buffer: PyTorch allows no dots there."""
    return tensor_name.replace(".", "_")


def _forget_engine(module: torch.nn.Module, incompatible_keys: object) -> None:
    module._engine = None  # type: ignore[assignment]
