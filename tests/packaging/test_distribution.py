"""The wheel and the sdist: built, and used in an empty environment outside the repository."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


NEEDS_AN_EXTRA = [
    ("sweep mini-grid -o new", "sweep"),
    ("analyze sizes run -o new", "analysis"),
    ("report run -o new.html", "analysis"),
    ("export run --format onnx -o new", "onnx"),
    ("export run --format litert -o new", "litert"),
    ("export run --format sb3 -o new", "train"),
    ("teacher train ppo CartPole-v1 -o new", "train"),
]


def run(*command: str | Path, cwd: Path, code: int = 0) -> str:
    """What a command prints, in an environment that does not know the repository."""
    unwanted = ("PYTHONPATH", "VIRTUAL_ENV")
    environment = {key: value for key, value in os.environ.items() if key not in unwanted}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def pip_into(environment: Path, *arguments: str | Path) -> None:
    run(environment / "bin" / "pip", "install", "--quiet", *arguments, cwd=environment)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    source, builder = folder / "source", folder / "builder"
    run("git", "clone", "--quiet", ROOT, source, cwd=folder)
    venv.create(builder, with_pip=True)
    pip_into(builder, "build")
    run(builder / "bin" / "python", "-m", "build", "--outdir", folder / "dist", source, cwd=folder)
    return folder / "dist"


def test_both_hold_every_file_that_git_has_of_the_packages(built: Path) -> None:
    listed = run("git", "ls-files", "qpd", "teachers", "students", "analysis", "recipes", cwd=ROOT)
    wanted = {path for path in listed.split() if "notebooks" not in path}
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    assert not wanted - packed and not wanted - sources
    assert not [name for name in packed if name.startswith(("tests/", "benchmarks/", "docs"))]


def test_the_wheel_works_with_only_what_it_declares(built: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    wheel = next(built.glob("*.whl"))
    # PyTorch first: what is installed already is kept, and the newest may bring CUDA.
    pip_into(environment, "torch==2.13.0")
    pip_into(environment, "-c", ROOT / "constraints.txt", wheel)
    pip, qpd = environment / "bin" / "pip", environment / "bin" / "qpd"
    assert "No broken requirements" in run(pip, "check", cwd=tmp_path)
    place = run(
        environment / "bin" / "python", "-c", "import qpd; print(qpd.__file__)", cwd=tmp_path
    )
    assert Path(place.strip()).is_relative_to(environment)

    assert run(qpd, "--version", cwd=tmp_path).startswith("qpd 0.")
    report = json.loads(run(qpd, "doctor", "--json", cwd=tmp_path))
    states = {(one["topic"], one["name"]): one["state"] for one in report["checks"]}
    assert report["healthy"] and states["extras", "sweep"] == "missing"

    run(qpd, "run", "ci", "-o", "run", cwd=tmp_path)
    run(qpd, "export", "run", "--format", "c", "-o", "c", cwd=tmp_path)
    run("make", "-C", "c", "test", cwd=tmp_path)

    for command, extra in NEEDS_AN_EXTRA:
        said = run(qpd, *command.split(), cwd=tmp_path, code=2)
        assert f'pip install "qpd[{extra}]"' in said and len(said.splitlines()) == 1, said
        assert not list(tmp_path.glob("new*")), command
