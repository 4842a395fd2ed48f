"""`qpd bench`: the speed of students on this device, or on one that ssh reaches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qpd.commands.completion import complete_sizes
from qpd.commands.output import AsJson, Quiet, print_json, print_table, print_text, progress
from qpd.errors.codes import ErrorCode
from qpd.errors.nearest_name import did_you_mean
from qpd.errors.terminal_text import printable

if TYPE_CHECKING:
    from qpd.bench.device_record import BenchRow, DeviceRecord
    from qpd.bench.models import BenchModel

DEFAULT_SIZES = "XXS,S,XL"
RUNTIME_NAMES = "torch,torch-compile,onnx-fp32,onnx-int8,litert-int8,c,c-simd"


def bench(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="run directories, or quantized.safetensors", metavar="RUN"),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            help=f"random students: all, or a list; without RUN {DEFAULT_SIZES}",
            autocompletion=complete_sizes,
        ),
    ] = None,
    runtimes: Annotated[str, typer.Option(help=f"all, or some of {RUNTIME_NAMES}")] = "all",
    threads: Annotated[str, typer.Option(help="thread counts, such as 1, or 1,all")] = "1",
    rounds: Annotated[
        int, typer.Option(min=1, max=1000, help="measurement rounds; results are medians")
    ] = 7,
    seconds: Annotated[
        float, typer.Option(min=0.01, max=600, help="seconds of each turn in a round")
    ] = 0.5,
    frames: Annotated[
        str, typer.Option(help="observations: breakout (real play) or noise (the worst case)")
    ] = "breakout",
    output: Annotated[Path, typer.Option("-o", "--output", help="the device's JSON file")] = Path(
        "device.json"
    ),
    device_name: Annotated[
        str | None, typer.Option(help="default: the name of the board or processor")
    ] = None,
    ssh: Annotated[
        str | None,
        typer.Option(metavar="USER@HOST[:PORT]", help="time the C export on that machine"),
    ] = None,
    ssh_config: Annotated[
        Path | None, typer.Option(help="ssh configuration instead of ~/.ssh/config")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Time single forward passes of students in every runtime, beside their SB3 teacher.

    Writes the device's JSON; `qpd analyze fps` makes tables from several devices.
    """
    from qpd.bench.benchmark import BenchSettings, run_benchmark
    from qpd.bench.device_record import BenchError, refuse_foreign_file, write_device_record
    from qpd.bench.ssh_device import bench_over_ssh

    if ssh is None and ssh_config is not None:
        raise BenchError(f"--ssh-config {ssh_config}: needs --ssh", ErrorCode.COMMAND_LINE)
    chosen = _runtimes(runtimes, over_ssh=ssh is not None)
    settings = BenchSettings(chosen, _threads(threads), rounds, seconds, _frames(frames))
    _check_device_name(device_name)
    refuse_foreign_file(output)
    note = progress(quiet).note
    models = _models(runs or [], sizes)
    if ssh is None:
        record = run_benchmark(models, settings, device_name, note)
    else:
        record = bench_over_ssh(ssh, models, settings, device_name, note, ssh_config)
    write_device_record(output, record)
    if as_json:
        print_json(record.model_dump())
        return
    if quiet:
        return
    _print(record)
    print(f"{output}: the device's JSON, for qpd analyze fps")


def _check_device_name(name: str | None) -> None:
    from qpd.bench.device_record import BenchError

    # It becomes a column of tables and a label of figures.
    if name is not None and (not name.strip() or len(name) > 100 or printable(name) != name):
        raise BenchError(
            f"--device-name {name[:100]}: one line of 1 to 100 characters, none of them a control"
            " character",
            ErrorCode.COMMAND_LINE,
        )


def _runtimes(text: str, over_ssh: bool) -> tuple[str, ...]:
    from qpd.bench.device_record import BenchError
    from qpd.bench.runtimes import RUNTIMES

    known = [name for name in RUNTIMES if name.startswith("c") or not over_ssh]
    chosen = known if text == "all" else _listed(text)
    for name in chosen:
        if name not in known:
            where = " over ssh," if over_ssh else ""
            raise BenchError(
                f"--runtimes {name}:{where} one of {', '.join(known)}, or all"
                f"{did_you_mean(name, known)}",
                ErrorCode.COMMAND_LINE,
            )
    return tuple(chosen)


def _threads(text: str) -> tuple[int, ...]:
    from qpd.bench.device_record import BenchError
    from qpd.machine.cores import usable_cores

    numbers = []
    for item in _listed(text):
        is_number = item.isascii() and item.isdecimal()  # int() reads other scripts, too
        if item != "all" and not (is_number and 1 <= int(item) <= 1024):
            raise BenchError(
                f"--threads {item}: numbers from 1 to 1024, and all, such as 1,all",
                ErrorCode.COMMAND_LINE,
            )
        numbers.append(usable_cores() if item == "all" else int(item))
    return tuple(dict.fromkeys(numbers))


def _frames(name: str) -> str:
    from qpd.bench.device_record import BenchError
    from qpd.bench.timed_observations import OBSERVATIONS

    if name not in OBSERVATIONS:
        raise BenchError(
            f"--frames {name}: one of {', '.join(OBSERVATIONS)}{did_you_mean(name, OBSERVATIONS)}",
            ErrorCode.COMMAND_LINE,
        )
    return name


def _models(runs: list[str], sizes: str | None) -> list[BenchModel]:
    from qpd.bench.models import distinctly_named, random_model, run_model
    from qpd.students import SIZE_GRID

    if sizes is None:
        sizes = "" if runs else DEFAULT_SIZES
    names = list(SIZE_GRID) if sizes == "all" else _listed(sizes) if sizes else []
    found = distinctly_named([run_model(Path(run)) for run in runs], names)
    return [*found, *(random_model(name) for name in names)]


def _listed(text: str) -> list[str]:
    return list(dict.fromkeys(item.strip() for item in text.split(",")))


def _print(record: DeviceRecord) -> None:
    header = ["model", "runtime", "bits", "threads", "median us", "p99 us", "passes/s"]
    measured = [row for row in record.rows if row.status == "measured"]
    print_table([*header, "x teacher", "peak MB", "file KB"], [_cells(row) for row in measured])
    others = [row for row in record.rows if row.status != "measured"]
    lines: dict[tuple[str, str, str | None], list[str]] = {}
    for row in others:
        about = lines.setdefault((row.runtime, row.status, row.reason), [])
        about.append(row.model)
    for (runtime, status, reason), about in lines.items():
        print_text(f"{runtime} {status} ({', '.join(dict.fromkeys(about))}): {reason}")
    for line in record.notes:
        print_text(line)
    print_text(f"{record.device}: {record.cpu}, {record.cores} cores, {record.os}")


def _cells(row: BenchRow) -> list[str]:
    assert row.median_us is not None and row.p99_us is not None
    assert row.forwards_per_second is not None and row.peak_rss_bytes is not None
    return [
        row.model,
        row.runtime + (f" ({row.kernels})" if row.kernels else ""),
        "fp32" if row.weight_bits == 32 else str(row.weight_bits),
        str(row.threads),
        f"{row.median_us:,.1f}",
        f"{row.p99_us:,.1f}",
        f"{row.forwards_per_second:,.0f}",
        "-" if row.ratio is None else f"{row.ratio:.2f}",
        f"{row.peak_rss_bytes / 1e6:.1f}",
        "-" if row.file_bytes is None else f"{row.file_bytes / 1e3:,.1f}",
    ]
