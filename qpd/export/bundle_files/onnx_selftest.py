"""Check that ONNX Runtime computes this student's integers here; needs only onnxruntime and numpy.

Exits with 0 if the graphs give the golden logits or actions.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
from golden_check import compare

FOLDER = Path(__file__).resolve().parent


def run(model: str, golden: dict) -> bool:
    """Compare one model with the golden vectors, print the outcome, return whether it passed."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(FOLDER / model), options, providers=["CPUExecutionProvider"]
    )
    outputs = session.run(None, {"observations": golden["observations"]})
    passed, said = compare(outputs, golden)
    outcome, count = "ok    " if passed else "FAILED", len(golden["logits"])
    print(f"{outcome} {model}: of {count} golden vectors {said}")
    return passed


def main() -> int:
    """Test both models; return the exit code."""
    with np.load(FOLDER / "golden.npz") as file:
        golden = dict(file)
    passed = [run(model, golden) for model in ("student_int8.onnx", "student_fp32.onnx")]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
