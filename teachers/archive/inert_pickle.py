"""Read the structure of a pickle without importing or calling anything.

Every global becomes an inert class that only records what was done to it, and numpy
arrays and scalars are rebuilt from their raw bytes for a few plain number types.
"""

import io
import pickle
import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Half, float, double, integers and bool, as NumPy's dtype codes: object arrays hold pickles.
_PLAIN_DTYPES = frozenset({"f2", "f4", "f8", "i4", "i8", "u1", "b1"})
# EXT looks classes up in copyreg's registry, PERSID and NEXT_BUFFER ask for data from outside.
_REFUSED_OPCODES = frozenset({"EXT1", "EXT2", "EXT4", "PERSID", "NEXT_BUFFER"})
_NESTING_OPCODES = frozenset({"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET"})

# Far above what an agent needs: 10,000 tensors take 250,000 opcodes.
MAX_OPCODES = 1_000_000
MAX_GLOBALS = 1_000  # different ones; each becomes a class
# The interpreter hashes nested tuples on the C stack, which some 60,000 of them overflow.
MAX_TUPLES = 30_000


class Recorded:
    """A record of what a pickle wanted to build: the global's name, its arguments and state."""

    global_name = ""
    arguments: tuple[Any, ...]
    state: Any
    items: list[tuple[Any, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> "Recorded":
        """Record the arguments, whatever they are."""
        instance = super().__new__(cls)
        instance.arguments = args
        instance.state = None
        instance.items = []
        return instance

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Accept any arguments: __new__ has recorded them."""

    def __setstate__(self, state: Any) -> None:
        """Record the state."""
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Record the entries of a mapping, in their order."""
        self.items.append((key, value))

    def append(self, value: Any) -> None:
        """Ignore entries of unknown sequences."""

    def extend(self, values: Any) -> None:
        """Ignore entries of unknown sequences."""


@dataclass(frozen=True)
class Reference:
    """The key of something outside the pickle, such as a tensor's numbers."""

    key: Any


class _InertUnpickler(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self._recorders: dict[str, type[Recorded]] = {}

    def find_class(self, module: str, name: str, /) -> Any:
        """Return a recorder for any global: nothing is looked up."""
        # One class per name: a pickle that compares or hashes its classes sees the same object each
        # time.
        full_name = f"{module}.{name}"
        if full_name not in self._recorders:
            if len(self._recorders) >= MAX_GLOBALS:
                raise pickle.UnpicklingError(f"more than {MAX_GLOBALS} different globals")
            self._recorders[full_name] = type("Recorded", (Recorded,), {"global_name": full_name})
        return self._recorders[full_name]

    def persistent_load(self, pid: Any) -> Any:
        """Return the key of something outside the pickle."""
        return Reference(pid)


def load_inert(content: bytes, *, references: bool = False) -> Any:
    """Return a pickle's plain values, with `Recorded` in the place of every object.

    With `references`, what lies outside the pickle becomes a `Reference`. Raises ValueError or
    another exception where `content` is no complete pickle, is too large or nested, or uses
    extensions, out-of-band buffers or (without `references`) persistent references.
    """
    num_tuples = 0
    # pickletools parses without executing, so that limits apply before anything is built.
    for number, (opcode, argument, _position) in enumerate(pickletools.genops(content)):
        if opcode.name in _REFUSED_OPCODES or (opcode.name == "BINPERSID" and not references):
            raise ValueError(f"pickle opcode {opcode.name} is refused")
        # The C unpickler makes its memo as long as the largest index: 5 bytes could ask for
        # gigabytes.
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(content):
            raise ValueError("pickle memo index is out of range")
        num_tuples += opcode.name in _NESTING_OPCODES
        if number >= MAX_OPCODES or num_tuples > MAX_TUPLES:
            raise ValueError(f"pickle has more than {MAX_OPCODES} steps or {MAX_TUPLES} tuples")
    return _InertUnpickler(content).load()


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
    if name not in _PLAIN_DTYPES or not record.global_name.startswith("numpy"):
        raise ValueError(f"number type {name!r} is not one of {sorted(_PLAIN_DTYPES)}")
    state = record.state
    order = state[1] if isinstance(state, tuple) and len(state) > 1 else "|"
    if order not in ("<", ">", "|", "="):
        raise ValueError(f"byte order {order!r} is unknown")
    return np.dtype(name).newbyteorder(order)
