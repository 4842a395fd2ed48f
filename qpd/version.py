"""QPD's name on the package index and its version, importable without the rest of the package."""

# `qpd` on the index is another project (SQL on pandas). The import and the command stay `qpd`.
DISTRIBUTION = "qpd-rl"
__version__ = "0.1.0"


def pip_install(extra: str) -> str:
    """Return the command that installs an extra of QPD."""
    return f'pip install "{DISTRIBUTION}[{extra}]"'
