"""Background sharing: what the frames of a batch have in common is multiplied once.

Most of an Atari frame is the same in all observations of a batch, and the first two convolutions
are most of a small student's arithmetic. The replay memory holds a `SharedBackground`, which votes
on what the frames have in common; a training step asks the memory for draws that know it
(`SharedFrames`), and a student asks such a draw for its layers (`SharedFrames.layers`). Nobody
else knows. `TrainStep.reads_shared_frames` switches it all off.
"""

from qpd.students.shared_background.background import MIN_BATCH, SharedBackground, SharedFrames
from qpd.students.shared_background.plan import MultipliedBlocks

__all__ = ["MIN_BATCH", "MultipliedBlocks", "SharedBackground", "SharedFrames"]
