"""How many cores are this process's: on a shared machine fewer than there are."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Cores that the process may run on, and that its container's quota pays for; at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, min(cores, _quota(_CGROUP) or cores))


def allotted_cores() -> int:
    """Usable cores, or OMP_NUM_THREADS where that is less: a sweep sets it for each cell."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(usable_cores(), int(limit)) if limit.isdecimal() and int(limit) else usable_cores()


def _quota(folder: Path) -> int | None:
    """Whole cores that a cgroup's quota amounts to, rounded up; None without one."""
    try:  # version 2: "quota period", or "max period"
        quota, period = (folder / "cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        try:  # version 1: -1 is no quota
            quota = (folder / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None
    return max(1, -(-int(quota) // int(period)))
