"""The free-form parts of a manifest: what tables, figures and reports read of them is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError


class _Evaluation(BaseModel):
    """What is read of an evaluation; the rest is kept as it is."""

    model_config = ConfigDict(strict=True)

    mean: float
    interval: list[float] = Field(min_length=2, max_length=2)
    episodes: int = Field(ge=1)
    std: float = 0.0
    seed: int = 0
    distinct_games: int = 1
    acting: str = ""
    seconds: float = 0.0
    returns: list[float] = []


class _PhaseMetrics(BaseModel):
    """What is read of a phase's measurements."""

    model_config = ConfigDict(strict=True)

    seconds: dict[str, float] = {}


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
