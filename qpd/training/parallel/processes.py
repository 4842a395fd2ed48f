"""The first process's side of training in several: it starts the others and shares batches out."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TRY_AGAIN, UserError
from qpd.replay.memory import ReplayMemory
from qpd.replay.sample import ReplaySample
from qpd.training.parallel.job import Epoch, Job
from qpd.training.parallel.line import HungUpError, Line
from qpd.training.parallel.part import LEAST, Training, alone, backward, part_sizes
from qpd.training.parallel.shared_tensors import SharedTensors
from qpd.training.plan import PhasePlan

_WORKER = "qpd.training.parallel.worker"
_BINDINGS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
AMPLE = 128  # observations of a part, where the recipe leaves it open
LARGE = 600_000  # parameters: one thread copies their gradients, adds them up and applies them
WORTHWHILE = 400_000  # samples of a phase, about 20 seconds: the other processes start in two


class ProcessLostError(UserError, RuntimeError):
    """One of the training processes has ended; the run can go on from its checkpoint."""

    code = ErrorCode.PROCESS_LOST
    exit_code = TRY_AGAIN


def num_processes(plan: PhasePlan, modules: Sequence[nn.Module], memory: ReplayMemory) -> int:
    """In how many processes a phase trains these: as its recipe says, where it is possible at all.

    Never in more than PyTorch has threads. 0 is as many, as long as parts of a batch stay large,
    and one where the phase is short or a student large.
    """
    settings, asked = plan.settings, plan.settings.processes
    possible = (
        os.name == "posix"
        and memory.device.type == "cpu"
        and memory.background is not None
        and memory.frame_file is not None
        and plan.reward is None
        and settings.compile != "on"
    )
    if not possible:
        return 1
    threads = torch.get_num_threads()
    if asked:
        return max(1, min(asked, threads, settings.batch_size // LEAST))
    samples = settings.epochs * min(settings.samples_per_epoch or memory.capacity, memory.capacity)
    largest = max(sum(p.numel() for p in module.parameters()) for module in modules)
    if samples < WORTHWHILE or largest > LARGE:
        return 1
    return max(1, min(threads, settings.batch_size // AMPLE))


class TrainingProcesses:
    """Processes that train `modules` together; this one takes the first part of every batch.

    Until `close` the modules' parameters are in shared memory.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        trainings: Sequence[Training],
        memory: ReplayMemory,
        count: int,
    ) -> None:
        self._memory, self._count, self._modules = memory, count, modules
        self._threads = max(1, torch.get_num_threads() // count)
        self._jobs = [
            pickle.dumps(self._job(worker, trainings)) for worker in range(count - 1)
        ]  # with the parameters, before those are shared
        self._shared = SharedTensors(modules, count - 1)
        self._shared.put()
        started = [_start(self._shared.descriptor, self._threads) for _ in self._jobs]
        self._begun = False
        self._processes, self._lines = [each[0] for each in started], [each[1] for each in started]

    def _job(self, worker: int, trainings: Sequence[Training]) -> Job:
        memory, num_workers = self._memory, self._count - 1
        assert memory.frame_file is not None
        return Job(
            self._modules,
            trainings,
            memory.frame_file,
            memory.num_rows,
            worker,
            num_workers,
            self._threads,
        )

    @contextmanager
    def epoch(self, active: Sequence[int], batches: Sequence[Tensor]) -> Iterator[None]:
        """Tell everyone their parts of an epoch's batches of ring rows; modules `active` train.

        Within, PyTorch has no more threads than each of the others. Raises ProcessLostError when
        one of them ends.
        """
        sizes = [part_sizes(len(rows), self._count) for rows in batches]
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            for worker, line in enumerate(self._lines):
                if self._jobs:
                    line.send_bytes(self._jobs[worker])
                line.send(self._part(worker + 1, active, batches, sizes))
            self._jobs = []
            yield
        except HungUpError as error:
            raise self._lost() from error
        finally:
            torch.set_num_threads(threads)

    def _part(
        self,
        process: int,
        active: Sequence[int],
        batches: Sequence[Tensor],
        sizes: Sequence[Sequence[int]],
    ) -> Epoch:
        rows = [batch.split(size)[process] for batch, size in zip(batches, sizes, strict=True)]
        stack, logits, values = self._memory.labels(torch.cat(rows))
        common = self._memory.background
        assert common is not None and common.pixels is not None
        return Epoch(
            active,
            stack.numpy(),
            common.differing(stack).numpy(),
            common.pixels.numpy(),
            logits.numpy(),
            values.numpy(),
            [len(each) for each in rows],
            [len(batch) for batch in batches],
        )

    def begin(self, rows: Tensor) -> Tensor:
        """Let the others begin with a batch; returns the rows that this process trains on."""
        own = rows[: part_sizes(len(rows), self._count)[0]]
        if len(own) < len(rows):
            self._go()
        return own

    def _go(self) -> None:
        for line in self._lines:
            line.signal()
        self._begun = True

    def backward(self, index: int, sample: ReplaySample, whole: int, training: Training) -> Tensor:
        """Gradients of module `index` by a batch of `whole`, of which `sample` is the own part.

        Returns the batch's losses, `[3]`.
        """
        if len(sample.values) == whole:
            return backward(self._modules[index], sample, whole, training, alone)
        if not self._begun:  # with this student; with the first one they began before the drawing
            self._go()
        self._begun = False
        losses = backward(self._modules[index], sample, whole, training, self._exchange)
        for worker, line in enumerate(self._lines):
            line.wait()
            self._shared.add_gradients(index, worker)
        return losses

    def _exchange(self, actor: float, critic: float) -> tuple[float, float]:
        for line in self._lines:
            others = line.receive_losses()
            actor, critic = actor + others[0], critic + others[1]
        for line in self._lines:
            line.send_losses(actor, critic)
        return actor, critic

    def close(self) -> None:
        """End the other processes; the modules have their parameters for themselves again."""
        for line in self._lines:
            line.close()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._shared.take()

    def _lost(self) -> ProcessLostError:
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
        codes = [process.returncode for process in self._processes if process.returncode]
        if codes and codes[0] > 0:
            text = f"a training process failed (exit code {codes[0]}), see its traceback above"
            return ProcessLostError(f"{text}; OMP_NUM_THREADS=1 trains in one process")
        how = f"was ended by signal {-codes[0]}" if codes else "ended"
        return ProcessLostError(
            f"a training process {how}: give the same command again, the run goes on from its last "
            "checkpoint (if memory was short: with OMP_NUM_THREADS=1 set, one process trains)"
        )


def _start(memory: int, threads: int) -> tuple[subprocess.Popen[bytes], Line]:
    """A worker that has the memory's file, and the line to it.

    It does not hear Ctrl-C: who started it does, and hangs up.
    """
    own, others = socket.socketpair()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        process = subprocess.Popen(
            # -P: what lies in the working folder is not imported, unless it is here.
            [sys.executable, "-P", "-m", _WORKER, str(others.fileno()), str(memory)],
            stdin=subprocess.DEVNULL,
            pass_fds=(others.fileno(), memory),
            env=_environment(threads),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        others.close()
    return process, Line(Connection(own.detach()))


def _environment(threads: int) -> dict[str, str]:
    """This process's imports; its own binding of threads to cores is no other's."""
    kept = {name: value for name, value in os.environ.items() if name not in _BINDINGS}
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
