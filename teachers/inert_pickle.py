"""Reads the structure of a pickle without importing or calling anything.

Every global becomes an inert class that only records what was done to it, and numpy
arrays and scalars are rebuilt from their raw bytes for a few plain number types.
"""

import io
import pickle
import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PLAIN_DTYPES = frozenset({"f2", "f4", "f8", "i4", "i8", "u1", "b1"})
_REFUSED_OPCODES = frozenset({"EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER"})


class Recorded:
    """What a pickle wanted to build: the global's name, arguments and state, never the thing."""

    global_name = ""
    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> "Recorded":
        """Records the arguments, whatever they are."""
        instance = super().__new__(cls)
        instance.arguments = args
        instance.state = None
        return instance

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Accepts any arguments: __new__ has recorded them."""

    def __setstate__(self, state: Any) -> None:
        """Records the state."""
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Ignores entries of unknown mappings."""

    def append(self, value: Any) -> None:
        """Ignores entries of unknown sequences."""

    def extend(self, values: Any) -> None:
        """Ignores entries of unknown sequences."""


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        """Returns a recorder for any global: nothing is looked up."""
        return type("Recorded", (Recorded,), {"global_name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        """Refuses references to things outside the pickle."""
        raise pickle.UnpicklingError("persistent references are refused")


def load_inert(content: bytes) -> Any:
    """Returns a pickle's plain values, with `Recorded` in the place of every object.

    Raises ValueError or another exception where `content` is no complete pickle, or
    uses extensions, persistent references or out-of-band buffers.
    """
    for opcode, argument, _position in pickletools.genops(content):
        if opcode.name in _REFUSED_OPCODES:
            raise ValueError(f"pickle opcode {opcode.name} is refused")
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(content):
            raise ValueError("pickle memo index is out of range")
    return _InertUnpickler(io.BytesIO(content)).load()


def as_array(value: Any) -> NDArray[Any]:
    """Rebuilds a numpy array or scalar, or a python number, from its record.

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
    if name not in _PLAIN_DTYPES or not record.global_name.startswith("numpy"):
        raise ValueError(f"number type {name!r} is not one of {sorted(_PLAIN_DTYPES)}")
    state = record.state
    order = state[1] if isinstance(state, tuple) and len(state) > 1 else "|"
    if order not in ("<", ">", "|", "="):
        raise ValueError(f"byte order {order!r} is unknown")
    return np.dtype(name).newbyteorder(order)
