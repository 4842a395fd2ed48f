"""The C export on another machine: copied, built, tested and timed there over ssh.

It needs only sshd, a C compiler and make there. The system's own ssh and scp are used, so keys,
agents and `~/.ssh/config` apply; nothing asks for a password.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

import numpy as np

from qpd.bench.benchmark import BenchSettings, settings_record
from qpd.bench.c_json import turn_of_line
from qpd.bench.contestant import Contestant
from qpd.bench.device_record import BenchError, DeviceRecord
from qpd.bench.models import BenchModel
from qpd.bench.rounds import bench_row
from qpd.bench.timed_observations import OBSERVATIONS
from qpd.errors.codes import ErrorCode
from qpd.export.bundle import GoldenVectors, write_bundle
from qpd.export.c.code import export_c
from qpd.version import __version__

CONNECT_SECONDS = 15
TARGET = re.compile(r"(?P<login>(?:[\w.-]+@)?(?:[\w.-]+|\[[0-9a-fA-F:]+\]))(?::(?P<port>[0-9]+))?")


class SshMachine:
    """Commands on another machine; BenchError, one line, if it cannot be reached."""

    def __init__(self, target: str, config: Path | None = None) -> None:
        match = TARGET.fullmatch(target)
        # A target that begins with a dash would be read as one of ssh's options.
        if match is None or target.startswith("-"):
            raise BenchError(
                f"--ssh {target}: user@host, or user@host:port", ErrorCode.COMMAND_LINE
            )
        for program in ("ssh", "scp"):
            if shutil.which(program) is None:
                raise BenchError(
                    f"--ssh needs {program}, which is not installed here", ErrorCode.PACKAGE_MISSING
                )
        self.target, self.login, port = target, match["login"], match["port"]
        options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}"]
        # Notices a machine that goes away in the middle of a turn, which sends nothing.
        options += ["-o", f"ServerAliveInterval={CONNECT_SECONDS}"]
        options += ["-F", str(config)] if config is not None else []
        self._ssh = ["ssh", *options, *(["-p", port] if port else [])]
        # ssh takes the port as -p, scp as -P, where -p would keep the files' times.
        self._scp = ["scp", "-q", "-r", *options, *(["-P", port] if port else [])]

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run `script` in a POSIX shell there; BenchError if the connection fails."""
        # scp needs brackets around an IPv6 address, ssh refuses them.
        bare = self.login.replace("[", "").replace("]", "")
        command = [*self._ssh, bare, "sh -s"]
        done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
        if done.returncode == 255:  # ssh's own failures; anything else is the script's status
            raise BenchError(
                f"--ssh {self.target}: {_last_line(done.stderr)}", ErrorCode.REMOTE_DEVICE
            )
        return done

    def copy(self, folder: Path, there: str) -> None:
        """Copy the contents of `folder` into `there`. Raises BenchError."""
        entries = [str(entry) for entry in sorted(folder.iterdir())]
        done = subprocess.run(
            [*self._scp, *entries, f"{self.login}:{there}/"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise BenchError(
                f"--ssh {self.target}: scp: {_last_line(done.stderr)}", ErrorCode.REMOTE_DEVICE
            )

    @contextmanager
    def temporary_folder(self) -> Iterator[str]:
        """Yield a new folder there, which is removed whatever happens."""
        made = self.run("mktemp -d\n")
        folder = made.stdout.strip()
        if made.returncode != 0 or not folder.startswith("/"):
            raise BenchError(
                f"--ssh {self.target}: mktemp -d: {_last_line(made.stderr)}",
                ErrorCode.REMOTE_DEVICE,
            )
        try:
            yield folder
        finally:
            self.run(f"rm -rf {shlex.quote(folder)}\n")


def bench_over_ssh(
    target: str,
    models: Sequence[BenchModel],
    settings: BenchSettings,
    device: str | None = None,
    note: Callable[[str], None] = lambda text: None,
    config: Path | None = None,
) -> DeviceRecord:
    """Benchmark the C export of `models` at `target`, in the runtimes `c` and `c-simd`.

    `device` names it in the record, `note` is called with a line of progress, `config` is an ssh
    configuration file. Raises BenchError, one line.
    """
    machine = SshMachine(target, config)
    # Contestants and builds in one order: the script's turns name them by number.
    contestants = [
        Contestant(runtime, model.name, model.size, model.weight_bits, 1)
        for model in models
        for runtime in settings.runtimes
    ]
    builds = [
        (f"model{index}", runtime == "c")
        for index in range(len(models))
        for runtime in settings.runtimes
    ]
    with tempfile.TemporaryDirectory(prefix="qpd-bench-") as name:
        frames = OBSERVATIONS[settings.frames]()
        for index, model in enumerate(models):
            _export(model, Path(name) / f"model{index}", frames)
        note(f"copying to {target}")
        with machine.temporary_folder() as folder:
            machine.copy(Path(name), folder)
            note(f"building, testing and timing at {target}")
            done = machine.run(remote_script(folder, builds, settings.rounds, settings.seconds))
    if done.returncode != 0:
        raise BenchError(f"--ssh {target}: {_last_line(done.stdout)}", ErrorCode.REMOTE_DEVICE)
    facts = _collect(done.stdout, contestants)
    return DeviceRecord(
        device=device or facts["device"],
        cpu=facts["device"],
        cores=int(facts["cores"]) if facts["cores"].isdecimal() else None,
        os=facts["os"],
        versions={"qpd": __version__, "compiler": facts["compiler"]},
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        settings=settings_record(settings) | {"source": "ssh"},
        rows=[bench_row(contestant) for contestant in contestants],
    )


def remote_script(
    folder: str, builds: Sequence[tuple[str, bool]], rounds: int, seconds: float
) -> str:
    """Return the shell script to run there; `builds` are (export's folder, is portable)."""
    body = files("qpd.bench").joinpath("remote_bench.sh").read_text(encoding="utf-8")
    listed = " ".join(f"{name}:{'1' * portable}" for name, portable in builds)
    settings = {"FOLDER": folder, "BUILDS": listed, "ROUNDS": rounds, "SECONDS_EACH": seconds}
    lines = [f"{name}={shlex.quote(str(value))}" for name, value in settings.items()]
    return "\n".join([*lines, body])


def _export(model: BenchModel, folder: Path, frames: np.ndarray) -> None:
    golden = GoldenVectors(model.observations, model.integer_outputs)
    write_bundle(folder, "c", model.source, export_c(model.source, golden))
    levels = model.source.student.encode(model.timed_on(frames))
    (folder / "observations.bin").write_bytes(levels.tobytes())


def _collect(output: str, contestants: Sequence[Contestant]) -> dict[str, str]:
    """Add turns to the contestants they belong to; return the facts about the machine."""
    facts = {"device": "unknown", "cores": "", "os": "unknown", "compiler": "unknown"}
    # Other lines are a login shell's greetings, which no protocol can forbid.
    for line in output.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "fact":
            name, _, value = rest.partition(" ")
            facts[name] = value or facts[name]
        elif kind == "turn":
            number, _, text = rest.partition(" ")
            facts["device"] = _add_turn(contestants[int(number)], text)
    return facts


def _add_turn(contestant: Contestant, text: str) -> str:
    """Record one line of the C benchmark; return the name of its device. Raises BenchError."""
    try:
        line = json.loads(text)
        contestant.turns.append(turn_of_line(line))
        contestant.kernels = str(line["kernels"])
        contestant.file_bytes = int(line["constant_bytes"])
        return str(line["device"])
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(
            f"the benchmark there: {error}: {text[:80]!r}", ErrorCode.REMOTE_DEVICE
        ) from error


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it failed without a message"
