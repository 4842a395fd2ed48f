"""Compare a runtime's outputs with this student's golden vectors; for selftest.py, needs numpy."""

import numpy as np

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
