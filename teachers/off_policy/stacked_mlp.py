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

_relu_backward = torch.ops.aten.threshold_backward


class StackedMlp:
    """`copies` networks of one shape: `W x + b`, ReLU between layers, nothing after the last.

    The weights `[copies, out, in]` and biases `[copies, out]` are used where they are. With a
    `dtype` such as bfloat16 the products of the hidden layers are computed in it (sums in float32,
    as the processor has it), the outputs in the parameters'. With a LayerArithmetic all layers
    compute in its format: parameters, inputs and results are rounded, gradients scaled and rounded;
    the scale stays in those of the parameters.
    """

    def __init__(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor], products: Products = None
    ) -> None:
        """Use the parameters where they are."""
        self._weights, self._biases = list(weights), [each.unsqueeze(2) for each in biases]
        self._products = products
        self._arithmetic = products if isinstance(products, LayerArithmetic) else None
        self._exact = weights[0].dtype
        self._dtype = products if isinstance(products, torch.dtype) else self._exact

    def copy_of(self, index: int) -> StackedMlp:
        """Return one of the copies, with the same parameters."""
        each = slice(index, index + 1)
        biases = [bias[each].squeeze(2) for bias in self._biases]
        return StackedMlp([weight[each] for weight in self._weights], biases, self._products)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Map parts of the inputs `[batch, features]`, side by side, to `[copies, out, batch]`.

        All copies see the same inputs. Each layer's inputs, which gradients need, are returned too.
        """
        x = self._round(torch.cat([part.T for part in inputs]).to(self._dtype))
        batch, layers = x.shape[1], [x]
        for weight, bias in zip(self._weights[:-1], self._biases, strict=False):
            copies, width, _ = weight.shape
            fast = self._fast(weight)
            if x.dim() == 3:
                x = _product(fast, x)
            else:
                x = torch.mm(fast.flatten(0, 1), x).view(copies, width, batch)
            x = torch.relu(self._round(x + self._fast(bias)))
            layers.append(x)
        last = x.to(self._exact) if x.dim() == 3 else x.expand(len(self._weights[0]), -1, -1)
        found = _product(self._rounded(self._weights[-1]), last)
        return self._round(found + self._rounded(self._biases[-1])), layers

    def outputs(self, states: Tensor) -> Tensor:
        """Map states `[n, in]` to the first copy's outputs `[n, out]`, in the parameters' dtype.

        For few states, where the products are less work than what is around them.
        """
        x = states
        for layer, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            x = torch.addmm(bias[0].T, torch.relu(x) if layer else x, weight[0].T)
        return x

    def gradients(self, gradient: Tensor, layers: Sequence[Tensor]) -> Tensor:
        """Return the parameters' gradients for that of the outputs `[copies, out, columns]`.

        It belongs to the first columns of the pass that had the inputs `layers`. Weights and biases
        of a layer in turn, the first layer's first, as one vector.
        """
        columns, gradient = gradient.shape[2], self._scaled(gradient)
        found: list[Tensor] = []
        for layer in range(len(self._weights) - 1, -1, -1):
            inputs = layers[layer][..., :columns]
            found = [*self._of_layer(gradient, inputs), *found]
            if layer:
                gradient = self._before(layer, gradient, inputs)
        return torch.cat(found)

    def input_gradient(self, gradient: Tensor, layers: Sequence[Tensor], first: int) -> Tensor:
        """Return the sum over copies of the inputs' gradients from feature `first` on.

        `gradient` is that of the outputs `[copies, out, batch]`; returns `[batch, in - first]`. The
        parameters' are not computed.
        """
        gradient = self._scaled(gradient)
        for layer in range(len(self._weights) - 1, 0, -1):
            gradient = self._before(layer, gradient, layers[layer])
        weight = self._fast(self._weights[0]).flatten(0, 1)[:, first:]
        flat = gradient.flatten(0, 1).to(self._dtype)
        found = self._round(torch.mm(weight.T, flat)).T.to(self._exact)
        return found if self._arithmetic is None else found / self._arithmetic.scale.scale

    def _before(self, layer: int, gradient: Tensor, inputs: Tensor) -> Tensor:
        """Return the gradient of a layer's inputs, as of before the ReLU that made them."""
        weight, gradient = self._fast(self._weights[layer]).mT, gradient.to(self._dtype)
        # An outer product is no work for a matrix product.
        found = weight * gradient if weight.shape[2] == 1 else _product(weight, gradient)
        return _relu_backward(self._round(found), inputs, 0)

    def _of_layer(self, gradient: Tensor, inputs: Tensor) -> list[Tensor]:
        """Return the gradients of a layer's weights and biases, vectors."""
        if inputs.dim() == 2:  # the first layer's: one product for all copies
            gradient, inputs = gradient.flatten(0, 1).unsqueeze(0), inputs.unsqueeze(0)
        weights = _product(gradient, inputs.to(gradient.dtype).mT).to(self._exact)
        return [weights.flatten(), torch.sum(gradient, -1, dtype=self._exact).flatten()]

    def _fast(self, parameter: Tensor) -> Tensor:
        """Return a parameter of the hidden layers in the products' dtype or format."""
        return self._rounded(parameter).to(self._dtype)

    def _rounded(self, parameter: Tensor) -> Tensor:
        return parameter if self._arithmetic is None else self._arithmetic.form.round(parameter)

    def _scaled(self, gradient: Tensor) -> Tensor:
        if self._arithmetic is None:
            return gradient
        return self._round(gradient * self._arithmetic.scale.scale)

    def _round(self, x: Tensor) -> Tensor:
        return x if self._arithmetic is None else self._arithmetic.form.round_(x)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return the products of copies, `[copies, a, b]` and `[copies, b, c]`.

    A batched product would copy what is not in one piece, which one of a single copy is not.
    """
    if len(left) == 1:
        return torch.mm(left[0], right[0]).unsqueeze(0)
    return torch.bmm(left, right)
