"""Numpy arrays and scalars from the records of a pickle: their raw bytes, of plain number types."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpd.teachers.archive.inert_pickle import Recorded

# Half, float, double, integers and bool, as NumPy's dtype codes: object arrays hold pickles.
_PLAIN_DTYPES = frozenset({"f2", "f4", "f8", "i4", "i8", "u1", "b1"})


def as_array(value: Any) -> NDArray[Any]:
    """Rebuild a numpy array or scalar, or a python number, from its record.

    Raises ValueError for anything else, and for number types other than plain ones.
    """
    if isinstance(value, bool | int | float):
        return np.asarray(value)
    if not isinstance(value, Recorded):
        raise ValueError(f"expected an array, found {type(value).__name__}")
    function = value.global_name.rsplit(".", 1)[-1]
    if function == "_reconstruct" and isinstance(value.state, tuple) and len(value.state) == 5:
        _version, shape, dtype, is_fortran, raw = value.state
        return _from_bytes(raw, dtype, shape, "F" if is_fortran else "C")
    if function == "_frombuffer" and len(value.arguments) == 4:  # pickle protocol 5
        raw, dtype, shape, order = value.arguments
        return _from_bytes(raw, dtype, shape, "F" if order == "F" else "C")
    if function == "scalar" and len(value.arguments) == 2:
        dtype, raw = value.arguments
        return _from_bytes(raw, dtype, (), "C")
    raise ValueError(f"expected an array, found {value.global_name}")


def _from_bytes(raw: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    if not isinstance(raw, bytes | bytearray):
        raise ValueError("the bytes of an array are missing")
    if not isinstance(shape, tuple) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ValueError("the shape of an array is damaged")
    flat = np.frombuffer(bytes(raw), dtype=_plain_dtype(dtype))
    return flat.reshape(shape, order=order)


def _plain_dtype(record: Any) -> np.dtype[Any]:
    name = record.arguments[0] if isinstance(record, Recorded) and record.arguments else None
    # Text first of all: hashing or printing tuples that share others may take for ever.
    if type(name) is not str:
        raise ValueError(f"a number type is {type(name).__name__}, not text")
    if name not in _PLAIN_DTYPES or not record.global_name.startswith("numpy"):
        raise ValueError(f"number type {name!r} is not one of {sorted(_PLAIN_DTYPES)}")
    state = record.state
    order: Any = state[1] if isinstance(state, tuple) and len(state) > 1 else "|"
    if not _is_byte_order(order):
        raise ValueError("a byte order is unknown")
    return np.dtype(name).newbyteorder(order)


def _is_byte_order(value: Any) -> bool:
    return type(value) is str and value in ("<", ">", "|", "=")
