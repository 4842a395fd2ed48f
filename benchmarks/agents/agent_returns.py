"""Returns of trained agents as QPD plays them, beside those that the RL Zoo reports for them.

python -m benchmarks.agents.agent_returns [FOLDER...] [--episodes 100] [--results FILE]

FOLDER holds agents in the RL Zoo's layout, or is one; without any, the results alone are printed.
An agent that `--results` (JSON) has already is not played again. The zoo's numbers are those of its
benchmark.md (rl_zoo_returns.csv beside this file): one evaluation of each agent, most of them in
the environments of 2021. Agents act as `qpd evaluate` lets them: greedily, but those of Atari games
sample.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import qpd
from qpd.errors.user_error import UserError
from qpd.files.atomic import write_json

ZOO = Path(__file__).with_name("rl_zoo_returns.csv")
Z = 2.576  # 99%, as there are dozens of rows


def main() -> None:
    """Play, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="*", type=Path)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--results", type=Path, default=Path("agent_returns.json"))
    arguments = parser.parse_args()
    found = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
    for agent in _agents(arguments.folder):
        if agent.name not in found:
            found[agent.name] = _played(agent, arguments.episodes)
            write_json(arguments.results, found)
            Console(stderr=True).print(agent.name, found[agent.name].get("refused", ""))
    print(_table(found))


def _agents(folders: list[Path]) -> list[Path]:
    agents = {}
    for folder in folders:
        if not folder.is_dir():
            sys.exit(f"{folder}: there is no such folder; a clone of rl-trained-agents is one")
        places = [folder] if list(folder.glob("*.zip")) else sorted(folder.iterdir())
        agents.update({place.name: place for place in places if list(place.glob("*.zip"))})
    return [agents[name] for name in sorted(agents)]


def _played(agent: Path, episodes: int) -> dict[str, Any]:
    try:
        result = qpd.evaluate(agent, episodes=episodes)
    except UserError as error:
        return {"refused": error.lines[0]}
    low, high = result.interval()
    returns = result.returns.tolist()
    return {"low": low, "high": high, "returns": returns}


def _table(found: dict[str, dict[str, Any]]) -> str:
    with ZOO.open(encoding="utf-8") as file:
        zoo = {f"{row['algo']}-{row['env_id']}": row for row in csv.DictReader(file)}
    lines = ["| agent | return, 95% interval | the zoo's | differs by |",
             "|---|---|---|---|"]  # fmt: skip
    for name, played in found.items():
        if "refused" in played:
            lines.append(f"| {name} | refused: {played['refused']} | | |")
            continue
        returns = np.array(played["returns"])
        ours = f"{returns.mean():,.1f} [{played['low']:,.1f}, {played['high']:,.1f}]"
        theirs, differ = "", ""
        if name in zoo:
            mean, std = float(zoo[name]["mean"]), float(zoo[name]["std"])
            error = np.hypot(std / int(zoo[name]["episodes"]) ** 0.5,
                             returns.std() / len(returns) ** 0.5)  # fmt: skip
            theirs = f"{mean:,.1f}"
            gap = returns.mean() - mean
            differ = f"{gap:+,.1f}" if abs(gap) > Z * error else ""
        lines.append(f"| {name} | {ours} | {theirs} | {differ} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
