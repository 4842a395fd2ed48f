"""C compiled for this machine while the program runs."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import tempfile
from pathlib import Path

from qpd.machine.description import c_compiler

logger = logging.getLogger(__name__)

# Each operation is IEEE's, rounded once; neither traps nor errno keep loops from being vectors.
_FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
# Some compilers do not know the processor that they run on.
_PROCESSORS: tuple[list[str], ...] = (["-march=native"], [])


def compiled(source: Path) -> ctypes.CDLL | None:
    """Compile a C file, in a second or less, and load it; None where there is no compiler.

    The library goes with the process: nothing stays on disk. None as well where compiling fails.
    """
    compiler = c_compiler()
    if compiler is None:
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="qpd-", ignore_cleanup_errors=True) as folder:
            library = Path(folder) / "library.so"
            for processor in _PROCESSORS:
                command = [compiler, *_FLAGS, *processor, "-o", str(library), str(source), "-lm"]
                done = subprocess.run(command, capture_output=True, check=False)
                if done.returncode == 0:
                    return ctypes.CDLL(str(library))
    except OSError as error:  # no folder for it, or one whose files may not be run
        logger.debug("%s: not compiled: %s", source.name, error)
    return None
