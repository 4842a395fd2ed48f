"""The suggestion that an error makes for an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, valid: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `; did you mean X?` with the valid name nearest to `name`, or "" if none is near.

    Case is ignored. `cutoff` is difflib's: 1 accepts the same name only, 0 any.
    """
    by_lower = {one.lower(): one for one in valid}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""
