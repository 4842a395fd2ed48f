"""Check that student.bin gives the golden logits and actions, bit for bit; needs only NumPy.

Exits with 0 if it does.
"""

import sys
from pathlib import Path

import numpy as np
from qpd_bin import actions_of, integer_outputs, load, values_of

FOLDER = Path(__file__).resolve().parent


def main() -> int:
    """Compare all golden vectors; return the exit code."""
    try:
        student = load(FOLDER / "student.bin")
    except ValueError as error:
        print(f"FAILED {error}")
        return 1
    with np.load(FOLDER / "golden.npz") as file:
        golden = dict(file)
    wanted, outputs = golden["logits"], integer_outputs(student, golden["observations"])
    right = (outputs == wanted).all(1)
    equal, actions = int(right.sum()), actions_of(student, outputs)
    if "codes" in golden:
        right &= (actions == golden["codes"]).all(1)
        actions = values_of(student, actions).reshape(golden["actions"].shape)
    if "actions" in golden:
        right &= (actions == golden["actions"]).reshape(len(wanted), -1).all(1)
    passed = bool(right.all())
    print(
        f"{'ok    ' if passed else 'FAILED'} student.bin: of {len(wanted)} golden vectors {equal} "
        f"with equal logits{', and actions' if 'actions' in golden else ''}"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
