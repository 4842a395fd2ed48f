"""The number of cores this process may use: on a shared machine, fewer than it has."""

from __future__ import annotations

import os
from pathlib import Path

CORES_VARIABLE = "QPD_CORES"
_CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return how many cores affinity and the container's CPU quota allow; at least 1.

    `QPD_CORES` is a further limit; a sweep sets it for each cell.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    share = os.environ.get(CORES_VARIABLE, "")
    limits = [_quota(_CGROUP), int(share) if share.isdecimal() else None]
    return max(1, min([cores, *(limit for limit in limits if limit)]))


def _quota(folder: Path) -> int | None:
    """Return a cgroup's CPU quota in whole cores, rounded up; None without one."""
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
