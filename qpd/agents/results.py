"""Hold what a suite measured of one agent, and read and write its files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from qpd.agents.errors import AgentQuantizationError
from qpd.errors.codes import ErrorCode
from qpd.files.atomic import to_plain, write_json
from qpd.files.json_input import read_json
from qpd.runs.run_folder import sealed, unsealed

Arithmetic = Literal["float", "simulated", "integers"]


@dataclass(frozen=True)
class LayerNoise:
    """A layer's weights under a quantizer.

    `range_per_sigma`: largest minus smallest weight over their standard deviation, before;
    `sqnr_db`: signal to quantization noise, None where nothing was lost; `distinct_values` after.
    """

    name: str
    range_per_sigma: float | None
    sqnr_db: float | None
    distinct_values: int


@dataclass(frozen=True)
class Played:
    """Games of one policy, in the order of their starts: unclipped returns, lengths in steps."""

    returns: tuple[float, ...] = ()
    lengths: tuple[int, ...] = ()

    def and_then(self, other: Played) -> Played:
        """Return these games and the other's after them."""
        return Played(self.returns + other.returns, self.lengths + other.lengths)


@dataclass(frozen=True)
class Cell:
    """An agent at one precision.

    `num_bytes` of the actor's constants. On states that the fp32 agent visits, `action_flips` is
    the share in which another action is best, `action_error` the mean distance of continuous
    actions, as a share of their range; the other is None. `why_not` says why it could not be
    measured.
    """

    precision: str
    scheme: str = ""
    per: str = ""
    arithmetic: Arithmetic = "float"
    num_bytes: int = 0
    action_flips: float | None = None
    action_error: float | None = None
    layers: tuple[LayerNoise, ...] = ()
    played: Played = field(default_factory=Played)
    why_not: str | None = None


@dataclass(frozen=True)
class AgentResult:
    """One agent of a suite: its games in fp32, those of random actions, and its cells.

    `name` is its folder's; `identity` is the same for the same files in the same environment. Where
    `why_not` is given, there is nothing else but `source`.
    """

    source: str
    name: str = ""
    algo: str = ""
    env_id: str = ""
    fp32: Cell = field(default_factory=lambda: Cell("fp32"))
    random: Played = field(default_factory=Played)
    cells: tuple[Cell, ...] = ()
    why_not: str | None = None
    identity: str = ""


def write_cell(file: Path, cell: Cell) -> None:
    """Write what is known of a cell, with a checksum."""
    content: dict[str, Any] = to_plain(asdict(cell))
    write_json(file, sealed(content))


def read_cell(file: Path) -> Cell | None:
    """Read what `write_cell` wrote; None if there is nothing. Raises AgentQuantizationError."""
    if not file.is_file():
        return None
    try:
        content = unsealed(read_json(file))
        layers = tuple(LayerNoise(**layer) for layer in content.pop("layers"))
        games = content.pop("played")
        played = Played(tuple(games["returns"]), tuple(games["lengths"]))
        return replace(Cell(**content), layers=layers, played=played)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise AgentQuantizationError(
            f"{file}: is damaged ({reason}); delete it, and its games are played again",
            ErrorCode.RUN_DAMAGED,
        ) from error
