"""Plain values of an SB3 archive's `data` member: observations, activation, algorithm.

`data` is JSON. Values that JSON cannot hold are stored as objects with a base64 pickle
under `:serialized:` and, beside it, `str()` of their attributes. Only the latter are
used here; nothing is ever unpickled. Old archives spell keys and values differently
(`shape`/`_shape`, `'n': '4'`/`4`), and any of them may be missing.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

_SPACE_NAME = re.compile(r"spaces\.\w+\.(\w+)'|\b(Box|Discrete|MultiDiscrete|MultiBinary|Dict)\b")


# One entry of a Dict's text, up to the next key: 'camera': Box(0, 255, (3, 64, 64), uint8); before
# gymnasium 1.0 ('camera', Box(...)).
_ENTRY = re.compile(
    r"""(['"])(.{1,200}?)\1(?:: |, )(Box|Discrete|MultiDiscrete|MultiBinary)\(""", re.DOTALL
)
_BOX = re.compile(r"\(([\d, ]{1,200})\), (\w+)\)")
_MAX_TEXT, _MAX_NUMBERS = 100_000, 1_000


@dataclass(frozen=True)
class DictPart:
    """One key of a Dict: the shape of its Box or image, or `(size,)` of what SB3 makes of it."""

    key: str
    shape: tuple[int, ...]
    is_uint8_image: bool = False

    @property
    def size(self) -> int:
        """Count the numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class ObservationSpace:
    """The agent's observation space; fields are None where the archive does not say.

    `parts` are those of a Dict, in its order, which is that of its features; empty where unknown.
    """

    space: str | None = None  # "Box", "Discrete", "Dict", ...
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    is_uint8_image: bool = False  # SB3's is_image_space(): 3 axes, uint8, from 0 to 255
    parts: tuple[DictPart, ...] = ()


def read_observation_space(data: Mapping[str, Any]) -> ObservationSpace:
    """Return the observation space that the plain data describe."""
    fields = space_fields(data, "observation_space")
    shape = int_tuple(fields.get("_shape", fields.get("shape")))
    dtype = fields.get("dtype")
    dtype = dtype if isinstance(dtype, str) else None
    # Bounds are NumPy's text of a whole array, `[[[0 0 0 ... 0]]]`: only its numbers count.
    low, high = (set(re.findall(r"\d+", str(fields.get(key, "")))) for key in ("low", "high"))
    is_image = shape is not None and len(shape) == 3 and dtype == "uint8"
    is_image = is_image and low <= {"0"} and high <= {"255"}
    parts = dict_parts(str(fields.get("spaces", "")))
    return ObservationSpace(space_name(fields), shape, dtype, is_image, parts)


def dict_parts(text: str) -> tuple[DictPart, ...]:
    """Return the parts that the text of a Dict's spaces names; none where one is not understood."""
    text, parts = text[:_MAX_TEXT], []
    found = list(_ENTRY.finditer(text))
    for entry, following in zip_longest(found, found[1:]):
        end = following.start() if following else len(text)
        part = _dict_part(entry[2], entry[3], text[entry.end() - 1 : end])
        if part is None:
            return ()
        parts.append(part)
    return tuple(parts)


def _dict_part(key: str, kind: str, arguments: str) -> DictPart | None:
    if kind == "Box":
        said = _BOX.findall(arguments)[-1:]  # bounds come before it
        shape = tuple(map(int, re.findall(r"\d{1,9}", said[0][0]))) if said else ()
        if not shape:
            return None
        is_image = len(shape) == 3 and said[0][1] == "uint8" and arguments.startswith("(0, 255, ")
        return DictPart(key, shape, is_image)
    # Discrete(3), MultiDiscrete([2 3]): one-hot; MultiBinary(4): bits; start=... comes after.
    numbers = [int(n) for n in re.findall(r"\d{1,9}", arguments.split("start", 1)[0])]
    if not 0 < len(numbers) <= _MAX_NUMBERS:
        return None
    size = math.prod(numbers) if kind == "MultiBinary" else sum(numbers)
    return DictPart(key, (size,)) if size else None


def read_policy_option(data: Mapping[str, Any], name: str) -> str | None:
    """Return the text of one entry of `policy_kwargs`, or None.

    `policy_kwargs` may be a JSON object, an object of `str()`s, or the `str()` of a dict.
    """
    options = data.get("policy_kwargs")
    if isinstance(options, str):
        # The text of a dict or of keyword arguments: 'net_arch': [64], net_arch=[64].
        found = re.search(rf"['\"]?\b{name}\b['\"]?\s*[:=]\s*(<[^>]*>|[^,}}\)]+)", options)
        return found.group(1).strip() if found else None
    if isinstance(options, Mapping) and options.get(name) is not None:
        return str(options[name])
    return None


def read_flag(data: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """Return an entry of `policy_kwargs` that is true or false."""
    text = read_policy_option(data, name)
    return default if text is None else text.strip() == "True"


def class_name(text: str) -> str:
    """Return the last name in the text of a class: `<class 'torch.nn.Tanh'>` -> `Tanh`."""
    return re.sub(r"[<>'\"\s]|class\b", "", text).rsplit(".", 1)[-1]


def is_class_of(text: str, *packages: str) -> bool:
    """Tell whether the text of a class names no module, or one of `packages`: `torch`, `qpd`."""
    found = re.fullmatch(r"<class '([\w.<>]+)'>", text.strip())
    return found is None or "." not in found[1] or found[1].split(".")[0] in packages


def read_float(data: Mapping[str, Any], key: str) -> float | None:
    """Return a plain number, or None if it is missing, no number, not finite or too large."""
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def read_int(data: Mapping[str, Any], key: str) -> int | None:
    """Return a plain non-negative integer, or None."""
    value = data.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def space_fields(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the plain fields of a space, none where it is absent."""
    value = data.get(key)
    if isinstance(value, str):  # `str()` of a space: "Discrete(4)"
        found = re.match(r"\s*Discrete\((\d+)", value)
        return {":type:": value, **({"n": found.group(1)} if found else {})}
    return value if isinstance(value, Mapping) else {}


def space_name(fields: Mapping[str, Any]) -> str | None:
    """Return the name of a space's class, such as `Box`, or None."""
    found = _SPACE_NAME.search(str(fields.get(":type:", "")))
    return (found.group(1) or found.group(2)) if found else None


def positive_int(value: object) -> int | None:
    """Return a whole number above 0, also one given as text, or None."""
    if isinstance(value, bool) or not re.fullmatch(r"\d{1,9}", str(value)):
        return None
    return int(str(value)) or None


def int_tuple(value: object) -> tuple[int, ...] | None:
    """Return the whole numbers of a list, or of the text of a list or tuple; None for others."""
    text = str(value)
    # A JSON list and the text of a tuple look alike as text; nothing is evaluated.
    if not re.fullmatch(r"\s*[\[(][\d,\s]{0,200}[\])]\s*", text):
        return None
    return tuple(int(number) for number in re.findall(r"\d{1,9}", text))
