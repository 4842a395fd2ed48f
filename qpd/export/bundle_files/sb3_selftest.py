"""Check that this agent acts as its integers say; needs stable_baselines3 and qpd.

Exits with 0 if every golden vector gives the golden action, deterministically.
"""

import sys
from pathlib import Path

import numpy as np
import stable_baselines3

FOLDER = Path(__file__).resolve().parent


def main() -> int:
    """Compare with the golden actions; return the exit code."""
    with np.load(FOLDER / "golden.npz") as file:
        golden = dict(file)
    model = getattr(stable_baselines3, "$ALGO").load(FOLDER / "student.zip", device="cpu")
    parts = {key.split(".", 1)[1]: golden[key] for key in golden if key.startswith("observations.")}
    actions, _ = model.predict(parts or golden["observations"], deterministic=True)
    wanted = golden["actions"] if "actions" in golden else golden["logits"].argmax(1)
    equal = sum(np.array_equal(one, other) for one, other in zip(actions, wanted, strict=True))
    print(
        f"{'ok    ' if equal == len(wanted) else 'FAILED'} student.zip: of {len(wanted)} golden "
        f"vectors {equal} with the same action"
    )
    return 0 if equal == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
