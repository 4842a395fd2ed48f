"""Actions: what a policy's outputs mean, how it acts by them, and how two policies diverge."""

from qpd.actions.acting_rule import ActingKind, ActingRule
from qpd.actions.box import Box
from qpd.actions.discrete import Discrete
from qpd.actions.multi import MultiBinary, MultiDiscrete
from qpd.actions.plain_data import actions_from_json, actions_to_json
from qpd.actions.space import ActionSpace

__all__ = [
    "ActingKind",
    "ActingRule",
    "ActionSpace",
    "Box",
    "Discrete",
    "MultiBinary",
    "MultiDiscrete",
    "actions_from_json",
    "actions_to_json",
]
