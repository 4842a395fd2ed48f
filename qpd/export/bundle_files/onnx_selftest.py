"""Check that ONNX Runtime computes this student's integers here; needs only onnxruntime and numpy.

Exits with 0 if the graphs give the golden logits or actions.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime

FOLDER = Path(__file__).resolve().parent
# Of the logits' spread, or the codes': allows a level rounded the other way, but no overflow.
TOLERANCE = 0.02


def chosen(outputs: np.ndarray, golden: dict) -> np.ndarray:
    """Return the best actions by logits: `[n]` of one choice, else `[n, numbers]`."""
    if "choices" in golden:
        parts = np.split(outputs, np.cumsum(golden["choices"])[:-1], axis=1)
        return np.stack([part.argmax(1) for part in parts], axis=1)
    return (outputs > 0).astype(np.int64) if "actions" in golden else outputs.argmax(1)


def compare(outputs: list, golden: dict) -> tuple:
    """Return whether outputs pass, and that in words."""
    if "codes" in golden:
        wanted = golden["codes"].astype(np.int64)
        steps = np.abs(outputs[1].astype(np.int64) - wanted)
        same = (outputs[0] == golden["actions"]).reshape(len(wanted), -1).all(1)
        # A level that is rounded the other way, which is rare, may move a code by a step.
        small = steps.max() <= max(TOLERANCE * 2 ** int(golden["action_bits"]), 1)
        passed = small and (steps == 0).mean() >= 0.75 and (same | (steps > 0).any(1)).all()
        equal = int((steps == 0).all(1).sum())
        return passed, f"{equal} with equal codes, {int(same.sum())} with equal actions"
    integers = np.round(outputs[0].astype(np.float64) / golden["logit_scale"]).astype(np.int64)
    wanted = golden["logits"].astype(np.int64)
    equal = int((integers == wanted).all(1).sum())
    same = chosen(integers, golden) == chosen(wanted, golden)
    actions = int(same.reshape(len(wanted), -1).all(1).sum())
    error = np.abs(integers - wanted).max() / max(np.ptp(wanted), 1)
    passed = actions == len(wanted) and error <= TOLERANCE
    return passed, f"{equal} with equal logits, {actions} with the same action"


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
