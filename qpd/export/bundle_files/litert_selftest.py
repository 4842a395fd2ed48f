"""Check that LiteRT computes this student's integers here; needs only ai-edge-litert and numpy.

Exits with 0 if the model gives the golden logits or actions.
"""

import sys
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from golden_check import compare

FOLDER = Path(__file__).resolve().parent


def outputs_of(observations: np.ndarray) -> list:
    """Return the model's outputs, one observation at a time; images go in as int8 x - 128, HWC."""
    if observations.ndim == 4:
        observations = np.ascontiguousarray(observations.transpose(0, 2, 3, 1) ^ 128).view(np.int8)
    interpreter = Interpreter(str(FOLDER / "student.tflite"), num_threads=1)
    interpreter.allocate_tensors()
    source = interpreter.get_input_details()[0]["index"]
    targets = [detail["index"] for detail in interpreter.get_output_details()]
    rows = []
    for observation in observations:
        interpreter.set_tensor(source, observation[None])
        interpreter.invoke()
        rows.append([interpreter.get_tensor(target)[0] for target in targets])
    return [np.array(column) for column in zip(*rows, strict=True)]


def main() -> int:
    """Compare with the golden vectors; return the exit code."""
    with np.load(FOLDER / "golden.npz") as file:
        golden = dict(file)
    passed, said = compare(outputs_of(golden["observations"]), golden)
    print(
        f"{'ok    ' if passed else 'FAILED'} student.tflite: of {len(golden['logits'])} golden "
        f"vectors {said}"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
