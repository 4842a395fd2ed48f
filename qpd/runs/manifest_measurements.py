"""The free-form parts of a manifest: what tables, figures and reports read of them is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

# Far beyond what is measured; sums and squares of them are finite.
_Score = Annotated[float, Field(ge=-1e15, le=1e15)]
_Seconds = Annotated[float, Field(ge=0, le=1e12)]


class _Evaluation(BaseModel):
    """What is read of an evaluation; the rest is kept as it is."""

    model_config = ConfigDict(strict=True)

    mean: _Score
    interval: list[_Score] = Field(min_length=2, max_length=2)
    episodes: int = Field(ge=1, le=10**9)
    std: _Score = 0.0
    seed: int = Field(0, ge=0, le=2**64)
    distinct_games: int = Field(1, ge=0, le=10**9)
    acting: str = ""
    seconds: _Seconds = 0.0
    returns: list[_Score] = []


class _PhaseMetrics(BaseModel):
    """What is read of a phase's measurements."""

    model_config = ConfigDict(strict=True)

    seconds: dict[str, _Seconds] = {}


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
