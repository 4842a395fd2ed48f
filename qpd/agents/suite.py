"""A suite: many agents at many precisions, in one folder that resumes.

FOLDER/suite.json          what was asked for, and the versions that played
FOLDER/AGENT/agent.json    which agent, and what it plays
FOLDER/AGENT/fp32.json     games of the agent as it is; random.json: of random actions
FOLDER/AGENT/KEY.json      a precision: bytes, noise of each layer, changed actions, games
FOLDER/AGENT/KEY/          the run directory of a precision in integers

Files hold no times and no dates: the same suite on the same machine is the same bytes, however
often it was killed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from qpd.agents.agent_games import AgentGames
from qpd.agents.agent_run import write_agent_run
from qpd.agents.agent_student import balances, why_no_student
from qpd.agents.cells import arithmetic_of, float_cell, quantize_agent
from qpd.agents.errors import AgentQuantizationError
from qpd.agents.precision import FP32, Precision
from qpd.agents.quantized_agent import agent_policy
from qpd.agents.results import AgentResult, Cell, Played, read_cell, write_cell
from qpd.environments.policy import Policy
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.files.atomic import remove_leftovers, write_json
from qpd.files.json_input import read_json
from qpd.phases.first_games import is_above_random, no_better_than_random
from qpd.quantization.weight_quantizer import HalfRangeError
from qpd.recipe.bounds import MAX_EPISODES, MAX_SEED
from qpd.recipe.loading import override_lines, override_recipe
from qpd.runs.manifest import new_origin
from qpd.runs.played_environment import EnvironmentWish, PlayedEnvironment, environment_of
from qpd.runs.progress import Progress
from qpd.runs.run_directory import RunDirectory
from qpd.runs.run_folder import LOCK_NAME, RunDirectoryError, acquire_lock, sealed, unsealed
from qpd.teachers import Teacher, load_teacher
from qpd.teachers.archive.agent_identity import agent_name, free_name
from qpd.teachers.networks.actor import actor_of

DEFAULT_SUITE = "runs/quantized-agents"
SUITE_FILE, AGENT_FILE = "suite.json", "agent.json"
# Of a folder whose files someone has to mend, or which is another suite's.
_FOLDERS_FAULT = (ErrorCode.RUN_DAMAGED, ErrorCode.RUN_OTHER_RECIPE)


@dataclass(frozen=True)
class Suite:
    """Hold what is asked for: agents (SB3 zips, zoo folders, hub ids), precisions, games, seed.

    `wish` and `vec_normalize` are what the user says of the agents beside their files.
    """

    agents: tuple[str, ...]
    precisions: tuple[Precision, ...]
    episodes: int = 100
    seed: int = 0
    wish: EnvironmentWish = EnvironmentWish()
    vec_normalize: str | None = None

    def __post_init__(self) -> None:
        if not self.agents:
            raise AgentQuantizationError("no agents: give SB3 zips, RL Zoo folders or hub ids")
        for name, given, least, most in (
            ("episodes", self.episodes, 1, MAX_EPISODES),
            ("seed", self.seed, 0, MAX_SEED),
        ):
            if type(given) is not int:
                raise AgentQuantizationError(f"--{name} {given}: must be a whole number")
            if not least <= given <= most:
                line = f"--{name} {given}: must be from {least:,} to {most:,}"
                raise AgentQuantizationError(line)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "agents": list(self.agents),
            "precisions": [precision.key for precision in self.precisions],
            "episodes": self.episodes,
            "seed": self.seed,
            **({"settings": self.settings()} if self.settings() else {}),
        }

    def settings(self) -> dict[str, Any]:
        """Return what the user says of the agents, as values of a recipe's keys."""
        found = self.wish.recipe_values()
        if self.vec_normalize is not None:
            found["teacher.vecnormalize"] = self.vec_normalize
        return found


@dataclass(frozen=True)
class _Entry:
    """An agent that is there, with the environment that it plays."""

    name: str
    source: str
    teacher: Teacher
    environment: PlayedEnvironment
    is_numbered: bool = False  # as an earlier agent has the name


def run_suite(suite: Suite, folder: Path, progress: Progress) -> list[AgentResult]:
    """Play what is missing in `folder`; return all results, in the order of the agents.

    An agent that cannot be loaded, quantized or played has a result that says so, and the others go
    on. Raises AgentQuantizationError where none can, and for a folder of another suite.
    """
    entries = _entries(suite)
    absent = [entry for entry in entries if isinstance(entry, AgentResult)]
    _refuse_none(absent, entries)  # nothing is written
    was_there = folder.exists()
    with _opened(suite, folder, entries):
        results = [
            entry if isinstance(entry, AgentResult) else _measured(entry, suite, folder, progress)
            for entry in entries
        ]
        failed = [each for each in results if each.why_not is not None]
        if len(failed) == len(results) and not any(each.is_dir() for each in folder.iterdir()):
            # Nothing was played: the place is free for other agents.
            (folder / SUITE_FILE).unlink(missing_ok=True)
    if not (folder / SUITE_FILE).exists():
        (folder / LOCK_NAME).unlink(missing_ok=True)
        if not was_there:
            folder.rmdir()
    _refuse_none(failed, results)
    return results


def _refuse_none(failed: Sequence[AgentResult], all_of_them: Sequence[object]) -> None:
    """Raise where every agent failed."""
    if len(failed) == len(all_of_them):
        lines = [_named_reason(each) for each in failed]
        raise AgentQuantizationError(lines, ErrorCode.NOTHING_MEASURED)


def _named_reason(failed: AgentResult) -> str:
    why_not = str(failed.why_not)
    return why_not if failed.source in why_not else f"{failed.source}: {why_not}"


def _entries(suite: Suite) -> list[_Entry | AgentResult]:
    found: list[_Entry | AgentResult] = []
    names: set[str] = set()
    known: dict[tuple[str, str], str] = {}
    wish = suite.wish
    wish.allow_modules()
    for source in suite.agents:
        try:
            teacher = load_teacher(source, env_id=wish.env_id, vec_normalize=suite.vec_normalize)
            environment = environment_of(teacher, wish)
        except UserError as error:
            found.append(AgentResult(source, why_not=" ".join(error.lines)))
            continue
        key = (teacher.sha256, str(environment.source.to_json()))
        if key in known:
            same = known[key]
            raise AgentQuantizationError(f"{source}: is the agent that {same} is; give it once")
        known[key] = source
        # The environment that it was trained in, by its present name.
        name = agent_name(teacher.algo, environment.source.env_id)
        if teacher.quantization is not None:  # its own games are in few bits, not in fp32
            name += f"-{teacher.quantization.bits}bit"
        own = free_name(name, names)
        names.add(own)
        found.append(_Entry(own, source, teacher, environment, own != name))
    return found


@contextmanager
def _opened(suite: Suite, folder: Path, entries: Sequence[_Entry | AgentResult]) -> Iterator[None]:
    """Lock the folder of this suite, which is made if there is none."""
    file = folder / SUITE_FILE
    if folder.is_dir() and not file.is_file():
        foreign = sorted(item.name for item in folder.iterdir() if item.name != LOCK_NAME)
        foreign = [name for name in foreign if not name.startswith(f".{SUITE_FILE}.")]
        if foreign:
            raise AgentQuantizationError(
                f"{folder}: holds other files ({foreign[0]}) and no {SUITE_FILE}; choose "
                "another -o",
                ErrorCode.OUTPUT_TAKEN,
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryError(
            [f"{folder}: cannot be made: {error.strerror}"], ErrorCode.RUN_UNWRITABLE
        ) from error
    lock = acquire_lock(folder)
    try:
        if file.is_file():
            _refuse_another(suite, file, entries)
        else:
            origin = new_origin(folder.resolve().name or "suite", suite.seed, ("mujoco",))
            versions = origin.model_dump(mode="json")["versions"]
            write_json(file, sealed({**suite.to_json(), "versions": versions}))
        remove_leftovers(folder)
        yield
    finally:
        lock.release()


def _refuse_another(suite: Suite, file: Path, entries: Sequence[_Entry | AgentResult]) -> None:
    before = _sealed_content(file)
    asked = suite.to_json()
    for key in (*asked, *({"settings"} - asked.keys())):
        now = asked.get(key)
        if before.get(key) != now and not (
            key == "agents"
            and len(before.get("agents", ())) == len(entries)
            and all(_has_games_of(each, file.parent) for each in entries)
        ):
            raise AgentQuantizationError(
                f"{file.parent}: was made with other {key}: {_difference(before.get(key), now)}; "
                "choose another -o",
                ErrorCode.RUN_OTHER_RECIPE,
            )


def _has_games_of(entry: _Entry | AgentResult, folder: Path) -> bool:
    """Tell whether an agent's games are there already, wherever it lay then."""
    if isinstance(entry, AgentResult):
        return False
    file = folder / entry.name / AGENT_FILE
    return file.is_file() and _sealed_content(file)["sha256"] == entry.teacher.sha256


def _sealed_content(file: Path) -> dict[str, Any]:
    """Read a file with a checksum. Raises AgentQuantizationError."""
    try:
        return unsealed(read_json(file))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise AgentQuantizationError(
            f"{file}: is damaged ({str(error).splitlines()[0]}); put a copy of it back, or choose "
            "another -o",
            ErrorCode.RUN_DAMAGED,
        ) from error


def _difference(before: object, now: object) -> str:
    """Say what was asked for then and now; of lists, what is in one of them alone."""
    if isinstance(before, list) and isinstance(now, list) and set(before) != set(now):
        gone, new = ([each for each in one if each not in other]
                     for one, other in ((before, now), (now, before)))  # fmt: skip
        if not gone:
            return f"without {_short(new)}"
        return f"{_short(gone)}, now {_short(new) or 'without'}"
    return f"{_short(before)}, now {_short(now)}"


def _short(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _measured(entry: _Entry, suite: Suite, folder: Path, progress: Progress) -> AgentResult:
    try:
        with closing(_AgentAtWork(entry, suite, folder / entry.name, progress)) as work:
            return work.result()
    except AgentQuantizationError as error:
        if error.code in _FOLDERS_FAULT:
            raise
        why_not = " ".join(error.lines)
    except RunDirectoryError:
        raise
    except UserError as error:
        why_not = " ".join(error.lines)
    if len(suite.agents) > 1:  # the reason of a single one is the command's error
        progress.note(f"{entry.name}: {why_not}")
    return AgentResult(entry.source, why_not=why_not)


class _AgentAtWork:
    """One agent of a suite while its games are played."""

    def __init__(self, entry: _Entry, suite: Suite, folder: Path, progress: Progress) -> None:
        self._entry, self._suite, self._folder, self._progress = entry, suite, folder, progress
        teacher = entry.teacher
        source = entry.environment.source
        self._games = AgentGames(teacher, source, suite.episodes, suite.seed)
        self._own = agent_policy(teacher, actor_of(teacher.network, teacher.activation))
        self._states: Any = None

    def close(self) -> None:
        self._games.close()

    def result(self) -> AgentResult:
        """Play what is missing; return all."""
        teacher, name = self._entry.teacher, self._entry.name
        self._folder.mkdir(exist_ok=True)
        self._refuse_another_agent()
        if self._entry.is_numbered:
            self._progress.note(f"{name} is {self._entry.source}")
        for line in self._entry.environment.notes:
            self._progress.note(f"{name}: {line}")
        fp32 = self._played(FP32.key, float_cell(teacher), self._own)
        random = self._random()
        if not is_above_random(np.array(fp32.played.returns), np.array(random.returns)):
            self._progress.warning(f"{name}: {no_better_than_random(teacher)}")
        if teacher.quantization is not None:
            self._progress.warning(
                f"{name}: {teacher.quantization}: its row fp32 is how it plays in these, not a "
                "float agent, and other rows keep what they do not round themselves"
            )
        self._tell_simulated()
        cells = tuple(self._cell(precision, fp32) for precision in self._precisions())
        env_id = self._entry.environment.source.env_id
        return AgentResult(self._entry.source, name, teacher.algo, env_id, fp32, random, cells)

    def _refuse_another_agent(self) -> None:
        """Record the agent, or raise where the folder's games are another one's."""
        file, teacher = self._folder / AGENT_FILE, self._entry.teacher
        if not file.is_file():
            about = {"source": teacher.source, "sha256": teacher.sha256, "algo": teacher.algo,
                     "environment": self._entry.environment.source.to_json()}  # fmt: skip
            write_json(file, sealed(about))
        elif _sealed_content(file)["sha256"] != teacher.sha256:
            raise AgentQuantizationError(
                f"{self._folder}: holds games of another agent than {teacher.source} is now; "
                "choose another -o",
                ErrorCode.RUN_OTHER_RECIPE,
            )

    def _random(self) -> Played:
        file = self._folder / "random.json"
        cell = read_cell(file) or Cell("random")
        return self._games.play_randomly(
            cell.played, lambda played: write_cell(file, replace(cell, played=played)),
            self._progress,
        )  # fmt: skip

    def _tell_simulated(self) -> None:
        """Say, once, why an agent for which integers were asked has none."""
        reason = why_no_student(self._entry.teacher)
        if reason and any(each.asks_for_integers for each in self._suite.precisions):
            self._progress.note(f"{self._entry.name}: simulated in float: {reason}")

    def _precisions(self) -> list[Precision]:
        """Return the suite's precisions, but of two that are one to this agent the second not."""
        asked, teacher = list(self._suite.precisions), self._entry.teacher
        same = [
            each
            for each in asked
            if each.per == "column"
            and each.per_channel in asked
            and arithmetic_of(teacher, each) == "integers"
            and not balances(teacher)
        ]
        if same:
            self._progress.note(
                f"{self._entry.name}: its hidden layers are not ReLU, so that integers --per "
                "column are those --per channel, which are played once"
            )
        return [each for each in asked if each not in same]

    def _cell(self, precision: Precision, fp32: Cell) -> Cell:
        file = self._folder / f"{precision.key}.json"
        known = read_cell(file)
        if known is not None and known.why_not is not None:
            return known
        run = self._folder / precision.key
        teacher, suite = self._entry.teacher, self._suite
        is_whole = known is not None and len(known.played.returns) == suite.episodes
        if is_whole and not self._lacks_run(precision, run):
            assert known is not None
            return known
        try:
            made = quantize_agent(
                teacher,
                precision,
                self._visited(),
                suite.episodes,
                suite.seed,
                self._games.stacks_frames,
            )
        except (HalfRangeError, AgentQuantizationError) as error:
            empty = Cell(precision.name, precision.scheme, precision.per)
            cell = replace(empty, why_not=str(error).splitlines()[0])
            write_cell(file, cell)
            return cell
        cell = self._played(precision.key, made.cell, made.policy)
        if made.integers is not None:
            games = {
                "teacher": self._games.result(fp32.played),
                "ptq": self._games.result(cell.played),
            }
            source = self._entry.environment.source
            settings = override_lines(suite.settings())
            recipe = override_recipe(made.integers.recipe, settings)
            integers = replace(made.integers, recipe=recipe)
            write_agent_run(run, integers, teacher, source, games)  # type: ignore[arg-type]
        return cell

    def _lacks_run(self, precision: Precision, run: Path) -> bool:
        """Tell whether a run directory is to be written, or to be finished."""
        if arithmetic_of(self._entry.teacher, precision) != "integers":
            return False
        if not (run / "manifest.json").is_file():
            return True
        # Its evaluation is recorded last of all; finetuned, it is no longer the suite's.
        opened = RunDirectory.open(run, read_only=True)
        is_whole = opened.phase("evaluate").state == "done"
        return not is_whole and opened.phase("finetune").state == "pending"

    def _played(self, key: str, cell: Cell, policy: Policy) -> Cell:
        """Play the cell's games, as far as its file does not hold them."""
        file = self._folder / f"{key}.json"
        known = read_cell(file)
        before = known.played if known is not None else Played()
        label = f"{self._entry.name} {key}"

        def keep(played: Played) -> None:
            write_cell(file, replace(cell, played=played))

        played = self._games.play(policy, before, keep, self._progress, label)
        if len(before.returns) < len(played.returns):
            mean = sum(played.returns) / len(played.returns)
            self._progress.note(f"{label}: return {mean:.1f}")
        return replace(cell, played=played)

    def _visited(self) -> Any:
        """Return states that the agent visits in fp32; played once."""
        if self._states is None:
            self._states = self._games.visited_states(self._own, self._progress)
        return self._states
