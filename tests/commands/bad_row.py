"""One row of the table of wrong inputs."""

from __future__ import annotations

from dataclasses import dataclass, field

from qpd.errors.codes import ErrorCode


@dataclass(frozen=True)
class Row:
    """A command line, as a shell splits it, and what its error must say.

    `says` are fragments of the one line, each with a code: file, key, value, remedy. With several
    `codes` there are as many lines, one for each mistake. `writes` is the content of a file named
    mine.yaml that the command reads; `environment` gives it a process of its own.
    """

    command: str
    codes: ErrorCode | tuple[ErrorCode, ...]
    says: tuple[str, ...]
    writes: str | bytes | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> tuple[ErrorCode, ...]:
        """The code of each line."""
        return self.codes if isinstance(self.codes, tuple) else (self.codes,)

    @property
    def name(self) -> str:
        """Return the name that pytest shows."""
        return f"{self.command} <<< {self.writes!r}"[:150] if self.writes else self.command


def row(command: str, codes: ErrorCode | tuple[ErrorCode, ...], *says: str) -> Row:
    """A row with files that are there."""
    return Row(command, codes, says)


def recipe(text: str | bytes, codes: ErrorCode | tuple[ErrorCode, ...], *says: str) -> Row:
    """`qpd run` of a recipe with this text."""
    return Row("run mine.yaml", codes, says, text)


def setting(assignment: str, code: ErrorCode, *says: str) -> Row:
    """`qpd run` of a good recipe with one `--set`, which the line repeats in its way."""
    return Row(f"run ci --set '{assignment}'", code, says)


def grid(text: str | bytes, codes: ErrorCode | tuple[ErrorCode, ...], *says: str) -> Row:
    """`qpd sweep` of a grid with this text."""
    return Row("sweep mine.yaml", codes, says, text)
