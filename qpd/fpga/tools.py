"""Programs of others that `qpd fpga` runs: Yosys, nextpnr and Verilator."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import UserError
from qpd.version import pip_install

_LAST_LINES = 400  # characters of what a failed tool said
# Of the extra `fpga`, under the names that YoWASP gives them; newer than a distribution's.
_YOWASP = {name: f"yowasp-{name}" for name in ("yosys", "nextpnr-ecp5", "nextpnr-ice40")}

_VERSION = re.compile(r"\b(?:Yosys|Verilator|Version) (?:nextpnr-)?([\w.+-]*\w)")


class FpgaError(UserError, RuntimeError):
    """A tool is missing or failed, or no folding fits; the message is one line."""

    code = ErrorCode.FPGA


def find_tool(name: str) -> str | None:
    """Return the program `name`, that of the extra `fpga` before one on the path; None without."""
    beside = Path(sys.executable).parent / _YOWASP.get(name, name)
    if name in _YOWASP and beside.is_file():
        return str(beside)
    return shutil.which(_YOWASP.get(name, name)) or shutil.which(name)


def need_tool(name: str) -> str:
    """Return the program `name`. Raises FpgaError, which says where it comes from."""
    found = find_tool(name)
    if found is None:
        message = f"{name} is not installed: {remedy_for(name)}"
        raise FpgaError(message, ErrorCode.PACKAGE_MISSING)
    return found


def remedy_for(name: str) -> str:
    """Return where the program `name` comes from."""
    own = f"install your distribution's {name}"
    return f"{pip_install('fpga')}, or {own}" if name in _YOWASP else own


def run_tool(name: str, arguments: Sequence[str], folder: Path) -> str:
    """Run the program `name` in `folder` and return what it prints. Raises FpgaError."""
    done = subprocess.run(
        [need_tool(name), *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        output = done.stderr.strip() or done.stdout.strip()
        errors = [line for line in output.splitlines() if line.startswith("ERROR")]
        said = " ".join(" ".join(errors or [output]).split())
        raise FpgaError(f"{name} failed with status {done.returncode}: {said[-_LAST_LINES:]}")
    return done.stdout


def tool_version(name: str) -> str:
    """Return the version of the program `name`, as it tells it, such as 0.23; "" if it does not."""
    done = subprocess.run(
        [need_tool(name), "--version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    told = _VERSION.search(done.stdout + done.stderr)
    return told[1] if told else ""
