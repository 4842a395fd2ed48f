"""Actor and critic head in training: one matrix product forward, two backward.

The heads are so narrow that calling operations costs more than their arithmetic, in float32 less
than in bfloat16; autocast would cast four parameters and their gradients besides.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def both_heads(hidden: Tensor, actor: nn.Linear, critic: nn.Linear) -> tuple[Tensor, Tensor]:
    """Compute outputs `[batch, num_outputs]` and values `[batch]`, float32, of `[batch, width]`.

    Together where they are trained on a CPU, which keeps float32 where autocast rounds to bfloat16.
    """
    together = (
        torch.is_grad_enabled()
        and hidden.device.type == "cpu"
        and actor.weight.dtype == critic.weight.dtype == torch.float32
        and not torch.compiler.is_compiling()
    )
    if together:
        with torch.autocast("cpu", enabled=False):
            return Heads.apply(hidden, actor.weight, actor.bias, critic.weight, critic.bias)
    outputs = F.linear(hidden, actor.weight, actor.bias)
    values = F.linear(hidden, critic.weight, critic.bias)
    return outputs.float(), values.float().squeeze(-1)


class Heads(torch.autograd.Function):
    """Both heads as one matrix."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        actor: Tensor,
        actor_bias: Tensor,
        critic: Tensor,
        critic_bias: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return outputs and values."""
        matrix, bias = torch.cat([actor, critic]), torch.cat([actor_bias, critic_bias])
        ctx.dtype, hidden = hidden.dtype, hidden.float()
        ctx.save_for_backward(hidden, matrix)
        ctx.set_materialize_grads(False)
        both = torch.addmm(bias, hidden, matrix.t())
        return both[:, :-1].clone(), both[:, -1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients by `hidden` and the parameters; None of a head without one."""
        hidden, matrix = ctx.saved_tensors
        by_outputs, by_values = gradients
        count = len(matrix) - 1
        both = torch.cat(
            [
                hidden.new_zeros(len(hidden), count) if by_outputs is None else by_outputs,
                hidden.new_zeros(len(hidden), 1) if by_values is None else by_values[:, None],
            ],
            dim=1,
        )
        weight, bias = both.t() @ hidden, both.sum(0)
        actor = (None, None) if by_outputs is None else (weight[:count], bias[:count])
        critic = (None, None) if by_values is None else (weight[count:], bias[count:])
        return (both @ matrix).to(ctx.dtype), *actor, *critic
