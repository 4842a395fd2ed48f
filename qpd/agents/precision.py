"""The precisions of a suite: what `--bits`, `--activations`, `--scheme` and `--per` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qpd.agents.errors import AgentQuantizationError
from qpd.errors.nearest_name import did_you_mean
from qpd.quantization.weight_quantizer import (
    FEWEST_BITS,
    GRANULARITIES,
    INTEGER_SCHEMES,
    MOST_BITS,
    Granularity,
    Scheme,
    WeightQuantizer,
)

# Weights alone are what the paper quantizes; with activations, those of the integers.
WEIGHTS_SCHEME: Scheme = "affine"
INTEGERS_SCHEME: Scheme = "dorefa_scaled"
DEFAULT_BITS: tuple[str, ...] = ("fp16", "8")
DEFAULT_PER: Granularity = "column"


@dataclass(frozen=True)
class Precision:
    """Say how an agent's numbers are rounded: weights, and activations where they have bits.

    Without a `quantizer` it is fp32, the agent as it is.
    """

    quantizer: WeightQuantizer | None = None
    activation_bits: int | None = None

    @property
    def name(self) -> str:
        """`fp32`, `fp16`, `W8`, or `W8A8`."""
        if self.quantizer is None:
            return "fp32"
        if self.quantizer.scheme == "fp16":
            return "fp16"
        activations = "" if self.activation_bits is None else f"A{self.activation_bits}"
        return f"W{self.quantizer.bits}{activations}"

    @property
    def scheme(self) -> str:
        """The scheme of the weights; empty of floats."""
        if self.quantizer is None or self.quantizer.scheme == "fp16":
            return ""
        return self.quantizer.scheme

    @property
    def per(self) -> str:
        """Name the weights that share a range; empty of floats."""
        return self.quantizer.per if self.scheme and self.quantizer is not None else ""

    @property
    def per_channel(self) -> Precision:
        """The same with a range for each output channel."""
        assert self.quantizer is not None
        return replace(self, quantizer=replace(self.quantizer, per="channel"))

    @property
    def key(self) -> str:
        """The name of its file: `fp16`, `W8-affine-column`."""
        return "-".join(part for part in (self.name, self.scheme, self.per) if part)

    @property
    def asks_for_integers(self) -> bool:
        """Tell whether integers can do it: QPD's own scheme of weights, activations in bits."""
        return self.activation_bits is not None and self.scheme == INTEGERS_SCHEME


FP32 = Precision()


def precisions_of(
    bits: Sequence[str | int],
    activations: int | None = None,
    schemes: Sequence[str] | str | None = None,
    per: Sequence[str] | str | None = None,
) -> tuple[Precision, ...]:
    """Return what is asked for, in this order, each once; fp32 is not among them.

    Each of `bits`, `fp16` or 2 to 8, is weights alone; with `activations` (2 to 8) weights and
    activations follow. Raises AgentQuantizationError.
    """
    found: list[Precision] = []
    schemes = [schemes] if isinstance(schemes, str) else schemes
    per = [per] if isinstance(per, str) else per
    granularities = [_granularity(each) for each in per or (DEFAULT_PER,)]
    if activations is not None and activations not in range(FEWEST_BITS, MOST_BITS + 1):
        raise AgentQuantizationError(
            f"--activations {activations}: expected {FEWEST_BITS} to {MOST_BITS} bits"
        )
    if activations is not None and all(_bits(each) is None for each in bits):
        raise AgentQuantizationError(
            f"--activations {activations}: is for --bits 2 to 8; activations of fp16 stay floats"
        )
    known = [_scheme(each) for each in schemes or ()]
    for option, given in (("--scheme", schemes), ("--per", per)):
        if given and all(_bits(each) is None for each in bits):
            raise AgentQuantizationError(
                f"{option} {','.join(given)}: is for --bits 2 to 8; fp16 has neither"
            )
    for asked in bits:
        number = _bits(asked)
        if number is None:
            found.append(Precision(WeightQuantizer("fp16")))
            continue
        kinds: list[tuple[int | None, Scheme]] = [(None, WEIGHTS_SCHEME)]
        kinds += [] if activations is None else [(activations, INTEGERS_SCHEME)]
        for activation_bits, default in kinds:
            found += [
                Precision(WeightQuantizer(scheme, number, each), activation_bits)
                for scheme in known or [default]
                for each in granularities
            ]
    if not found:
        raise AgentQuantizationError("--bits: none given; expected fp16, or 2 to 8")
    return tuple(dict.fromkeys(found))


def _bits(asked: str | int) -> int | None:
    """Return a number of bits, None for fp16."""
    text = str(asked).strip()
    if text == "fp16":
        return None
    if not text.isdecimal() or not FEWEST_BITS <= int(text) <= MOST_BITS:
        raise AgentQuantizationError(
            f"--bits {text:.20}: expected fp16, or {FEWEST_BITS} to {MOST_BITS}"
        )
    return int(text)


def _scheme(asked: str) -> Scheme:
    for scheme in INTEGER_SCHEMES:
        if scheme == asked:
            return scheme
    raise AgentQuantizationError(_unknown("--scheme", asked, INTEGER_SCHEMES))


def _granularity(asked: str) -> Granularity:
    for granularity in GRANULARITIES:
        if granularity == asked:
            return granularity
    raise AgentQuantizationError(_unknown("--per", asked, GRANULARITIES))


def _unknown(option: str, asked: str, known: Sequence[str]) -> str:
    hint = did_you_mean(asked, list(known))
    return f"{option} {asked:.40}: expected {', '.join(known)}{hint}"
