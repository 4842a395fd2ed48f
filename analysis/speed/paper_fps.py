"""The paper's Table 1: forward passes per second, one observation at a time, fp32, PyTorch, with
the critic head. Columns as in `COLUMNS`.
"""

from __future__ import annotations

COLUMNS = ("XXS", "XS", "S", "M", "L", "XL", "XXL", "PPO/A2C", "DQN")
PAPER_FPS: dict[str, tuple[int, ...]] = {
    "Raspberry Pi 3B": (135, 128, 116, 100, 72, 46, 25, 39, 41),
    "Jetson TX2 CPU": (79, 78, 73, 67, 52, 45, 32, 42, 45),
    "Jetson TX2 GPU": (815, 808, 815, 816, 762, 760, 736, 280, 568),
    "Intel NUC i5-4250U": (1322, 1287, 1118, 1071, 706, 535, 381, 388, 487),
    "GTX 1080 Ti": (2560, 2598, 2610, 2603, 2599, 2584, 2541, 1630, 1811),
    "Tesla V100": (3620, 3628, 3638, 3484, 3466, 3458, 3625, 2212, 2477),
    "Ryzen 9 3900X": (4535, 4456, 4327, 3743, 2649, 2272, 1442, 1685, 1934),
}
