"""Read the structure of a pickle without importing, calling or hashing anything of it.

A small interpreter over `pickletools.genops`, which only parses. Every global becomes its name,
every call a record of its arguments. An opcode takes constant time, or time in proportion to what
earlier ones pushed, so that the bound on opcodes bounds the work, however the values nest or share.
"""

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# Far above what an agent needs: 10,000 tensors take 250,000 opcodes and 3 MB.
MAX_OPCODES = 1_000_000
MAX_PICKLE_BYTES = 16 << 20
_MAX_PROTOCOL = 5
# Python hashes integers without caching, and ones that collide are easily made: long ones, and
# many keys that are not text, are refused.
_MAX_INTEGER_BITS = 1024
_MAX_NUMBER_KEYS = 10_000
_MAX_KEY_PARTS = 8  # of a tuple as key
_MAX_NAME = 200  # characters of a global that is joined from two texts, which may be shared

# These push the argument that `pickletools` has parsed. EXT (copyreg's registry), PERSID and
# NEXT_BUFFER (data from outside) are in no list here, and refused.
_LITERALS = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING"
    " UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8"
    " BYTEARRAY8".split()
)
# READONLY_BUFFER marks bytes that nobody here writes to; frames only say how much to read ahead.
_IGNORED = frozenset({"FRAME", "READONLY_BUFFER"})


@dataclass(frozen=True, eq=False, slots=True)
class Global:
    """The name of a class or function, `module.name`; nothing is looked up."""

    global_name: str


@dataclass(eq=False, slots=True)
class Recorded:
    """A record of what a pickle wanted to build: the global's name, its arguments and state.

    `items` are the entries of a mapping, in their order; those of sequences are dropped.
    """

    global_name: str
    arguments: tuple[Any, ...]
    state: Any = None
    items: list[tuple[Any, Any]] = field(default_factory=list)


@dataclass(frozen=True, eq=False, slots=True)
class Reference:
    """The key of something outside the pickle, such as a tensor's numbers."""

    key: Any


def load_inert(content: bytes, *, references: bool = False) -> Any:
    """Return a pickle's plain values, with a `Recorded` or `Global` in the place of every object.

    With `references`, what lies outside the pickle becomes a `Reference`. Raises ValueError or
    another exception where `content` is no complete pickle, has too many bytes or steps, or uses
    extensions, out-of-band buffers, keys other than text and numbers, or (without `references`)
    persistent references.
    """
    if len(content) > MAX_PICKLE_BYTES:
        raise ValueError(f"a pickle of {len(content)} bytes; at most {MAX_PICKLE_BYTES} are read")
    return next_inert(io.BytesIO(content), [] if references else None)


def next_inert(file: io.BytesIO, references: list[Reference] | None = None) -> Any:
    """Return the values of the pickle at the file's position, which moves to its end.

    Each `Reference` in it is also added to `references`; None refuses them. Raises as `load_inert`.
    """
    start = file.tell()
    interpreter = _Interpreter(len(file.getbuffer()) - start, references)
    for number, (opcode, argument, position) in enumerate(pickletools.genops(file)):
        if number >= MAX_OPCODES:
            raise ValueError(f"pickle has more than {MAX_OPCODES} steps")
        if position is not None and position - start > MAX_PICKLE_BYTES:
            raise ValueError(f"a pickle of more than {MAX_PICKLE_BYTES} bytes")
        if opcode.name == "STOP":
            break
        interpreter.step(opcode.name, argument)
    return interpreter.pop()


class _Interpreter:
    """The stack machine of pickles; what lies below a mark is put aside until it is popped."""

    def __init__(self, num_bytes: int, references: list[Reference] | None) -> None:
        self._stack: list[Any] = []
        self._below_marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._max_memo_index = num_bytes  # every entry takes a byte at least
        self._num_number_keys = 0
        self._references = references
        self._operations = self._table()
        if references is None:
            del self._operations["BINPERSID"]

    def step(self, name: str, argument: Any) -> None:
        """Do what the opcode says; raises ValueError, or IndexError for an empty stack."""
        if name in _LITERALS:
            if type(argument) is int and argument.bit_length() > _MAX_INTEGER_BITS:
                raise ValueError(f"an integer of more than {_MAX_INTEGER_BITS} bits")
            self._stack.append(argument)
        elif name in self._operations:
            self._operations[name](argument)
        elif name not in _IGNORED:
            raise ValueError(f"pickle opcode {name} is refused")

    def pop(self) -> Any:
        """Take the uppermost value off the stack."""
        return self._stack.pop()

    def _table(self) -> dict[str, Callable[[Any], None]]:
        put, get = self._put, self._get
        return {
            "PROTO": self._check_protocol,
            "NONE": lambda _: self._push(None),
            "NEWTRUE": lambda _: self._push(True),
            "NEWFALSE": lambda _: self._push(False),
            "MARK": self._mark,
            "POP": self._drop,
            "POP_MARK": lambda _: self._drop_to_mark(),
            "DUP": lambda _: self._push(self._stack[-1]),
            **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), put),
            **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), get),
            "MEMOIZE": lambda _: put(len(self._memo)),
            "EMPTY_TUPLE": lambda _: self._push(()),
            "TUPLE": lambda _: self._push(tuple(self._pop_mark())),
            "TUPLE1": lambda _: self._push(self._pop_last(1)),
            "TUPLE2": lambda _: self._push(self._pop_last(2)),
            "TUPLE3": lambda _: self._push(self._pop_last(3)),
            "EMPTY_LIST": lambda _: self._push([]),
            "LIST": lambda _: self._push(self._pop_mark()),
            "APPEND": lambda _: self._extend([self.pop()]),
            "APPENDS": lambda _: self._extend(self._pop_mark()),
            "EMPTY_DICT": lambda _: self._push({}),
            "DICT": self._dict,
            "SETITEM": lambda _: self._set_items(list(self._pop_last(2))),
            "SETITEMS": lambda _: self._set_items(self._pop_mark()),
            # Sets are recorded, never made: they would hash what they hold.
            "EMPTY_SET": lambda _: self._push(Recorded("builtins.set", ())),
            "ADDITEMS": lambda _: self._extend(self._pop_mark()),
            "FROZENSET": lambda _: self._record_call("builtins.frozenset", self._pop_mark()),
            "GLOBAL": lambda text: self._push(Global(_dotted(text))),
            "STACK_GLOBAL": self._stack_global,
            "REDUCE": self._call,
            "NEWOBJ": self._call,
            "NEWOBJ_EX": self._call_with_keywords,
            "INST": lambda text: self._record_call(_dotted(text), self._pop_mark()),
            "OBJ": self._object,
            "BUILD": self._build,
            "BINPERSID": lambda _: self._refer(),
        }

    def _check_protocol(self, protocol: Any) -> None:
        if protocol > _MAX_PROTOCOL:
            raise ValueError(f"pickle protocol {protocol} is unknown")

    def _refer(self) -> None:
        reference = Reference(self.pop())
        assert self._references is not None
        self._references.append(reference)
        self._push(reference)

    def _mark(self, _argument: Any) -> None:
        self._below_marks.append(self._stack)
        self._stack = []

    def _push(self, value: Any) -> None:
        # A method, as `_pop_mark` exchanges the list that an argument is computed for.
        self._stack.append(value)

    def _pop_mark(self) -> list[Any]:
        """Take all values down to the last mark, and the mark, off the stack."""
        values = self._stack
        self._stack = self._below_marks.pop()
        return values

    def _drop_to_mark(self) -> None:
        self._pop_mark()

    def _drop(self, _argument: Any) -> None:
        # As Python does it: POP where nothing lies above the mark takes the mark.
        if self._stack:
            self.pop()
        else:
            self._pop_mark()

    def _pop_last(self, count: int) -> tuple[Any, ...]:
        if len(self._stack) < count:
            raise ValueError("pickle stack is empty")
        values = tuple(self._stack[-count:])
        del self._stack[-count:]
        return values

    def _put(self, index: Any) -> None:
        if not 0 <= index <= self._max_memo_index:
            raise ValueError("pickle memo index is out of range")
        self._memo[index] = self._stack[-1]

    def _get(self, index: Any) -> None:
        if index not in self._memo:
            raise ValueError("pickle memo index is out of range")
        self._push(self._memo[index])

    def _extend(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif not isinstance(target, Recorded):
            raise ValueError(f"values are added to {type(target).__name__}")

    def _dict(self, _argument: Any) -> None:
        entries = self._pop_mark()
        self._push({})
        self._set_items(entries)

    def _set_items(self, entries: list[Any]) -> None:
        """Add `[key, value, key, value ...]` to the mapping on the stack."""
        target = self._stack[-1]
        pairs = zip(entries[::2], entries[1::2], strict=True)
        if isinstance(target, Recorded):
            target.items.extend(pairs)
        elif isinstance(target, dict):
            for key, value in pairs:
                self._check_key(key)
                target[key] = value
        else:
            raise ValueError(f"keys are set in {type(target).__name__}")

    def _check_key(self, key: Any) -> None:
        # str and bytes cache their hashes, and Python's are keyed at random.
        if type(key) is str or type(key) is bytes:
            return
        parts = key if type(key) is tuple and len(key) <= _MAX_KEY_PARTS else (key,)
        if not all(x is None or type(x) in (bool, int, float, str, bytes) for x in parts):
            raise ValueError(f"a dictionary has {type(key).__name__} as a key")
        self._num_number_keys += 1
        if self._num_number_keys > _MAX_NUMBER_KEYS:
            raise ValueError(f"dictionaries have more than {_MAX_NUMBER_KEYS} numbers as keys")

    def _stack_global(self, _argument: Any) -> None:
        module, name = self._pop_last(2)
        if type(module) is not str or type(name) is not str:
            raise ValueError("the name of a global is no text")
        if len(module) + len(name) > _MAX_NAME:
            raise ValueError(f"the name of a global has more than {_MAX_NAME} characters")
        self._push(Global(f"{module}.{name}"))

    def _call(self, _argument: Any) -> None:
        function, arguments = self._pop_last(2)
        if not isinstance(function, Global) or type(arguments) is not tuple:
            raise ValueError("pickle calls what is no global")
        self._push(Recorded(function.global_name, arguments))

    def _call_with_keywords(self, _argument: Any) -> None:
        if type(self.pop()) is not dict:
            raise ValueError("pickle calls with keywords that are no dictionary")
        self._call(None)

    def _object(self, _argument: Any) -> None:
        function, *arguments = self._pop_mark()
        self._stack.extend([function, tuple(arguments)])
        self._call(None)

    def _record_call(self, global_name: str, arguments: list[Any]) -> None:
        self._push(Recorded(global_name, tuple(arguments)))

    def _build(self, _argument: Any) -> None:
        state = self.pop()
        target = self._stack[-1]
        if not isinstance(target, Recorded):
            raise ValueError(f"pickle sets the state of {type(target).__name__}")
        target.state = state


def _dotted(text: str) -> str:
    """Return `module.name` of a global's two lines, which `pickletools` joins by a space."""
    return text.replace(" ", ".", 1)
