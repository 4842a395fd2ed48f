"""`qpd doctor`: is everything there."""

from __future__ import annotations

import typer

from qpd.commands.output import AsJson, print_json, print_table


def doctor(as_json: AsJson = False) -> None:
    """Tell what is installed, what the machine can do and what is missing; 1 if QPD cannot work."""
    from qpd.commands.machine_checks import examine, is_healthy, report

    checks = examine()
    if as_json:
        print_json(report(checks))
    else:
        rows = [[one.topic, one.name, one.state, one.detail, one.remedy] for one in checks]
        print_table(["", "", "", "found", "what to do"], rows)
    if not is_healthy(checks):
        raise typer.Exit(1)
