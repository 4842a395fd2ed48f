"""The name under which QPD is installed: `qpd` on the package index is another project."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

from qpd.version import DISTRIBUTION, __version__

ROOT = Path(__file__).parents[2]
# `pip install qpd`, `"qpd[train]"`, `qpd==1`: all but the URL and the name with its suffix.
OTHER_PROJECT = re.compile(rb"""(pip3? install [^\n`]*["' ]qpd(?=["'\[=\s`])|[`"']qpd\[)""")


def test_the_code_and_the_package_have_one_name_and_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["version"]) == (DISTRIBUTION, __version__)


def test_nothing_installs_the_other_project() -> None:
    assert OTHER_PROJECT.search(b'pip install "qpd[train]"')
    assert not OTHER_PROJECT.search(b'pip install "qpd-rl[train]"')
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    own = str(Path(__file__).relative_to(ROOT))
    files = [ROOT / name for name in listed if name != own and (ROOT / name).is_file()]
    found = [str(path) for path in files if OTHER_PROJECT.search(path.read_bytes())]
    assert not found
