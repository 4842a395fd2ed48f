"""What an error says of a name that is none of the valid ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, valid: Iterable[str], cutoff: float = 0.6) -> str:
    """`; did you mean X?` with the valid name nearest to `name`, case aside; empty where none is.

    `cutoff` is difflib's: 1 asks for the same name, 0 takes any.
    """
    by_lower = {one.lower(): one for one in valid}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""
