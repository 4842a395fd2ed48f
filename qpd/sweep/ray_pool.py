"""The pool of a sweep: Ray, on this machine or on a cluster.

Ray restarts the job of a lost worker on the remaining machines; it resumes from its checkpoint.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.machine.cores import usable_cores
from qpd.sweep.worker import INTERRUPTED, Job, supervise
from qpd.version import pip_install

LOCAL = "local"
_MAX_LOST_WORKERS = 3
_STOP_SECONDS = 60.0


class SweepError(UserError, RuntimeError):
    """A sweep cannot begin; the message is one line with the reason and a remedy."""

    code = ErrorCode.SWEEP_CLUSTER


class Pool:
    """Workers that supervise jobs; make one with `open_pool`."""

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray
        self._jobs: dict[Any, Job] = {}

    def submit(self, job: Job) -> None:
        """Queue a job; it starts when its cores and GPUs are free."""
        task = self._ray.remote(supervise).options(
            num_cpus=job.cpus, num_gpus=job.gpus, max_retries=_MAX_LOST_WORKERS, name=job.name
        )
        self._jobs[task.remote(job)] = job

    def wait(self, seconds: float) -> list[tuple[Job, int, str]]:
        """Return the jobs that ended, with exit code and the reason if the worker failed.

        Waits until a job ends or `seconds` have passed.
        """
        end = time.monotonic() + seconds
        while self._jobs:
            ended, _ = self._ray.wait(list(self._jobs), num_returns=len(self._jobs), timeout=0)
            if ended or time.monotonic() > end:
                return [self._outcome(reference) for reference in ended]
            # Not Ray's own timeout: it replaces a SIGTERM's SystemExit by another error.
            time.sleep(0.1)
        return []

    def stop(self) -> None:
        """Interrupt all jobs and wait until they have ended, for a minute at most."""
        references = list(self._jobs)
        for reference in references:
            self._ray.cancel(reference)
        if references:
            self._ray.wait(references, num_returns=len(references), timeout=_STOP_SECONDS)
        self._jobs.clear()

    def _outcome(self, reference: Any) -> tuple[Job, int, str]:
        job = self._jobs.pop(reference)
        try:
            return job, int(self._ray.get(reference)), ""
        except self._ray.exceptions.TaskCancelledError:
            return job, INTERRUPTED, ""
        except self._ray.exceptions.RayError as error:
            lost = isinstance(error, self._ray.exceptions.WorkerCrashedError)
            reason = f"its worker was lost {_MAX_LOST_WORKERS + 1} times" if lost else _line(error)
            return job, 1, reason


@contextmanager
def open_pool(address: str, output: Path, cpus: float, gpus: float) -> Iterator[Pool]:
    """Open a pool with room for jobs of `cpus` cores and `gpus` GPUs.

    `address` is `local` (processes of this machine that end with this one and listen on loopback
    only), `auto`, or a cluster's. Raises SweepError if Ray is not installed, or the cluster cannot
    be reached, is too small for one job or does not see `output`.
    """
    ray = _import_ray(address)
    handler = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {}
    if address == LOCAL:  # Ray would count the machine's cores, not those that we may use
        options = {"include_dashboard": False, "num_cpus": usable_cores()}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # a bare one where Ray's processes do not start in time
        again = "" if type(error) is not Exception else "; give the same command again"
        raise SweepError(f"--address {address}: {_line(error)}{again}") from error
    if threading.current_thread() is threading.main_thread():
        # ray.init installs a handler of its own; ours raises SystemExit, so that cells are
        # interrupted.
        signal.signal(signal.SIGTERM, handler)
    try:
        _check_room(ray, address, cpus, gpus)
        if address != LOCAL:
            _check_shared(ray, output)
        yield Pool(ray)
    finally:
        ray.shutdown()


def require_ray() -> None:
    """Raise SweepError if Ray is not installed, without the slow import."""
    if importlib.util.find_spec("ray") is None:
        raise SweepError(f"qpd sweep needs Ray: {pip_install('sweep')}", ErrorCode.PACKAGE_MISSING)


def _import_ray(address: str) -> ModuleType:
    # All of these are read when ray is imported or started, so they are set before.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is reported over the network
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # each job hides its GPUs itself
    if address == LOCAL:
        # In spite of its name it holds on Linux too: without a cluster Ray listens on loopback.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    require_ray()
    import ray
    import ray.exceptions

    return ray


def _check_room(ray: ModuleType, address: str, cpus: float, gpus: float) -> None:
    nodes: list[dict[str, float]] = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(n.get("CPU", 0) >= cpus and n.get("GPU", 0) >= gpus for n in nodes):
        return
    largest = max(nodes, key=lambda node: (node.get("GPU", 0), node.get("CPU", 0)), default={})
    has = f"{largest.get('CPU', 0):g} cores and {largest.get('GPU', 0):g} GPUs"
    where = "this machine has" if address == LOCAL else "the cluster's largest machine has"
    raise SweepError(
        f"resources: a cell wants {cpus:g} cores and {gpus:g} GPUs, {where} {has}; "
        "lower resources in the grid, or --cpus-per-cell"
    )


def _check_shared(ray: ModuleType, output: Path) -> None:
    """Raise SweepError unless every node sees `output`, which holds runs and checkpoints."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # A file of that name might lie on a node's own disk by chance; its content could not.
    token = secrets.token_hex(8)
    probe = output / f".probe-{token}"
    probe.write_text(token)
    try:
        nodes = {n["NodeID"]: n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"]}
        asked = {
            address: ray.remote(_sees)
            .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, False))
            .remote(probe, token)
            for node, address in nodes.items()
        }
        blind = [address for address, reference in asked.items() if not ray.get(reference)]
    except ray.exceptions.RayError as error:
        raise SweepError(f"the cluster's nodes cannot run QPD: {_line(error)}") from error
    finally:
        probe.unlink(missing_ok=True)
    if blind:
        raise SweepError(
            f"{output}: the cluster's nodes {', '.join(blind)} do not see this folder; "
            "a sweep on a cluster needs an -o on a file system that all nodes share"
        )


def _sees(probe: Path, token: str) -> bool:
    try:
        return probe.read_text() == token
    except OSError:
        return False


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
