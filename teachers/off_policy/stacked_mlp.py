"""Networks of linear layers and ReLU, several of one shape at once, with gradients by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_relu_backward = torch.ops.aten.threshold_backward


class StackedMlp:
    """`copies` networks of one shape: `x W^T + b`, ReLU between layers, nothing after the last.

    The weights `[copies, out, in]` and biases `[copies, out]` are views of `values`; `gradients`
    has the same layout. With a `dtype` such as bfloat16 the products of the hidden layers are
    computed in it (sums in float32, as the processor has it), those of the last in the parameters'
    own.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        gradients: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Use the parameters where they are; without `gradients` it is never learned."""
        self._weights, self._biases = list(weights), list(biases)
        self._gradients = gradients
        self._dtype = weights[0].dtype if dtype is None else dtype
        self._is_mixed = self._dtype != weights[0].dtype
        self._fast_weights, self._fast_biases = self._weights, self._biases
        self._inputs: list[Tensor] = []
        self.refresh()

    def refresh(self) -> None:
        """Round the parameters again, after each change; nothing to do in their own dtype."""
        if self._is_mixed:
            self._fast_weights = [each.to(self._dtype) for each in self._weights[:-1]]
            self._fast_biases = [each.to(self._dtype) for each in self._biases[:-1]]

    def forward(self, inputs: Tensor) -> Tensor:
        """Map `[batch, in]`, the same for all copies, to `[copies, batch, out]`."""
        x = inputs.to(self._dtype).expand(len(self._weights[0]), -1, -1)
        self._inputs = [x]
        for weight, bias in zip(self._fast_weights[: self._depth], self._fast_biases, strict=False):
            x = torch.baddbmm(bias.unsqueeze(1), x, weight.mT).relu_()
            self._inputs.append(x)
        last = x.to(self._weights[-1].dtype)
        return torch.baddbmm(self._biases[-1].unsqueeze(1), last, self._weights[-1].mT)

    def copy_of(self, index: int) -> StackedMlp:
        """Return one of the copies, with the same parameters, not to be learned."""
        each = slice(index, index + 1)
        found = StackedMlp([w[each] for w in self._weights], [b[each] for b in self._biases])
        found._dtype, found._is_mixed = self._dtype, self._is_mixed
        found._fast_weights = [weight[each] for weight in self._fast_weights]
        found._fast_biases = [bias[each] for bias in self._fast_biases]
        return found

    @property
    def _depth(self) -> int:
        return len(self._weights) - 1

    def backward(self, gradient: Tensor) -> None:
        """Write the parameters' gradients, for that of the outputs `[copies, rows, out]`.

        It belongs to the first rows of the last `forward`.
        """
        assert self._gradients is not None
        rows = gradient.shape[1]
        for layer in range(self._depth, -1, -1):
            inputs = self._inputs[layer][:, :rows]
            self._write(layer, gradient, inputs)
            if layer:
                gradient = self._before(layer, gradient, inputs)

    def input_gradient(self, gradient: Tensor, first: int) -> Tensor:
        """Return the sum over copies of the inputs' gradients from column `first` on.

        `gradient` is that of the outputs `[copies, batch, out]`; returns `[batch, in - first]`.
        The parameters' are not computed.
        """
        for layer in range(self._depth, 0, -1):
            gradient = self._before(layer, gradient, self._inputs[layer])
        weight = self._fast_weights[0] if self._depth else self._weights[0]
        return torch.bmm(gradient, weight[:, :, first:]).sum(0).to(self._weights[0].dtype)

    def _before(self, layer: int, gradient: Tensor, inputs: Tensor) -> Tensor:
        """Return the gradient of a layer's inputs, as of before the ReLU that made them."""
        is_last = layer == self._depth
        weight = self._weights[layer] if is_last else self._fast_weights[layer]
        found = torch.bmm(gradient, weight).to(self._dtype)
        return _relu_backward(found, inputs, 0)

    def _write(self, layer: int, gradient: Tensor, inputs: Tensor) -> None:
        assert self._gradients is not None
        weights, biases = (part[layer] for part in self._gradients)
        inputs = inputs.to(gradient.dtype)
        if gradient.dtype == weights.dtype:
            torch.bmm(gradient.mT, inputs, out=weights)
            torch.sum(gradient, 1, out=biases)
        else:
            weights.copy_(torch.bmm(gradient.mT, inputs))
            torch.sum(gradient, 1, dtype=biases.dtype, out=biases)
