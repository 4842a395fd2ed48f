"""Networks of linear layers and ReLU, several of one shape at once, with gradients by hand.

Numbers of a layer lie feature by feature, `[copies, features, batch]`: then the first layers of all
copies, which see the same inputs, are one matrix product, and so is the inputs' gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qpd.numerics.layer_arithmetic import LayerArithmetic

# The dtype of hidden layers' products, or the format of all layers; None: the parameters' dtype.
Products = torch.dtype | LayerArithmetic | None

_relu_backward = torch.ops.aten.threshold_backward.grad_input


class StackedMlp:
    """`copies` networks of one shape: `W x + b`, ReLU between layers, nothing after the last.

    The weights `[copies, out, in]` and biases `[copies, out]` are used where they are; `gradients`
    are places of the same shapes. With a `dtype` such as bfloat16 the products of the hidden layers
    are computed in it (sums in float32, as the processor has it), the outputs in the parameters'.
    With a LayerArithmetic all layers compute in its format: parameters, inputs and results are
    rounded, gradients scaled and rounded; the scale stays in those of the parameters.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        gradients: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
        products: Products = None,
    ) -> None:
        """Use the parameters where they are; without `gradients` it is never learned."""
        self._weights, self._biases = list(weights), [each.unsqueeze(2) for each in biases]
        self._gradients, self._products = gradients, products
        self._arithmetic = products if isinstance(products, LayerArithmetic) else None
        self._dtype = products if isinstance(products, torch.dtype) else weights[0].dtype
        self._is_mixed = self._dtype != weights[0].dtype
        # The same tensors where they have this dtype already, and nothing is rounded.
        copies = self._arithmetic is not None
        self._fast = [each.to(self._dtype, copy=copies) for each in self._weights]
        self._fast_biases = [each.to(self._dtype, copy=copies) for each in self._biases]
        self.refresh()
        self._inputs: list[Tensor] = []
        # Memory of past results: fresh memory costs more than the arithmetic on it.
        self._used: dict[tuple[object, ...], Tensor] = {}

    def share_memory_with(self, other: StackedMlp) -> None:
        """Put results where those of another network of this shape are: no longer both hold."""
        self._used = other._used

    def refresh(self) -> None:
        """Round the parameters again, after each change; nothing to do in their own dtype."""
        if self._is_mixed or self._arithmetic is not None:
            for fast, each in zip(
                [*self._fast, *self._fast_biases], [*self._weights, *self._biases], strict=True
            ):
                self._round(fast.copy_(each))

    def copy_of(self, index: int) -> StackedMlp:
        """Return one of the copies, with the same parameters, not to be learned."""
        each = slice(index, index + 1)
        biases = [bias[each].squeeze(2) for bias in self._biases]
        found = StackedMlp([weight[each] for weight in self._weights], biases, None, self._products)
        found._fast = [weight[each] for weight in self._fast]
        found._fast_biases = [bias[each] for bias in self._fast_biases]
        return found

    def forward(self, *inputs: Tensor) -> Tensor:
        """Map parts of the inputs `[batch, features]`, side by side, to `[copies, out, batch]`.

        All copies see the same inputs.
        """
        x = self._round(torch.cat([part.T for part in inputs]).to(self._dtype))
        self._inputs = [x]
        batch = x.shape[1]
        for layer, weight in enumerate(self._fast[:-1]):
            copies, width, _ = weight.shape
            place = self._place("forward", layer, copies, width, batch)
            if layer:
                torch.bmm(weight, x, out=place)
            else:
                torch.mm(weight.flatten(0, 1), x, out=place.view(-1, batch))
            x = self._round(place.add_(self._fast_biases[layer]))
            _relu(x)
            self._inputs.append(x)
        if self._is_mixed:
            x = self._place("last", 0, *x.shape, dtype=self._weights[0].dtype).copy_(x)
        self._last = x
        exact = self._arithmetic is None
        last = (self._weights if exact else self._fast)[-1]
        found = torch.bmm(last, x if x.dim() == 3 else x.expand(len(last), -1, -1))
        return self._round(found.add_((self._biases if exact else self._fast_biases)[-1]))

    def backward(self, gradient: Tensor) -> None:
        """Write the parameters' gradients, for that of the outputs `[copies, out, columns]`.

        It belongs to the first columns of the last `forward`.
        """
        assert self._gradients is not None
        columns, gradient = gradient.shape[2], self._scaled(gradient)
        for layer in range(len(self._weights) - 1, -1, -1):
            is_last = layer == len(self._weights) - 1
            inputs = (self._last if is_last else self._inputs[layer])[..., :columns]
            self._write(layer, gradient, inputs)
            if layer:
                gradient = self._before(layer, gradient, self._inputs[layer][..., :columns])

    def input_gradient(self, gradient: Tensor, first: int) -> Tensor:
        """Return the sum over copies of the inputs' gradients from feature `first` on.

        `gradient` is that of the outputs `[copies, out, batch]`; returns `[batch, in - first]`. The
        parameters' are not computed.
        """
        gradient = self._scaled(gradient)
        for layer in range(len(self._weights) - 1, 0, -1):
            gradient = self._before(layer, gradient, self._inputs[layer])
        weight = self._fast[0].flatten(0, 1)[:, first:]
        flat = gradient.flatten(0, 1).to(self._dtype)
        found = self._round(torch.mm(weight.T, flat)).T.to(self._weights[0].dtype)
        return found if self._arithmetic is None else found / self._arithmetic.scale.scale

    def _before(self, layer: int, gradient: Tensor, inputs: Tensor) -> Tensor:
        """Return the gradient of a layer's inputs, as of before the ReLU that made them."""
        place = self._place("backward", layer, *inputs.shape)
        weight, gradient = self._fast[layer].mT, gradient.to(self._dtype)
        if weight.shape[2] == 1:  # an outer product is no work for a matrix product
            torch.mul(weight, gradient, out=place)
        else:
            torch.bmm(weight, gradient, out=place)
        self._round(place)
        return _relu_backward(place, inputs, 0, grad_input=place)

    def _write(self, layer: int, gradient: Tensor, inputs: Tensor) -> None:
        assert self._gradients is not None
        weights, biases = (part[layer] for part in self._gradients)
        if inputs.dim() == 2:  # the first layer's: one product for all copies
            gradient, weights = gradient.flatten(0, 1), weights.flatten(0, 1)
            biases = biases.flatten()
        if gradient.dtype == weights.dtype:
            torch.matmul(gradient, inputs.mT, out=weights)
        else:
            place = self._place("weights", layer, *weights.shape)
            weights.copy_(torch.matmul(gradient, inputs.mT, out=place))
        torch.sum(gradient, -1, dtype=biases.dtype, out=biases)

    def _scaled(self, gradient: Tensor) -> Tensor:
        if self._arithmetic is None:
            return gradient
        return self._round(gradient * self._arithmetic.scale.scale)

    def _round(self, x: Tensor) -> Tensor:
        return x if self._arithmetic is None else self._arithmetic.form.round_(x)

    def _place(self, *key: object, dtype: torch.dtype | None = None) -> Tensor:
        if key not in self._used:
            shape = torch.Size(key[2:])  # type: ignore[arg-type]
            self._used[key] = torch.empty(shape, dtype=dtype or self._dtype)
        return self._used[key]


def _relu(x: Tensor) -> None:
    # A bfloat16's sign is that of the int16 with its bits, for which there is one instruction.
    (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).clamp_min_(0)
