"""Check that ONNX Runtime computes this student's integers here; needs only onnxruntime and numpy.

Exits with 0 if the graphs give the golden logits. x86 processors without VNNI add pairs of 8-bit
products in 16 bits, which may overflow: if that shows, the quantized graph is tried again with
`session.x64quantprecision`, and the advice is printed.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime

FOLDER = Path(__file__).resolve().parent
TOLERANCE = 0.02  # of the logits' spread: allows a level rounded the other way, but no overflow


def run(model: str, golden: dict, precise: bool = False) -> bool:
    """Compare one model with the golden logits, print the outcome, return whether it passed."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if precise:
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(
        str(FOLDER / model), options, providers=["CPUExecutionProvider"]
    )
    logits = session.run(None, {"observations": golden["observations"]})[0]
    integers = np.round(logits.astype(np.float64) / golden["logit_scale"]).astype(np.int64)
    wanted = golden["logits"].astype(np.int64)
    equal = int((integers == wanted).all(1).sum())
    actions = int((integers.argmax(1) == wanted.argmax(1)).sum())
    error = np.abs(integers - wanted).max() / max(np.ptp(wanted), 1)
    passed = actions == len(wanted) and error <= TOLERANCE
    how = f"{model}{' (x64quantprecision)' if precise else ''}"
    print(
        f"{'ok    ' if passed else 'FAILED'} {how}: of {len(wanted)} golden vectors {equal} with "
        f"equal logits, {actions} with the same action"
    )
    return passed


def main() -> int:
    """Test both models; return the exit code."""
    with np.load(FOLDER / "golden.npz") as file:
        golden = dict(file)
    quantized = run("student_int8.onnx", golden)
    if not quantized and run("student_int8.onnx", golden, precise=True):
        print("this processor needs: options.add_session_config_entry(...) as in this file")
        quantized = True
    return 0 if run("student_fp32.onnx", golden) and quantized else 1


if __name__ == "__main__":
    sys.exit(main())
