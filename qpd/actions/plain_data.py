"""Action spaces as JSON: in students' files, manifests and exports."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from qpd.actions.box import Box
from qpd.actions.discrete import Discrete
from qpd.actions.multi import MultiBinary, MultiDiscrete
from qpd.actions.space import ActionSpace

_KINDS: dict[str, type[ActionSpace]] = {
    space.kind: space for space in (Discrete, MultiDiscrete, MultiBinary, Box)
}
_MOST_NUMBERS = 4096  # of an action: a file may come from anyone
_MOST_CHOICES = 65_536  # as many as a layer has outputs
_MOST_AXES = 32


def actions_to_json(actions: ActionSpace) -> dict[str, Any]:
    """Return plain data that `actions_from_json` reads back."""
    fields = asdict(actions)  # type: ignore[call-overload]
    if fields.get("mean_bound", 0) is None:  # files from before there was one have none
        del fields["mean_bound"]
    fields.pop("coded", None)  # of an engine's outputs, not of what files hold
    plain = {
        key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()
    }
    return {"kind": actions.kind, **plain}


def actions_from_json(found: Any) -> ActionSpace:
    """Read an action space. Raises ValueError for anything else."""
    if not isinstance(found, dict) or found.get("kind") not in list(_KINDS):
        raise ValueError(f"actions: expected an object with a kind among {', '.join(_KINDS)}")
    fields = {key: value for key, value in found.items() if key != "kind"}
    kind = _KINDS[found["kind"]]
    if kind is Discrete:
        labels = _word(fields, "labels", ("logits", "q_values"))
        return Discrete(_count(fields.get("n"), "n"), labels)  # type: ignore[arg-type]
    if kind is MultiBinary:
        return MultiBinary(_count(fields.get("n"), "n"))
    if kind is MultiDiscrete:
        return MultiDiscrete(tuple(_count(n, "nvec") for n in _numbers(fields, "nvec")))
    return Box(
        tuple(_bound(bound, "low") for bound in _numbers(fields, "low")),
        tuple(_bound(bound, "high") for bound in _numbers(fields, "high")),
        _word(fields, "squash", ("clip", "tanh")),  # type: ignore[arg-type]
        _word(fields, "labels", ("gaussian", "deterministic")),  # type: ignore[arg-type]
        tuple(_count(size, "shape") for size in _numbers(fields, "shape", _MOST_AXES)),
        _mean_bound(fields.get("mean_bound")),
    )


def _numbers(fields: dict[str, Any], key: str, most: int = _MOST_NUMBERS) -> list[float]:
    found = fields.get(key)
    plain = isinstance(found, list) and all(type(value) in (int, float) for value in found)
    if not plain or not 1 <= len(found) <= most:  # type: ignore[arg-type]
        raise ValueError(f"actions: {key}: expected 1 to {most} numbers")
    return found  # type: ignore[return-value]


def _count(found: Any, key: str) -> int:
    if type(found) is not int or not 1 <= found <= _MOST_CHOICES:
        raise ValueError(f"actions: {key}: expected whole numbers from 1 to {_MOST_CHOICES}")
    return found


def _bound(found: float, key: str) -> float:
    try:
        return float(found)
    except OverflowError:  # an integer of hundreds of digits, which JSON may hold
        raise ValueError(f"actions: {key}: expected finite numbers") from None


def _mean_bound(found: Any) -> float | None:
    if found is not None and type(found) not in (int, float):
        raise ValueError("actions: mean_bound: expected a number")
    return None if found is None else _bound(found, "mean_bound")


def _word(fields: dict[str, Any], key: str, words: tuple[str, ...]) -> str:
    if fields.get(key) not in words:
        raise ValueError(f"actions: {key}: expected {' or '.join(words)}")
    return str(fields[key])
