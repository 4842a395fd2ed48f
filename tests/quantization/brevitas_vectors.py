"""Writes brevitas_vectors.json: what Brevitas' quantizers answer, for test_brevitas_vectors.py.

python tests/quantization/brevitas_vectors.py    # needs `pip install brevitas`, no package of ours

Brevitas (BSD-3-Clause) is what Kresse & Lampert train with. The stored vectors are version 0.13.4's
with PyTorch 2.13.0; tests read them without it.
"""

import json
import math
from pathlib import Path

import brevitas
import torch
from brevitas.inject.enum import ScalingImplType
from brevitas.nn import QuantIdentity, QuantLinear
from brevitas.quant import Int8ActPerTensorFloat, Int8WeightPerTensorFloat, Uint8ActPerTensorFloat

SCALE, COUNT, BATCHES = 1.5, 24, 301


def main() -> None:
    """Write the file beside this one."""
    cases = []
    for bits in range(2, 9):
        generator = torch.Generator().manual_seed(bits)
        x = 1.2 * torch.randn(COUNT, generator=generator)
        upstream = torch.randn(COUNT, generator=generator)
        cases += [
            {
                "kind": "signed",
                "bits": bits,
                **activation(Int8ActPerTensorFloat, bits, x, upstream),
            },
            {
                "kind": "unsigned",
                "bits": bits,
                **activation(Uint8ActPerTensorFloat, bits, x, upstream),
            },
            {"kind": "narrow", "bits": bits, **weights(bits, x, upstream, is_narrow=True)},
            {"kind": "full", "bits": bits, **weights(bits, x, upstream, is_narrow=False)},
        ]
    content = {
        "brevitas": brevitas.__version__,
        "torch": torch.__version__,
        "scale": SCALE,
        "cases": cases,
        "learned": learned(),
    }
    target = Path(__file__).with_suffix(".json")
    target.write_text(json.dumps(content) + "\n")
    print(target, len(cases))


def activation(quantizer, bits, x, upstream):
    """Return values and gradients of an activation's quantizer with a learned scale."""
    module = QuantIdentity(
        act_quant=quantizer,
        bit_width=bits,
        scaling_impl_type=ScalingImplType.PARAMETER,
        scaling_init=SCALE,
    )
    module.train()
    leaf = x.clone().requires_grad_()
    values = module(leaf)
    (values * upstream).sum().backward()
    (scale,) = module.parameters()
    return {
        "x": x.tolist(),
        "upstream": upstream.tolist(),
        "values": values.tolist(),
        "by_x": leaf.grad.tolist(),
        "by_scale": scale.grad.item(),
    }


def weights(bits, x, upstream, *, is_narrow):
    """Return values and gradients of a weight's quantizer, whose scale is the largest magnitude."""
    module = QuantLinear(
        COUNT,
        1,
        bias=False,
        weight_quant=Int8WeightPerTensorFloat,
        weight_bit_width=bits,
        weight_narrow_range=is_narrow,
    )
    module.weight.data.copy_(x.view(1, -1))
    values = module.quant_weight().value.flatten()
    (values * upstream).sum().backward()
    return {
        "x": x.tolist(),
        "upstream": upstream.tolist(),
        "values": values.tolist(),
        "by_x": module.weight.grad.flatten().tolist(),
    }


def batch(number: int) -> torch.Tensor:
    """Return a batch that a test can make anew, `[8]`."""
    return torch.tensor([math.sin(8 * number + each) * (1 + number / 300) for each in range(8)])


def learned():
    """Return the scale that a quantizer of inputs averages over 300 batches."""
    module = QuantIdentity(act_quant=Int8ActPerTensorFloat, bit_width=8)
    module.train()
    scales = []
    for number in range(BATCHES):
        module(batch(number))
        if number in (0, 1, 2, 299, 300):
            scales.append(float(module.act_quant.scale()) * 128)
    return {"batches": [0, 1, 2, 299, 300], "scales": scales}


if __name__ == "__main__":
    main()
