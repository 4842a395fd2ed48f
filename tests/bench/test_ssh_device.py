"""`qpd bench --ssh`, against a real sshd on loopback with keys of its own."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from qpd import cli
from qpd.bench.benchmark import BenchSettings
from qpd.bench.device_record import BenchError, read_device_record
from qpd.bench.models import run_model
from qpd.bench.ssh_device import SshMachine, bench_over_ssh
from qpd.export.bundle import load_export_source
from qpd.export.c.sizes import weight_bytes
from qpd.machine.description import c_compiler

RUNS = Path(__file__).parents[2] / "runs-reference"
RUN, OTHER_RUN = RUNS / "classic-ppo-cartpole", RUNS / "classic-a2c-acrobot"
SSHD = shutil.which("sshd", path=os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"]))
SETTINGS = BenchSettings(("c",), (1,), rounds=2, seconds=0.02, frames="noise")

pytestmark = [
    pytest.mark.skipif(SSHD is None, reason="no sshd (Debian: openssh-server)"),
    pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen"),
]
needs_compiler = pytest.mark.skipif(
    c_compiler() is None or shutil.which("make") is None, reason="no C compiler, or no make"
)


@dataclass(frozen=True)
class Remote:
    """An sshd: how to get there, and where it keeps temporary files."""

    target: str
    config: Path
    temporary: Path


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def make_key(path: Path) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True)


@contextmanager
def started_sshd(folder: Path, path: str) -> Iterator[Remote]:
    """An sshd that lets this user in with a key made for it; `path` is what commands see."""
    folder.mkdir()
    port, temporary = free_port(), folder / "tmp"
    temporary.mkdir()
    for name in ("host", "user"):
        make_key(folder / name)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd insists on it, for privilege separation
    settings = f"""
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
SetEnv PATH={path} TMPDIR={temporary}
Subsystem sftp internal-sftp
"""
    (folder / "sshd_config").write_text(settings)
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "ssh_config").write_text(
        f"IdentityFile {folder}/user\nIdentitiesOnly yes\nLogLevel ERROR\n"
        f"UserKnownHostsFile {folder}/known_hosts\nStrictHostKeyChecking yes\n"
    )
    assert SSHD is not None
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    try:
        wait_until_open(server, port, folder / "log")
        target = f"{getpass.getuser()}@127.0.0.1:{port}"
        yield Remote(target, folder / "ssh_config", temporary)
    finally:
        server.terminate()
        server.wait()


def wait_until_open(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and server.poll() is None:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail(f"sshd did not start: {log.read_text()}")


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    with started_sshd(tmp_path_factory.mktemp("ssh") / "full", os.environ["PATH"]) as found:
        yield found


@needs_compiler
def test_the_command_copies_builds_tests_runs_and_fetches(
    remote: Remote, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "there.json"
    command = ["bench", str(RUN), str(OTHER_RUN), "--runtimes", "c", "--rounds", "2"]
    command += ["--ssh", remote.target, "--ssh-config", str(remote.config)]
    command += ["--seconds", "0.02", "--frames", "noise", "-o", str(output), "--json"]
    with pytest.raises(SystemExit) as caught:
        cli.main([*command, "--device-name", "a board"])
    captured = capsys.readouterr()
    assert not caught.value.code, captured.err
    record = read_device_record(output)
    assert json.loads(captured.out) == record.model_dump()
    assert (record.device, record.cores) == ("a board", os.cpu_count())
    assert [row.model for row in record.rows] == [RUN.name, OTHER_RUN.name]
    constants = [weight_bytes(load_export_source(run).student) for run in (RUN, OTHER_RUN)]
    assert [row.file_bytes for row in record.rows] == constants  # each row is its own program's
    for row in record.rows:
        assert row.status == "measured" and len(row.round_medians_us) == 2
        assert row.peak_rss_bytes is not None and row.peak_rss_bytes < 20e6
        assert (row.runtime, row.kernels) == ("c", "portable")
    assert list(remote.temporary.iterdir()) == []


@needs_compiler
def test_a_golden_test_that_fails_there_stops_it_and_leaves_nothing(remote: Remote) -> None:
    model = run_model(RUN)
    wrong = replace(model, integer_outputs=model.integer_outputs + 1)
    with pytest.raises(BenchError, match="golden test fails there: FAILED: vector 1") as caught:
        bench_over_ssh(remote.target, [wrong], SETTINGS, config=remote.config)
    assert "\n" not in str(caught.value)
    assert list(remote.temporary.iterdir()) == []


def test_a_machine_without_a_compiler_is_told_what_to_install(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "mktemp", "rm"):
        (programs / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name}"))
    with started_sshd(tmp_path / "bare", str(programs)) as bare:
        with pytest.raises(BenchError, match="no C compiler there: install gcc"):
            bench_over_ssh(bare.target, [run_model(RUN)], SETTINGS, config=bare.config)
        assert list(bare.temporary.iterdir()) == []


def test_nobody_there_or_nobody_who_knows_us(remote: Remote, tmp_path: Path) -> None:
    closed = SshMachine(f"127.0.0.1:{free_port()}", remote.config)
    with pytest.raises(BenchError, match="Connection refused"):
        closed.run("true\n")
    make_key(tmp_path / "stranger")
    config = tmp_path / "config"
    text = remote.config.read_text()
    config.write_text(text.replace(f"{remote.config.parent}/user\n", f"{tmp_path}/stranger\n"))
    with pytest.raises(BenchError, match="Permission denied"):
        SshMachine(remote.target, config).run("true\n")


@pytest.mark.parametrize("target", ["user@", "-oProxyCommand=x", "a b", "host:port", "u@h:1;true"])
def test_targets_that_are_none(target: str) -> None:
    with pytest.raises(BenchError, match="user@host, or user@host:port"):
        SshMachine(target)


def test_without_ssh_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchError, match="needs ssh, which is not installed here"):
        SshMachine("user@host")
