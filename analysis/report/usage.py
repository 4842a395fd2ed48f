"""Report section: commands that run the student."""

from __future__ import annotations

import shlex

from qpd.analysis.report.blocks import Block, Code, Section
from qpd.analysis.report.inputs import ReportInputs
from qpd.environments.named_modules import IMPORT_VARIABLE
from qpd.environments.wrappers import modules_to_name

TITLE = "How to run it"


def usage_section(inputs: ReportInputs) -> Section:
    """List commands that play the student and export it to SB3, ONNX Runtime and C."""
    # Readers paste these lines into a shell; a run's name is whatever its owner chose.
    run = shlex.quote(str(inputs.path))
    if inputs.student is None:
        code = Code("Resume this run", "qpd run RECIPE -o " + run)
        return Section("usage", TITLE, [code])
    python = (
        "import qpd\n\n"
        f"student = qpd.load_student_policy({str(inputs.path)!r})\n"
        "actions, state = student.predict(observations, deterministic=True)"
    )
    blocks: list[Block] = []
    record = inputs.run.manifest.teacher
    if record is not None and (modules := modules_to_name(record.played)):
        title = "First: its environment's code, which QPD imports only if you name it"
        blocks.append(Code(title, f"export {IMPORT_VARIABLE}={shlex.quote(','.join(modules))}"))
    blocks += [
        Code("Play it", f"qpd evaluate {run} --policy {inputs.student}"),
        Code("In Python, with the predict of Stable-Baselines3", python),
    ]
    # Exports take integers only.
    if not inputs.run.quantized_file.is_file():
        blocks.append(Code("Quantize it before exporting", f"qpd quantize {run}"))
        return Section("usage", TITLE, blocks)
    folder = shlex.quote(str(inputs.path / "exports"))
    blocks += [
        Code(
            "As an agent of Stable-Baselines3",
            f"qpd export {run} --format sb3\n"
            f"python {folder}/sb3/selftest.py   # its README.md shows how to load the agent",
        ),
        Code(
            "In ONNX Runtime",
            f"qpd export {run} --format onnx\npython {folder}/onnx/selftest.py",
        ),
        Code(
            "In C, without any library",
            f"qpd export {run} --format c\ncd {folder}/c && make test && make bench",
        ),
    ]
    return Section("usage", TITLE, blocks)
