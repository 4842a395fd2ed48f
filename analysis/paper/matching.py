"""Tell what else two groups of runs differ in, so that their ratio does not answer a claim.

Settings are compared by `qpd.analysis.returns.policy_groups.differing_keys`. This is about what no
recipe says: the code, the share of the play, a student that learned nothing.
"""

from __future__ import annotations

import numpy as np

from qpd.analysis.paper import published
from qpd.analysis.returns.policy_groups import PolicyGroup
from qpd.recipe.schema import ReplaySettings

# A return below it shows no skill: twice that of random play.
NO_SKILL = 2.0 * published.RANDOM_RETURN


def mismatches(first: PolicyGroup, second: PolicyGroup, may_fail: bool = False) -> tuple[str, ...]:
    """Return the reasons why the ratio of two groups of students is not judged; empty if none.

    `may_fail` is for a claim that training fails, where a return of random play is an answer.
    """
    found = [_play(first, second), _code(first, second)]
    if not may_fail:
        found += [_skill(first), _skill(second)]
    return tuple(filter(None, found))


def _play(first: PolicyGroup, second: PolicyGroup) -> str:
    """Compare the shares of the games that one student played itself."""
    shares = [_share(first), _share(second)]
    if shares[0] == shares[1]:
        return ""
    one, other = (f"{share:.3g}" for share in shares)
    return f"share of student play {one} against {other}"


def _share(group: PolicyGroup) -> float:
    settings = group.settings
    keys = ("capacity", "refresh_fraction")
    replay = ReplaySettings(**{key: settings[f"replay.{key}"] for key in keys})
    if replay.refresh_count == 0:  # students play what refreshes the memory
        return 0.0
    return float(settings.get("collection.student_fraction", 0.0)) / group.students_sharing


def _code(first: PolicyGroup, second: PolicyGroup) -> str:
    """Compare the commits; a student and its own quantization are of one run whatever they are."""
    one, other = set(first.runs), set(second.runs)
    if one <= other or other <= one:
        return ""
    if any("+" in name for name in (*first.code, *second.code)):
        return f"changes that no commit has: {_names(first)} against {_names(second)}"
    if first.code == second.code:
        return ""
    return f"commits {_names(first)} against {_names(second)}"


def _names(group: PolicyGroup) -> str:
    return ", ".join(group.code) or "unknown"


def _skill(group: PolicyGroup) -> str:
    found = np.inf if group.scores is None else float(np.nanmean(group.scores, axis=1).mean())
    if found >= NO_SKILL:
        return ""
    return f"a return of {found:.1f} shows no skill (at random: {published.RANDOM_RETURN})"
