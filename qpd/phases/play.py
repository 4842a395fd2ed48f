"""The play that one student, or several at once, draw from, with the checkpoint that resumes it.

A resumed run is restored in two places: its memory when `Play.stream` is first asked for, its
students by `Play.restore`; both read the file that `qpd.runs.checkpoint` describes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from qpd.phases.preparation import Prepared
from qpd.replay.memory import ReplayMemory
from qpd.replay.play_stream import PlayStream
from qpd.runs.checkpoint import (
    CheckpointedStudent,
    Resumable,
    open_stream,
    restore_students,
    save_checkpoint,
)
from qpd.runs.manifest import PhaseName
from qpd.runs.progress import Progress
from qpd.runs.run_directory import RunDirectory


class Play:
    """The play stream of a run, opened when a phase first needs it.

    The recipe of `run` decides about it. Checkpoint and frames lie in `store`: the run's own
    folder, or one that several students share.
    """

    def __init__(self, run: RunDirectory, prepared: Prepared, store: Path | None = None) -> None:
        self.store = run.checkpoint_folder if store is None else store
        self.belongs_to_run = self.store.parent == run.path
        self._run, self._prepared = run, prepared
        self._stream: PlayStream | None = None

    @property
    def stream(self) -> PlayStream:
        """The stream: restored from the checkpoint, or with an empty memory; CheckpointError."""
        if self._stream is None:
            recipe, prepared = self._run.recipe, self._prepared
            self._stream = open_stream(
                self.store,
                self._run,
                lambda file: PlayStream(recipe, prepared.teacher, prepared.environment, file),
            )
        return self._stream

    @property
    def memory(self) -> ReplayMemory:
        """The stream's memory."""
        return self.stream.memory

    def fill(self, progress: Progress) -> float:
        """Let the teacher play until the memory is full; return the seconds that took."""
        began = time.perf_counter()
        before = self.memory.num_added
        self.stream.fill(progress.filling)
        seconds = time.perf_counter() - began
        if self.memory.num_added > before:
            rate = (self.memory.num_added - before) / seconds
            progress.note(f"memory filled: {len(self.memory):,} transitions at {rate:,.0f}/s")
        return seconds

    def save(
        self,
        phase: PhaseName,
        students: Sequence[tuple[CheckpointedStudent, Resumable | None]],
    ) -> None:
        """Write one checkpoint of the stream, its students in training and their metrics."""
        save_checkpoint(self.store, phase, self.stream, students)

    def restore(
        self, phase: PhaseName, students: Sequence[tuple[CheckpointedStudent, Resumable]]
    ) -> bool:
        """Restore the students' states; return whether the checkpoint is one of this phase."""
        return restore_students(self.store, phase, students)

    def discard(self) -> None:
        """Remove checkpoint and frames of a finished run."""
        shutil.rmtree(self.store, ignore_errors=True)

    def close(self) -> None:
        """Release the emulators."""
        if self._stream is not None:
            self._stream.close()
