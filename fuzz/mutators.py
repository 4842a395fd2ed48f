"""Mutations inside containers, whose checksums and lengths plain byte flips would only break.

`MUTATORS` are atheris' custom mutators. They have byte mutations of their own, as libFuzzer's
(`atheris.Mutate`) cannot be called from atheris 3.0.
"""

import io
import json
import random
import zipfile
from collections.abc import Callable

from qpd.files.tensors import seal_header

CustomMutator = Callable[[bytes, int, int], bytes]
Change = Callable[[bytes, random.Random], bytes]

_EPOCH = (1980, 1, 1, 0, 0, 0)  # zip's earliest date: equal members are equal bytes
_NUMBERS = (0, 1, 2, 3, 127, 128, 255)  # where counts and signed bytes turn over
_JSON_WORDS = b"0 -1 1e999 NaN null true [ ] { } , : 999999999999999999999999"
# Opcodes: MARK, TUPLE, REDUCE, APPEND, ... Readers of pickles are most easily led astray by these.
_PICKLE_WORDS = (
    rb"( ) t R b } u s . 2 2\x86 q\0 \x81 \x85 \x86 \x93 \x94 h\0 Q K\1 J\377\377\377\177"
)
_WORDS = [
    *_JSON_WORDS.split(),
    *(word.decode("unicode_escape").encode("latin-1") for word in _PICKLE_WORDS.split()),
    b"ctorch\nFloatStorage\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
]


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Make one to four small changes: set, erase or copy bytes, or insert dictionary words."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        end = min(at + rng.choice((1, 1, 2, 4, 8, 32)), len(data))
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 1 and at < len(data):
            data[at] = rng.choice(_NUMBERS)
        elif kind == 2:
            del data[at:end]
        elif kind == 3:
            data[at:at] = data[at:end] * rng.choice((1, 2, 50))
        elif kind == 4:
            data[at:at] = rng.choice(_WORDS)
        else:
            other = rng.randrange(len(data) + 1)
            data[other : other + end - at] = data[at:end]
    return bytes(data)


def mutate_zip(content: bytes, rng: random.Random) -> bytes:
    """Change one member (inside it, if it is a zip itself) and rewrite the archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
    except Exception:  # already broken as a zip: change the bytes
        return mutate_bytes(content, rng)
    if not members:
        return mutate_bytes(content, rng)
    name = rng.choice(sorted(members))
    # policy.pth inside an agent's zip is a zip again; its tensors lie two levels down.
    inner = members[name].startswith(b"PK") and rng.random() < 0.9
    members[name] = (mutate_zip if inner else mutate_bytes)(members[name], rng)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for member, value in members.items():
            archive.writestr(zipfile.ZipInfo(member, _EPOCH), value)
    return buffer.getvalue()


def mutate_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Change the JSON header or the numbers, and correct the header's length in the first 8 bytes.

    In half of the cases the checksum is corrected too.
    """
    length = int.from_bytes(content[:8], "little")
    if length > len(content) - 8:
        return mutate_bytes(content, rng)
    header, numbers = content[8 : 8 + length], content[8 + length :]
    # Headers steer the parser; numbers are only copied.
    if rng.random() < 0.8:
        header = mutate_bytes(header, rng)
    else:
        numbers = mutate_bytes(numbers, rng)
    if rng.random() < 0.5:
        header = _resealed(header, numbers)
    return len(header).to_bytes(8, "little") + header + numbers


def _resealed(header: bytes, numbers: bytes) -> bytes:
    try:
        found = json.loads(header)
        found["__metadata__"].pop("crc32", None)
        return seal_header(found, memoryview(numbers))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return header  # broken by the change: no checksum can fit


def _custom(change: Change) -> CustomMutator:
    """Return a mutator that damages the container itself in one of ten cases."""

    def mutator(content: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        changed = (mutate_bytes if rng.random() < 0.1 else change)(content, rng)
        # libFuzzer's limit, which a custom mutator has to keep itself.
        return changed[:max_size]

    return mutator


MUTATORS = {
    "sb3_zip": _custom(mutate_zip),
    "student": _custom(mutate_safetensors),
    "packed_student": _custom(mutate_safetensors),
}
