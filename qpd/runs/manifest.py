"""The manifest of a run: its origin, the state of its phases, and its measurements."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from qpd.numerics.numerics_record import NumericsRecord
from qpd.recipe.value_types import Name
from qpd.version import __version__

if TYPE_CHECKING:
    from qpd.environments.source import EnvironmentSource
    from qpd.teachers import Teacher

FORMAT_VERSION: Final = 1

PhaseName = Literal["distill", "quantize", "finetune", "evaluate"]
PhaseState = Literal["pending", "running", "done"]
EvaluatedPolicy = Literal["teacher", "teacher_sharpened", "distilled", "ptq", "qat"]

StudentPolicy = Literal["distilled", "ptq", "qat"]

PHASES: tuple[PhaseName, ...] = ("distill", "quantize", "finetune", "evaluate")
# The phase that makes each student, in their order.
MADE_BY: dict[StudentPolicy, PhaseName] = {
    "distilled": "distill", "ptq": "quantize", "qat": "finetune",
}  # fmt: skip


MOST_RETURN = 1e15  # far beyond what is measured; sums and squares of such numbers are finite
_Score = Annotated[float, Field(ge=-MOST_RETURN, le=MOST_RETURN)]
_Seconds = Annotated[float, Field(ge=0, le=1e12)]


class _Evaluation(BaseModel):
    """Hold what is read of an evaluation; the rest is kept as it is."""

    model_config = ConfigDict(strict=True)

    mean: _Score
    interval: list[_Score] = Field(min_length=2, max_length=2)
    episodes: int = Field(ge=1, le=10**9)
    std: _Score = 0.0
    seed: int = Field(0, ge=0, le=2**64)
    distinct_games: int = Field(1, ge=0, le=10**9)
    distinct_starts: int | None = Field(None, ge=0, le=10**9)
    acting: str = ""
    seconds: _Seconds = 0.0
    returns: list[_Score] = []

    @model_validator(mode="after")
    def _returns_are_of_all_episodes(self) -> Self:
        if self.returns and len(self.returns) != self.episodes:
            raise ValueError(f"returns: {len(self.returns)}, of {self.episodes} episodes")
        return self


class _FirstGames(BaseModel):
    """Hold what is read of the first games; the rest is kept as it is."""

    model_config = ConfigDict(strict=True)

    warning: str | None = None


class _PhaseMetrics(BaseModel):
    """Hold what is read of a phase's measurements."""

    model_config = ConfigDict(strict=True)

    seconds: dict[str, _Seconds] = {}
    first_games: _FirstGames | None = None
    code: str = Field("", max_length=100)


def _check(model: type[BaseModel], found: Mapping[str, Any], writer: str) -> None:
    try:
        model.model_validate(dict(found))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PydanticCustomError(
            "measurement",
            "not as {writer} writes it ({where}: {what})",
            {"writer": writer, "where": where, "what": first["msg"]},
        ) from None


def _checked_evaluation(found: dict[str, Any]) -> dict[str, Any]:
    _check(_Evaluation, found, "`qpd evaluate`")
    return found


def check_phase_metrics(found: Mapping[str, Any]) -> None:
    """PydanticCustomError unless a phase's measurements have the types that are read."""
    _check(_PhaseMetrics, found, "QPD")


Evaluation = Annotated[dict[str, Any], AfterValidator(_checked_evaluation)]


class PhaseRecord(BaseModel):
    """State of one phase, and whatever it measured (further keys, JSON types)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    state: PhaseState = "pending"

    @model_validator(mode="after")
    def _measurements_have_their_types(self) -> Self:
        check_phase_metrics(self.metrics)
        return self

    @property
    def metrics(self) -> dict[str, Any]:
        """Return what the phase measured."""
        return dict(self.model_extra or {})


class TeacherRecord(BaseModel):
    """Describe the agent that was imitated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    algo: str
    env_id: str
    num_parameters: int = Field(ge=1, le=10**12)
    # Of what acts: no critic. None in earlier versions' runs.
    actor_parameters: int | None = Field(None, ge=1, le=10**12)
    # What is done to the environment (EnvironmentSource.to_json), where anything is.
    environment: dict[str, Any] | None = None

    @property
    def played(self) -> EnvironmentSource:
        """The environment of the run, with what is done to it."""
        from qpd.environments.source import EnvironmentSource, as_source

        known = self.environment  # None of one that is no more than its id
        return EnvironmentSource.from_json(known) if known else as_source(self.env_id)

    @classmethod
    def of(cls, teacher: Teacher, environment: EnvironmentSource) -> Self:
        """Return the record of a loaded agent in the environment that it plays."""
        return cls(
            source=teacher.source,
            sha256=teacher.sha256,
            algo=teacher.algo,
            env_id=environment.env_id,
            num_parameters=teacher.num_parameters,
            actor_parameters=teacher.actor_parameters,
            environment=environment.to_json() if environment.additions() else None,
        )


class RunOrigin(BaseModel):
    """Hold what the manifest of any run directory says of its origin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1] = FORMAT_VERSION
    name: Name
    seed: int
    versions: dict[str, str]
    git_commit: str | None
    git_dirty: bool | None
    platform: str


class Manifest(RunOrigin):
    """All of manifest.json."""

    arithmetic: NumericsRecord | None = None
    teacher: TeacherRecord | None = None
    phases: dict[PhaseName, PhaseRecord] = Field(
        default_factory=lambda: {name: PhaseRecord() for name in PHASES}
    )
    evaluations: dict[EvaluatedPolicy, Evaluation] = Field(default_factory=dict)
    forked_from: str | None = None  # CRC-32 of the distilled student that `-o NEW` began with
    recipe_crc32: tuple[str, ...] = ()  # of recipe.yaml; while it is replaced, of old and new

    @property
    def is_agent(self) -> bool:
        """Tell whether the student is the agent itself, rounded: `qpd quantize AGENT` made it."""
        return self.phases["distill"].metrics.get("method") == "agent"

    @property
    def code(self) -> str:
        """Name the code that made the run: its commit, 7 digits and a + for changes, or version."""
        if self.git_commit is None:
            return self.versions.get("qpd", "")
        return self.git_commit[:7] + ("+" if self.git_dirty else "")

    @property
    def first_code(self) -> str:
        """Name the code that made the distilled student, of a fork that of its source."""
        return self.phases["distill"].metrics.get("code") or self.code

    @property
    def has_recipe(self) -> bool:
        """Tell whether a recipe gave the run its name: without one the agent does."""
        from qpd.teachers.archive.agent_identity import agent_name

        known = self.teacher
        return known is None or self.name != agent_name(known.algo, known.env_id)

    @field_validator("phases")
    @classmethod
    def _all_phases(cls, found: dict[PhaseName, PhaseRecord]) -> dict[PhaseName, PhaseRecord]:
        return {name: found.get(name, PhaseRecord()) for name in PHASES}


def new_manifest(name: str, seed: int, forked_from: str | None = None) -> Manifest:
    """Return the manifest of a run that begins now on this machine; all phases are pending."""
    return Manifest(**dict(new_origin(name, seed)), forked_from=forked_from)


def new_origin(name: str, seed: int, packages: tuple[str, ...] = ()) -> RunOrigin:
    """Return the origin of a run that begins now on this machine; also names further packages."""
    commit, dirty = _git_state()
    return RunOrigin(
        name=name,
        seed=seed,
        versions=_versions(packages),
        git_commit=commit,
        git_dirty=dirty,
        platform=platform.platform(),
    )


def date_now() -> str:
    """Return the time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the installed versions of all that can change a result."""
    found = {"python": platform.python_version(), "qpd": __version__}
    for package in ("torch", "numpy", "gymnasium", "ale-py", *packages):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _git_state() -> tuple[str | None, bool | None]:
    """Return the commit QPD's own checkout is at and whether it has changes; None if installed."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # an installed wheel may lie inside a foreign repository
        return None, None
    commit = _git(root, "rev-parse", "--verify", "HEAD")
    status = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit or None, None if status is None else bool(status)


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
