"""`qpd analyze paper`: our numbers beside the paper's, and a verdict on each of its claims."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qpd.commands.analyze.extra import analysis_extra
from qpd.commands.analyze.output import print_analysis, save_analysis
from qpd.commands.output import AsJson, print_json, print_table, print_text
from qpd.errors.codes import ErrorCode
from qpd.errors.user_error import TargetError
from qpd.files.atomic import to_plain, write_text

if TYPE_CHECKING:
    from qpd.analysis.paper.evidence import PaperEvidence
    from qpd.analysis.paper.judged_claims import JudgedClaim
    from qpd.analysis.returns.return_rows import ShownTable

_MOST_LINES = 40  # of a table in a terminal


class Paper(StrEnum):
    """The papers whose claims are judged."""

    qpd = "qpd"
    quarl = "quarl"
    mixed_precision = "mixed-precision"
    low_precision_sac = "low-precision-sac"
    integer_controllers = "integer-controllers"


def analyze_paper(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="run directories, or folders of them; of QuaRL folders of `qpd quantize AGENT...`"
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="folder for PNG, SVG, CSV and Markdown files"),
    ] = None,
    devices: Annotated[
        list[Path] | None,
        typer.Option("--devices", help="files from qpd bench; further .json files may follow"),
    ] = None,
    paper: Annotated[Paper, typer.Option(help="whose claims")] = Paper.qpd,
    trained: Annotated[
        Path | None,
        typer.Option(
            "--trained",
            help="of QuaRL: results of `python -m benchmarks.agents.quantization_aware`",
        ),
    ] = None,
    explored: Annotated[
        Path | None,
        typer.Option("--explored", help="of QuaRL: exploration.csv of `qpd analyze exploration`"),
    ] = None,
    benchmarks: Annotated[
        Path | None,
        typer.Option(
            "--benchmarks",
            help="of QuaRL: folder with navigation.json and mixed_precision.json of `python -m "
            "benchmarks.NAME --results FILE`",
        ),
    ] = None,
    noise: Annotated[
        list[Path] | None,
        typer.Option(
            "--noise",
            help="of integer controllers: what `qpd evaluate RUN --noise 0,0.1 --json` printed",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare our numbers with the paper's, and judge each of its claims."""
    if noise and paper != Paper.integer_controllers:
        raise TargetError("--noise: belongs to --paper integer-controllers", ErrorCode.COMMAND_LINE)
    if devices and paper != Paper.qpd:
        raise TargetError("--devices: belongs to --paper qpd", ErrorCode.COMMAND_LINE)
    if paper == Paper.quarl:
        _quarl(runs, trained, explored, benchmarks, output, as_json)
        return
    given = {"--trained": trained, "--explored": explored, "--benchmarks": benchmarks}
    for option, path in given.items():
        if path is not None:
            raise TargetError(f"{option}: belongs to --paper quarl", ErrorCode.COMMAND_LINE)
    if paper == Paper.mixed_precision:
        _mixed_precision(runs, output, as_json)
        return
    if paper == Paper.low_precision_sac:
        _low_precision_sac(runs, output, as_json)
        return
    if paper == Paper.integer_controllers:
        _integer_controllers(runs, noise or [], output, as_json)
        return
    with analysis_extra():
        from qpd.analysis.paper.evidence import paper_evidence
        from qpd.bench.device_record import read_device_record

        # A shell's *.json leaves all but the first file among the runs.
        more = [path for path in runs if devices and path.suffix == ".json"]
        records = [read_device_record(path) for path in [*(devices or []), *more]]
        evidence = paper_evidence([path for path in runs if path not in more], records)
        written = _write(evidence, output) if output is not None else []
    files = [str(path) for path in written]
    if as_json:
        tables = {name: table.to_dict("records") for name, table in evidence.frames().items()}
        print_json({**to_plain(tables), "notes": list(evidence.notes), "files": files})
        return
    for table in evidence.tables():
        print_text(table.title)
        print_table(table.header, table.rows[:_MOST_LINES])
        if len(table.rows) > _MOST_LINES:
            print(f"and {len(table.rows) - _MOST_LINES} more lines, in the files of -o")
    for line in [*evidence.notes, *([", ".join(files)] if files else [])]:
        print_text(line)


def _quarl(
    suites: list[Path],
    trained: Path | None,
    explored: Path | None,
    benchmarks: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    with analysis_extra():
        from qpd.analysis.paper.judged_claims import claims_table
        from qpd.analysis.paper.quarl import (
            QuarlEvidence,
            judge,
            read_explored,
            read_trained,
        )
        from qpd.analysis.paper.quarl_benchmarks import read_benchmarks
        from qpd.analysis.suites.suite_frame import suite_frame, suite_results
        from qpd.analysis.suites.sweet_spot import sweet_spots

        results = suite_results(suites)
        evidence = QuarlEvidence(
            suite_frame(results),
            sweet_spots(results, over_agents=True),
            read_trained(trained),
            read_explored(explored),
            read_benchmarks(benchmarks),
        )
        claims = judge(evidence)
        _print_claims(claims_table(claims, "QuaRL"), claims, "quarl_claims", output, as_json)


def _mixed_precision(runs: list[Path], output: Path | None, as_json: bool) -> None:
    with analysis_extra():
        from qpd.analysis.paper.judged_claims import claims_table
        from qpd.analysis.paper.mixed_precision import MixedEvidence, judge

        claims = judge(MixedEvidence.of(runs))
        table = claims_table(claims, "Mixed Precision Training")
        _print_claims(table, claims, "mixed_precision_claims", output, as_json)


def _low_precision_sac(runs: list[Path], output: Path | None, as_json: bool) -> None:
    with analysis_extra():
        from qpd.analysis.paper.judged_claims import claims_table
        from qpd.analysis.paper.low_precision_sac import LowPrecisionEvidence, judge

        claims = judge(LowPrecisionEvidence.of(runs))
        table = claims_table(claims, "Low-precision SAC")
        _print_claims(table, claims, "low_precision_sac_claims", output, as_json)


def _integer_controllers(
    runs: list[Path], noise: list[Path], output: Path | None, as_json: bool
) -> None:
    with analysis_extra():
        import pandas as pd

        from qpd.analysis.paper.controller_evidence import ControllerEvidence
        from qpd.analysis.paper.controller_figures import figures
        from qpd.analysis.paper.controller_tables import shown_tables, tables
        from qpd.analysis.paper.integer_controllers import judge
        from qpd.analysis.paper.judged_claims import claims_table
        from qpd.analysis.selection.robustness import read_noisy_games

        evidence = ControllerEvidence.of(runs, read_noisy_games(noise))
        claims, found = judge(evidence), tables(evidence)
        frames = {"claims": pd.DataFrame([vars(claim) for claim in claims]), **found}
        files = {f"integer_controllers_{name}": frame for name, frame in frames.items()}
        written = save_analysis(files, figures(evidence), output)
        table = claims_table(claims, "Integer controllers, by games where a cell has one training")
        print_analysis(frames, [*shown_tables(found), table], evidence.notes, written, as_json)


def _print_claims(
    table: ShownTable,
    claims: Sequence[JudgedClaim],
    name: str,
    output: Path | None,
    as_json: bool,
) -> None:
    """Write the claims into `output` as NAME.csv, if it is given, and print them."""
    import pandas as pd

    from qpd.analysis.figure_style import save_tables

    frame = pd.DataFrame([vars(claim) for claim in claims])
    files = [str(path) for path in save_tables({name: frame}, output)] if output else []
    if as_json:
        plain = to_plain(frame.to_dict("records"))
        print_json({"claims": plain, "notes": [], "files": files})
        return
    print_text(table.title)
    print_table(table.header, table.rows)
    for line in files:
        print_text(line)


def _write(evidence: PaperEvidence, folder: Path) -> list[Path]:
    """Draw everything, then write figures, CSV files and paper.md."""
    from qpd.analysis.figure_style import paper_style, save_figure, save_tables
    from qpd.analysis.paper.tables import markdown

    with paper_style():
        figures = evidence.figures()
        written = save_tables(evidence.frames(), folder)
        for name, figure in figures.items():
            written += save_figure(figure, folder, name)
    path = folder / "paper.md"
    write_text(path, markdown(evidence.tables(), evidence.notes))
    return [*written, path]
