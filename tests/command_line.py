"""`qpd ...` called in this process: what most tests of the command line do."""

from __future__ import annotations

import pytest

from qpd import cli


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `qpd arguments`."""
    capsys.readouterr()  # what was printed before
    with pytest.raises(SystemExit) as caught:
        cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err
