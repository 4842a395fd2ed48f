"""Numbers as a reader wants them."""


def number_text(value: float) -> str:
    """`1e-3`, `0.75`, `4096`, and `2^31 - 1` for the bounds that nobody reads in decimals."""
    if value != int(value):
        return _fraction(value)
    whole = int(value)
    if whole >= 1 << 20:
        for number, text in ((whole, ""), (whole + 1, "\u00a0-\u00a01")):
            if number & (number - 1) == 0:
                return f"2^{number.bit_length() - 1}{text}"
    return str(whole)


def _fraction(value: float) -> str:
    if 0 < abs(value) < 1e-2:
        mantissa, exponent = f"{value:e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:g}"
