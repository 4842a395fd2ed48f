"""Environments that gymnasium no longer has, played in the nearest version that it does.

Agents outlive ids. Where a later version shows other inputs than the agent saw, a wrapper gives
those back; what else differs is said.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from qpd.environments.source import EnvironmentSource, Wrapper
from qpd.environments.wrappers import ZERO_CONTACT_FORCES

_SIMULATOR = "the same inputs and rewards, in a later simulator"
_PUSHER = "the same inputs, in a later simulator; rewards and masses are those of -v5"
_FORCES = "contact forces, which were always 0 in the old one, are zeros; a later simulator"
# -v4 of Pusher runs on MuJoCo before 3 only. Of the others -v4 alone keeps the inputs of -v2 and
# -v3: -v5 has others in Ant and Humanoid, and other frictions and rewards elsewhere.
_MUJOCO = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum",
           "InvertedPendulum", "Reacher", "Swimmer", "Walker2d")  # fmt: skip


@dataclass(frozen=True)
class _Successor:
    env_id: str
    differs: str
    wrappers: tuple[Wrapper, ...] = ()


def _successors() -> dict[str, _Successor]:
    found = {
        f"{name}-v{version}": _Successor(f"{name}-v4", _SIMULATOR)
        for name in _MUJOCO
        for version in (1, 2, 3)
    }
    for version in (1, 2, 3):
        found[f"Pusher-v{version}"] = _Successor("Pusher-v5", _PUSHER)
        # use_contact_forces=True would show -v4's, which are real: TRPO's Ant-v3 agent of the RL
        # Zoo scores 76 with them, 5,030 with zeros.
        added = Wrapper(ZERO_CONTACT_FORCES)
        found[f"Ant-v{version}"] = _Successor("Ant-v4", f"its 84 {_FORCES}", (added,))
        shown = Wrapper(ZERO_CONTACT_FORCES, {"append": False})
        for name in ("Humanoid", "HumanoidStandup"):
            known = _Successor(f"{name}-v4", f"its 84 {_FORCES}", (shown,))
            found[f"{name}-v{version}"] = known
    return found


_SUCCESSORS = _successors()


def present_form(source: EnvironmentSource) -> tuple[EnvironmentSource, str | None]:
    """Return what is played in place of an old MuJoCo id, and a line that says so; else `source`.

    Wrappers that give back the old inputs come first, below the source's own.
    """
    successor = _SUCCESSORS.get(source.env_id)
    if successor is None or source.maker is not None:
        return source, None
    wrappers = (*successor.wrappers, *source.wrappers)
    found = replace(source, env_id=successor.env_id, wrappers=wrappers)
    line = f"{source.env_id} is played in {successor.env_id}: {successor.differs}"
    return found, line
