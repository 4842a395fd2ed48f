"""The README of a SystemVerilog export."""

from __future__ import annotations

from qpd.actions import Box
from qpd.export.bundle import ExportSource


def readme(source: ExportSource, work: str, stored: int, levels_by: str) -> str:
    """Return the page: what `work` the core does each clock, its `stored` integers, its ports."""
    student = source.student
    features, outputs = student.architecture.num_features, student.architecture.num_outputs
    return f"""# {source.name} in SystemVerilog

`qpd_core.sv` computes the integer engine's outputs bit for bit; `qpd_constants.svh` and the `.hex`
files hold this student's numbers. Nothing is a float: a feature comes in as the 32 bits of its
float32, which are compared with {stored:,} stored integers.

    make test    # Verilator plays the golden vectors: PASS, or FAIL and a non-zero status
    make lint

They need Verilator 5.002 or later, g++ and GNU make, which builds in no folder with a space in its
path. Nearly every change of a weight, a bias or a feature's threshold fails; of the table of an
action's codes those do that the vectors reach.

{work}; levels are made by {levels_by}.

## Ports of `qpd_core`

| port | bits | |
|---|---|---|
| `clk`, `rst` | 1 | `rst` is synchronous |
| `s_data` | 32 | a feature, the bits of its float32; {features} make an observation |
| `s_valid`, `s_ready` | 1 | a feature is taken at a clock where both are 1 |
| `m_acc` | `ACC` | an output's accumulator, signed: what the golden vectors compare |
| `m_action` | `ACTION` | {_action(source)} |
| `m_valid`, `m_ready` | 1 | an output leaves at a clock where both are 1; until then it stays |
| `m_last` | 1 | the last of {outputs} outputs; then comes the next observation |

`qpd_pins.sv` is the same core behind shift registers, for packages with few pins. `make synth` is
for an Artix-7; `qpd fpga` builds for other parts, whose cells and clock are then in `fpga.json`.
{_values(source)}"""


def _action(source: ExportSource) -> str:
    if isinstance(source.student.actions, Box):
        return "the code of this output's action, unsigned"
    return "with `m_last` the chosen action"


def _values(source: ExportSource) -> str:
    """Return what the codes of continuous actions stand for."""
    actions = source.student.actions
    if not isinstance(actions, Box):
        return ""
    top = 2**source.student.action_bits - 1
    bounds = enumerate(zip(*(bound.tolist() for bound in actions.bounds), strict=True))
    lines = "\n".join(f"| {i} | {low!r} | {high!r} |" for i, (low, high) in bounds)
    return f"""
## Actions

In the environment's units an action is `low + code * (high - low) / {top}`:

| action | low | high |
|---|---|---|
{lines}
"""
