"""QPD: quantization-aware policy distillation for Stable-Baselines3 agents."""

import os

__version__ = "0.1.0"

# Idle OpenMP threads must not spin: the emulators need the cores between two network passes.
# Read once, when torch loads its OpenMP library, hence here. On a busy 2-core machine the teacher's
# forward pass was several times faster for it.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
