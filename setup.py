"""Stop a build from a checkout without links; everything else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

# Git writes links as text files where it may not make any, and the wheel would be empty.
for link in ("src/qpd", "src/qpd/teachers"):
    if not (Path(__file__).parent / link).is_dir():
        sys.exit(
            f"{link} is no folder: git config core.symlinks true, then clone anew or"
            " git checkout -f HEAD (on Windows in developer mode)"
        )
setup()
