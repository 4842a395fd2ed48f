"""`qpd doctor`: a check of the installation."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from qpd.commands.output import AsJson, print_json, print_table
from qpd.fpga.tools import find_tool, remedy_for
from qpd.machine.cores import usable_cores
from qpd.machine.description import c_compiler, cpu_model, system
from qpd.version import DISTRIBUTION, __version__, pip_install

if TYPE_CHECKING:
    from packaging.requirements import Requirement


def doctor(as_json: AsJson = False) -> None:
    """Check packages, machine and tools, and what is missing; exit with 1 if QPD cannot work."""
    checks = examine()
    if as_json:
        print_json(report(checks))
    else:
        rows = [[one.topic, one.name, one.state, one.detail, one.remedy] for one in checks]
        print_table(["", "", "", "found", "what to do"], rows)
    if not is_healthy(checks):
        raise typer.Exit(1)


State = Literal["ok", "missing", "broken"]
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_GIB = 1 << 30
# Instruction sets that decide how fast QPD is: bfloat16 trains, float16 is converted (f16c) or
# computed by the processor itself, the others run exported students.
_CPU_FLAGS = (
    "avx2", "avx512_bf16", "amx_bf16", "f16c", "avx512_fp16", "amx_fp16", "asimdhp", "avx512_vnni",
    "avx_vnni", "asimddp", "i8mm",
)  # fmt: skip


@dataclass(frozen=True)
class Check:
    """One line of the report; `remedy` says what to do, and is empty if nothing is needed.

    `broken` is something that QPD cannot do without, `missing` something that some commands use.
    """

    topic: str
    name: str
    state: State
    detail: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the check as plain data."""
        return asdict(self)


def examine() -> list[Check]:
    """Run all checks once; takes a few seconds and writes nothing."""
    return [*_machine(), *_packages(), *_tools(), *_working()]


def is_healthy(checks: list[Check]) -> bool:
    """Return whether QPD's core can work here."""
    return all(check.state != "broken" for check in checks)


def _machine() -> Iterator[Check]:
    yield Check("machine", "system", "ok", system())
    yield Check("machine", "processor", "ok", f"{cpu_model()}, {usable_cores()} usable cores")
    flags = [flag for flag in _CPU_FLAGS if flag in _cpu_words()]
    yield Check("machine", "instructions", "ok", " ".join(flags) or "none of those QPD looks for")
    memory = _memory()
    if memory is not None:
        total, available = memory
        detail = f"{total / _GIB:.1f} GiB, {available / _GIB:.1f} GiB available"
        yield Check("machine", "memory", "ok", detail)
    free = shutil.disk_usage(Path.cwd()).free
    yield Check("machine", "disk here", "ok", f"{free / _GIB:.1f} GiB free")


def _cpu_words() -> set[str]:
    try:
        return set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return set()


def _memory() -> tuple[int, int] | None:
    """Return total and available bytes, None without /proc."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}
    return kib["MemTotal"] * 1024, kib.get("MemAvailable", kib["MemFree"]) * 1024


def _packages() -> Iterator[Check]:
    from packaging.requirements import Requirement

    yield Check("packages", "python", "ok", platform.python_version())
    extras: dict[str, list[str]] = {}
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        remedy = (
            f"pip install -c constraints.txt -e . in QPD's checkout, or pip install {DISTRIBUTION}"
        )
        yield Check("packages", DISTRIBUTION, "broken", f"{__version__}, not installed", remedy)
        return
    yield Check("packages", DISTRIBUTION, "ok", f"{__version__} in {Path(__file__).parents[1]}")
    for line in lines:
        requirement = Requirement(line)
        extra = _EXTRA.search(str(requirement.marker or ""))
        if extra is not None:
            extras.setdefault(extra.group(1), []).append(line)
        elif requirement.marker is None or requirement.marker.evaluate():
            yield requirement_check("packages", requirement)
    for name, members in sorted(extras.items()):
        yield extra_check(name, [Requirement(line) for line in members])
    if _version("huggingface_sb3") is not None:
        remedy = "pip uninstall huggingface_sb3; pip install --force-reinstall rl_zoo3"
        detail = "overwrites a module that the RL Zoo needs"
        yield Check("packages", "huggingface_sb3", "broken", detail, remedy)
    yield from namesake_checks(_version("qpd"))


def namesake_checks(version: str | None) -> Iterator[Check]:
    """Check that the index's other `qpd`, whose modules would mix with QPD's, is not installed.

    `version` is the one installed, or None.
    """
    if version is not None:
        remedy = f"pip uninstall qpd; pip install --force-reinstall {DISTRIBUTION}"
        detail = f"{version}: another project's package of this name (or QPD before its renaming)"
        yield Check("packages", "qpd", "broken", detail, remedy)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _fits(requirement: Requirement) -> bool:
    found = _version(requirement.name)
    return found is not None and requirement.specifier.contains(found, prereleases=True)


def _lacking(requirement: Requirement, inside: tuple[str, ...] = ()) -> list[str]:
    """Return what a requirement lacks: packages, also of its own extras, or versions that fit."""
    from packaging.requirements import Requirement

    if not _fits(requirement):
        found = _version(requirement.name)
        wrong = "" if found is None else f"{requirement.specifier} (here: {found})"
        return [f"{requirement.name}{wrong}"]
    lacking: list[str] = []
    for extra in requirement.extras - set(inside):
        for line in metadata.requires(requirement.name) or []:
            member = Requirement(line)
            marker = member.marker
            if marker is None or marker.evaluate({"extra": ""}):
                continue
            if marker.evaluate({"extra": extra}):
                lacking += _lacking(member, (*inside, extra))
    return lacking


def requirement_check(topic: str, requirement: Requirement) -> Check:
    """Check that a package QPD needs is installed, in a version that fits."""
    found = _version(requirement.name)
    if _fits(requirement):
        return Check(topic, requirement.name, "ok", found or "")
    wanted = f"{requirement.name}{requirement.specifier}"
    detail = f"{found or 'not installed'}; needed {requirement.specifier or 'any version'}"
    return Check(topic, requirement.name, "broken", detail, f'pip install "{wanted}"')


def extra_check(name: str, requirements: list[Requirement]) -> Check:
    """Check that all packages of an extra are installed, except QPD's own extras inside it."""
    direct = [one for one in requirements if one.name.lower() != DISTRIBUTION]
    applies = [one for one in direct if one.marker is None or one.marker.evaluate({"extra": name})]
    lacking = list(dict.fromkeys(name for one in applies for name in _lacking(one)))
    if lacking:
        detail = f"without {', '.join(lacking)}"
        return Check("extras", name, "missing", detail, pip_install(name))
    return Check("extras", name, "ok", ", ".join(one.name for one in applies))


def _tools() -> Iterator[Check]:
    compiler = c_compiler()
    if compiler is None:
        remedy = (
            "install gcc or clang; `qpd export --format c` works without, `qpd bench` skips C, and "
            "training in few bits of floating point takes longer"
        )
        yield Check("tools", "C compiler", "missing", "none on PATH", remedy)
    else:
        yield Check("tools", "C compiler", "ok", compiler)
    if shutil.which("ssh") is None:
        remedy = "install an OpenSSH client for `qpd bench --ssh`"
        yield Check("tools", "ssh", "missing", "not on PATH", remedy)
    else:
        yield Check("tools", "ssh", "ok", "on PATH")
    for tool in ("yosys", "nextpnr-ecp5", "nextpnr-ice40", "verilator"):
        found = find_tool(tool)
        remedy = "" if found else f"`qpd fpga` needs it: {remedy_for(tool)}"
        yield Check("tools", tool, "ok" if found else "missing", found or "not found", remedy)


def _working() -> Iterator[Check]:
    """Try the things that every run does, each for a moment."""
    for name, probe, remedy in (
        ("PyTorch", _try_torch, "pip install torch, see https://pytorch.org/get-started/locally/"),
        ("Breakout", _try_breakout, 'pip install "gymnasium[atari]" ale-py'),
        ("embedded teacher", _try_teacher, "reinstall QPD: one of its files is damaged"),
    ):
        try:
            yield Check("working", name, "ok", probe())
        except Exception as error:  # whatever is wrong there is what is to be reported
            detail = " ".join(f"{type(error).__name__}: {error}".split())
            yield Check("working", name, "broken", detail[:200], remedy)


def _try_torch() -> str:
    import torch

    from qpd.numerics.precision import has_bfloat16_units

    detail = f"{torch.get_num_threads()} threads"
    detail += ", bfloat16" if has_bfloat16_units("cpu") else ", no bfloat16 units: fp32"
    if not torch.cuda.is_available():
        return f"{detail}; no CUDA device"
    count = torch.cuda.device_count()
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(count))
    torch.ones(1, device="cuda").item()
    return f"{detail}; CUDA {torch.version.cuda}: {names}"


def _try_breakout() -> str:
    import numpy as np

    from qpd.environments.registry import make_vector_env

    env = make_vector_env("BreakoutNoFrameskip-v4", 1)
    try:
        env.reset(0)
        env.step(np.zeros(1, np.int64))
    finally:
        env.close()
    return f"plays, in ale-py {metadata.version('ale-py')}"


def _try_teacher() -> str:
    from qpd.teachers import load_teacher

    teacher = load_teacher("embedded")
    return f"{teacher.num_parameters:,} parameters, sha256 {teacher.sha256[:12]}"


def report(checks: list[Check]) -> dict[str, Any]:
    """Return the checks as plain data, for --json."""
    return {"healthy": is_healthy(checks), "checks": [check.to_json() for check in checks]}
