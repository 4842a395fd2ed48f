"""Check that student.bin gives the golden logits, bit for bit; needs only NumPy.

Exits with 0 if it does.
"""

import sys
from pathlib import Path

import numpy as np
from qpd_bin import integer_outputs, load

FOLDER = Path(__file__).resolve().parent


def main() -> int:
    """Compare all golden vectors; return the exit code."""
    try:
        student = load(FOLDER / "student.bin")
    except ValueError as error:
        print(f"FAILED {error}")
        return 1
    with np.load(FOLDER / "golden.npz") as golden:
        observations, wanted = golden["observations"], golden["logits"]
    equal = int((integer_outputs(student, observations) == wanted).all(1).sum())
    passed = equal == len(wanted)
    print(
        f"{'ok    ' if passed else 'FAILED'} student.bin: of {len(wanted)} golden vectors {equal} "
        "with equal logits"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
