"""Which modules may be imported because an environment or a wrapper names them.

What the user names may be: an option, a recipe of theirs, an argument in Python. Ids and wrappers
also lie in files that may come from anyone: agents, run directories, students. Of those only what
`QPD_IMPORT` lists is imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from qpd.environments.errors import EnvironmentConfigError, one_line
from qpd.environments.source import EnvironmentSource
from qpd.errors.codes import ErrorCode
from qpd.errors.termination import Terminated

# A variable, as worker processes inherit it. Names of modules, separated by commas.
IMPORT_VARIABLE = "QPD_IMPORT"


def allow_named(source: EnvironmentSource) -> None:
    """Let the modules be imported that the user names, in this process and its children."""
    names = [source.env_id.rpartition(":")[0]]
    names += [wrapper.name.rpartition(".")[0] for wrapper in source.wrappers]
    allowed = _allowed()
    os.environ[IMPORT_VARIABLE] = ",".join(
        [*allowed, *(name for name in dict.fromkeys(names) if name and name not in allowed)]
    )


def import_named(module: str, place: str, *, is_known: bool = False) -> Any:
    """Import a module that may be; one in the working directory is found, too.

    `place` says in an error what needs it; a known module needs no permission. Raises
    EnvironmentConfigError.
    """
    if not is_known and module not in _allowed():
        raise EnvironmentConfigError(
            f"{place}: a file names it, and its module {module} would be imported: if you trust "
            f"it, set {IMPORT_VARIABLE}={module} before the command, whichever it is, or name it "
            "yourself where there is --env or --wrapper"
        )
    # Last, so that no installed package is shadowed; for good, as the module may import later.
    if not is_known and "" not in sys.path:
        sys.path.append("")
    try:
        return importlib.import_module(module)
    except Terminated:
        raise
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        code = ErrorCode.PACKAGE_MISSING if isinstance(error, ModuleNotFoundError) else None
        raise EnvironmentConfigError(
            f"{place}: its module {module} cannot be imported: {one_line(error)}", code
        ) from error


def is_allowed(module: str) -> bool:
    """Tell whether the user has named a module."""
    return module in _allowed()


def _allowed() -> list[str]:
    return [name for name in os.environ.get(IMPORT_VARIABLE, "").split(",") if name]
