"""Suites read back from their folders, as far as they have been played; nothing is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qpd.agents.errors import AgentQuantizationError
from qpd.agents.precision import FP32
from qpd.agents.results import AgentResult, Cell, read_cell
from qpd.agents.suite import AGENT_FILE, SUITE_FILE
from qpd.errors.codes import ErrorCode
from qpd.files.json_input import read_json
from qpd.runs.run_folder import unsealed
from qpd.teachers.archive.agent_identity import free_name


def read_suites(folders: Sequence[Path]) -> list[AgentResult]:
    """Return the agents of several suites, the cells of one agent in one result.

    Folders of suites, or folders of such. An agent that two suites hold (the same files, named
    alike, in the same environment) has the cells of both if its games in fp32 are the same, of one
    seed; else each suite's are a result of their own, and so are agents of other files: a second
    result of a name is called `NAME (10 games)` where only the games differ, else `NAME-2`. Cells
    whose games are not finished are left out. Raises AgentQuantizationError where there is no
    suite, or a file is damaged.
    """
    found: dict[tuple[str, str, object, tuple[float, ...]], AgentResult] = {}
    for folder in [each for given in folders for each in _suites(given)]:
        seed = _seed(folder / SUITE_FILE)
        for result in _results(folder):
            # Returns alone do not tell: an agent at its cap has the same ones for any seed.
            key = (result.name, result.identity, seed, result.fp32.played.returns)
            if key in found:
                cells = {cell_key(cell): cell for cell in (*found[key].cells, *result.cells)}
                result = replace(result, cells=tuple(cells.values()))
            found[key] = result
    names: set[str] = set()
    agents: set[tuple[str, str]] = set()
    results = []
    for result in found.values():
        agent = (result.name, result.identity)
        games = len(result.fp32.played.returns)
        shown = f"{result.name} ({games} games)" if agent in agents else result.name
        shown = free_name(shown, names)
        names.add(shown)
        agents.add(agent)
        results.append(replace(result, name=shown))
    return results


def cell_key(cell: Cell) -> tuple[str, str, str]:
    """Return what tells a cell from others of its agent."""
    return cell.precision, cell.scheme, cell.per


def _suites(given: Path) -> list[Path]:
    inside = [given] if (given / SUITE_FILE).is_file() else []
    inside = inside or sorted(file.parent for file in given.glob(f"*/{SUITE_FILE}"))
    if not inside:
        raise AgentQuantizationError(
            f"{given}: no suite there; expected a folder of `qpd quantize AGENT... -o FOLDER`",
            ErrorCode.RUN_NOT_A_RUN,
        )
    return inside


def _results(folder: Path) -> Iterator[AgentResult]:
    """Yield each agent; by the digest of its file it is the same at another place."""
    for file in sorted(folder.glob(f"*/{AGENT_FILE}")):
        agent = _read(file)
        fp32, random = (read_cell(file.parent / f"{key}.json") for key in (FP32.key, "random"))
        if fp32 is None or random is None:
            continue
        episodes = len(fp32.played.returns)
        cells = []
        for path in sorted(file.parent.glob("*.json")):
            if path.name in (AGENT_FILE, "random.json", f"{FP32.key}.json"):
                continue
            cell = read_cell(path)
            if cell is not None and (cell.why_not or len(cell.played.returns) == episodes):
                cells.append(cell)
        if len(random.played.returns) == episodes:
            digest = str(agent.get("sha256", agent["source"]))
            yield AgentResult(
                str(agent["source"]),
                file.parent.name,
                str(agent["algo"]),
                str(agent["environment"]["env_id"]),
                fp32,
                random.played,
                tuple(cells),
                identity=f"{digest} {json.dumps(agent['environment'], sort_keys=True)}",
            )


def _seed(file: Path) -> int | None:
    try:
        found: int | None = read_json(file).get("seed")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _damaged(file) from error
    return found


def _read(file: Path) -> dict[str, Any]:
    try:
        content = unsealed(read_json(file))
        for key in ("source", "algo"):
            content[key] = str(content[key])
        str(content["environment"]["env_id"])
        found: dict[str, Any] = content
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _damaged(file) from error
    return found


def _damaged(file: Path) -> AgentQuantizationError:
    return AgentQuantizationError(
        f"{file}: is damaged; run `qpd quantize` again into a new folder", ErrorCode.RUN_DAMAGED
    )
