"""Inject faults for real and print the counts: python -m tests.faults --help."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from qpd.recipe.loading import load_recipe
from tests.faults.command_kills import CommandKills, CommandTally, kill_commands
from tests.faults.damage import DAMAGES, DamageTally, damage_and_resume, files_of
from tests.faults.disks import fill_disk, forbid_writing, remount_read_only, small_disk
from tests.faults.experiment import PLACES, Experiment, tiny, variants
from tests.faults.kills import SIGNALS, Tally, kill_one_run, undisturbed
from tests.faults.processes import ROOT, ForkStarter, PlainStarter, Starter
from tests.faults.snapshots import snapshots
from tests.tiny_run import write_teacher


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="+", choices=list(PROGRAMS))
    parser.add_argument("--kills", type=int, default=200, help="at least so many")
    parser.add_argument("--damages", type=int, default=len(DAMAGES), help="kinds for each file")
    parser.add_argument("--rounds", type=int, default=5, help="of disk faults in each phase")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the run directories")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, ForkStarter() as forked:
        folder = (options.keep or Path(temporary)).resolve()
        write_teacher(folder / "ppo-CartPole-v1.zip")
        rng = np.random.default_rng(options.seed)
        for what in options.what:
            began = time.monotonic()
            PROGRAMS[what](folder, forked, rng, options)
            print(f"{what}: {(time.monotonic() - began) / 60:.1f} min\n", flush=True)


def kills(
    folder: Path, forked: Starter, rng: np.random.Generator, options: argparse.Namespace
) -> None:
    """Kill CartPole runs of three kinds in turn until there are enough kills."""
    tally, rounds = Tally(), 0
    starters: list[Starter] = [forked, PlainStarter(), forked]
    recipes = variants(folder / "ppo-CartPole-v1.zip")
    experiments = [Experiment.of(folder / name, recipe) for name, recipe in recipes.items()]
    seconds = [undisturbed(experiment, forked) for experiment in experiments]
    print("seconds undisturbed:", [{k: round(v, 2) for k, v in s.items()} for s in seconds])
    while tally.total < options.kills:
        turn = rounds % len(experiments)
        kill_one_run(experiments[turn], starters, seconds[turn], rng, tally, kills_per_place=4)
        rounds += 1
        print(f"{rounds} runs, {tally.total} kills, {len(tally.findings)} findings", flush=True)
    _print_kills(tally, rounds)


def breakout(
    folder: Path, forked: Starter, rng: np.random.Generator, options: argparse.Namespace
) -> None:
    """The same with Breakout, few kills."""
    recipe = load_recipe(str(ROOT / "recipes" / "ci.yaml"), ["distill.epochs=4"])
    experiment, tally = Experiment.of(folder / "breakout", recipe), Tally()
    seconds = undisturbed(experiment, forked)
    kill_one_run(experiment, [PlainStarter(), forked], seconds, rng, tally, kills_per_place=3)
    _print_kills(tally, 1)


def commands(
    folder: Path, forked: ForkStarter, rng: np.random.Generator, options: argparse.Namespace
) -> None:
    """Kill every command that writes, in turn, until there are enough kills."""
    tally = CommandTally()
    work = CommandKills(folder / "commands", folder / "ppo-CartPole-v1.zip", forked)
    while tally.kills.total() < options.kills:
        kill_commands(work, min(options.kills, tally.kills.total() + 50), rng, tally)
        print(f"{tally.kills.total()} kills, {len(tally.findings)} findings", flush=True)
    print("| command | SIGKILL |\n|---|--:|")
    for name, number in sorted(tally.kills.items()):
        print(f"| `{name}` | {number} |")
    print(json.dumps(tally.findings, indent=1))


def damage(
    folder: Path, forked: Starter, rng: np.random.Generator, options: argparse.Namespace
) -> None:
    """Each file, each damage, each state."""
    recipe = tiny(folder / "ppo-CartPole-v1.zip")
    recipe = recipe.model_copy(
        update={"save": recipe.save.model_copy(update={"tensorboard": True})}
    )
    experiment = Experiment.of(folder / "damage", recipe)
    undisturbed(experiment, forked)
    tally = DamageTally()
    for state, snapshot in snapshots(experiment, forked).items():
        for file in files_of(snapshot):
            for kind in rng.permutation(list(DAMAGES))[: options.damages]:
                damage_and_resume(experiment, snapshot, file, kind, forked, rng, tally)
        print(f"{state}: {len(tally.findings)} findings so far", flush=True)
    for key in sorted({*tally.same, *tally.refused}):
        print(f"| {key[0]} | {key[1]} | {tally.same[key]} | {tally.refused[key]} |")
    for key, message in tally.messages.items():
        print(key, message)
    print(json.dumps(tally.findings, indent=1))


def disks(
    folder: Path, forked: Starter, rng: np.random.Generator, options: argparse.Namespace
) -> None:
    """Full disks, read-only ones, and lost permissions, in every phase."""
    experiment = Experiment.of(folder / "disks", tiny(folder / "ppo-CartPole-v1.zip"))
    seconds = undisturbed(experiment, forked)
    with small_disk(folder / "disk", "8m") as disk:
        for phase in PLACES[:-1] * options.rounds:
            delay = float(rng.uniform(0.0, seconds[phase]))
            problem = fill_disk(experiment, disk, phase, delay, forked)
            print(f"full in {phase}: {problem or 'well'}", flush=True)
        for phase in PLACES[1:-1]:
            problem = remount_read_only(experiment, disk, phase, forked)
            print(f"read-only after {phase}: {problem or 'well'}", flush=True)
    with ForkStarter(without_powers=True) as powerless:
        for number, phase in enumerate(PLACES[1:-1] * options.rounds):
            delay = float(rng.uniform(0.0, seconds[phase]))
            mine = folder / f"mine-{number}"
            problem = forbid_writing(experiment, mine, phase, delay, powerless)
            print(f"no permission in {phase}: {problem or 'well'}", flush=True)


def _print_kills(tally: Tally, rounds: int) -> None:
    print("| phase | SIGKILL | SIGTERM | SIGINT |\n|---|--:|--:|--:|")
    for where in PLACES:
        row = [
            sum(n for key, n in tally.kills.items() if key[:2] == (where, number.name))
            for number in SIGNALS
        ]
        print(f"| {where} | {' | '.join(map(str, row))} |")
    by_starter = Counter[str]()
    for (_, _, starter), number in tally.kills.items():
        by_starter[starter] += number
    print(f"{tally.total} kills of {rounds} runs: {dict(by_starter)}")
    print(json.dumps(tally.findings, indent=1))


PROGRAMS: dict[
    str, Callable[[Path, ForkStarter, np.random.Generator, argparse.Namespace], None]
] = {
    "kills": kills,
    "breakout": breakout,
    "commands": commands,
    "damage": damage,
    "disks": disks,
}

if __name__ == "__main__":
    main()
