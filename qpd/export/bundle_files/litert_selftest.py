"""Check that LiteRT computes this student's integers here; needs only ai-edge-litert and numpy.

Exits with 0 if the model gives the golden logits.
"""

import sys
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter

FOLDER = Path(__file__).resolve().parent
TOLERANCE = 0.02  # of the logits' spread: allows a level rounded the other way, but no overflow


def logits_of(observations: np.ndarray) -> np.ndarray:
    """Return float32 logits, one observation at a time; frames go in as int8 x - 128, HWC."""
    if observations.ndim == 4:
        observations = np.ascontiguousarray(observations.transpose(0, 2, 3, 1) ^ 128).view(np.int8)
    interpreter = Interpreter(str(FOLDER / "student.tflite"), num_threads=1)
    interpreter.allocate_tensors()
    source = interpreter.get_input_details()[0]["index"]
    target = interpreter.get_output_details()[0]["index"]
    rows = []
    for observation in observations:
        interpreter.set_tensor(source, observation[None])
        interpreter.invoke()
        rows.append(interpreter.get_tensor(target)[0])
    return np.array(rows)


def main() -> int:
    """Compare with the golden logits; return the exit code."""
    with np.load(FOLDER / "golden.npz") as file:
        golden = dict(file)
    logits = logits_of(golden["observations"]).astype(np.float64)
    integers = np.round(logits / golden["logit_scale"]).astype(np.int64)
    wanted = golden["logits"].astype(np.int64)
    equal = int((integers == wanted).all(1).sum())
    actions = int((integers.argmax(1) == wanted.argmax(1)).sum())
    error = np.abs(integers - wanted).max() / max(np.ptp(wanted), 1)
    passed = actions == len(wanted) and error <= TOLERANCE
    print(
        f"{'ok    ' if passed else 'FAILED'} student.tflite: of {len(wanted)} golden vectors "
        f"{equal} with equal logits, {actions} with the same action"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
