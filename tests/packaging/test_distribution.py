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
LINKED = ("analysis", "recipes", "students", "teachers")
pytestmark = pytest.mark.slow


NEEDS_AN_EXTRA = [
    ("sweep mini-grid -o new", "sweep"),
    ("analyze sizes run -o new", "analysis"),
    ("report run -o new.html", "analysis"),
    ("export run --format onnx -o new", "onnx"),
    ("export run --format litert -o new", "litert"),
    ("export run --format sb3 -o new", "train"),
    ("train ppo CartPole-v1 -o new", "train"),
]


def run(*command: str | Path, cwd: Path, code: int = 0) -> str:
    """Return what a command prints where Python does not know the repository."""
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
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone beside another project that has a module and a package of our folders' names."""
    folder = tmp_path_factory.mktemp("projects")
    foreign_modules(folder)
    run("git", "clone", "--quiet", ROOT, folder / "qpd-checkout", cwd=folder)
    return folder / "qpd-checkout"


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    builder = folder / "builder"
    venv.create(builder, with_pip=True)
    pip_into(builder, "build")
    run(builder / "bin" / "python", "-m", "build", "--outdir", folder / "dist", source, cwd=folder)
    return folder / "dist"


@pytest.fixture(scope="module")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, what it declares, and mypy."""
    environment = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(environment, with_pip=True)
    wheel = next(built.glob("*.whl"))
    # PyTorch first: what is installed already is kept, and the newest may bring CUDA.
    pip_into(environment, "torch==2.13.0")
    pip_into(environment, "-c", ROOT / "constraints.txt", wheel)
    assert "No broken requirements" in run(environment / "bin" / "pip", "check", cwd=environment)
    pip_into(environment, "-c", ROOT / "constraints.txt", "mypy")
    return environment


@pytest.fixture(scope="module")
def editable(environment: Path, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the clone, editable; it has the rest from the wheel's environment."""
    editable = tmp_path_factory.mktemp("editable") / "venv"
    venv.create(editable, with_pip=True)
    pip_into(editable, "--no-deps", "--editable", source)
    (others,) = environment.glob("lib/python*/site-packages")
    (own,) = editable.glob("lib/python*/site-packages")
    (own / "others.pth").write_text(f"{others}\n")
    return editable


def foreign_modules(folder: Path) -> None:
    """Put modules there that are called as our folders are, and that nobody may import."""
    for name in ("analysis", "recipes", "teachers"):
        (folder / f"{name}.py").write_text(f"raise SystemExit('another project: {name}')\n")
    (folder / "students").mkdir()
    (folder / "students" / "__init__.py").write_text("raise SystemExit('another project')\n")


def packaged_files() -> set[str]:
    """Map git's files of the packages, but notebooks, by their paths in an installation."""
    listed = run("git", "ls-files", "qpd", *LINKED, cwd=ROOT).splitlines()
    links = {f"qpd/{name}" for name in LINKED}
    paths = {path if path.startswith("qpd/") else f"qpd/{path}" for path in listed}
    return {path for path in paths - links if "/notebooks/" not in path}


def test_both_hold_what_git_has_of_the_packages_and_nothing_else(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        packed = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert sorted(packed) == sorted(packaged_files())
    with tarfile.open(sdist) as archive:
        members = [member for member in archive.getmembers() if not member.isdir()]
    assert all(member.isfile() for member in members)  # no links
    sources = [member.name.partition("/")[2] for member in members]
    inside = [name for name in sources if name.startswith("src/qpd/")]
    assert sorted(inside) == sorted(f"src/{name}" for name in packaged_files())
    assert {name for name in sources if not name.startswith("src/")} == {
        "CHANGELOG.md",
        "LICENSE",
        "MANIFEST.in",
        "PKG-INFO",
        "README.md",
        "constraints.txt",
        "pyproject.toml",
        "setup.cfg",
        "setup.py",
    }


@pytest.mark.parametrize("kind", ["environment", "editable"])
def test_a_script_with_the_package_beside_other_modules_of_the_same_names(
    kind: str, request: pytest.FixtureRequest, source: Path, tmp_path: Path
) -> None:
    """It runs and is type-checked, from the wheel and from an editable checkout."""
    python = request.getfixturevalue(kind) / "bin" / "python"
    foreign_modules(tmp_path)
    student = ROOT / "runs-reference" / "classic-ppo-cartpole"
    (tmp_path / "script.py").write_text(
        "import numpy as np\n"
        "import qpd\n"
        "from qpd.teachers import Teacher, load_teacher\n"
        f"policy = qpd.load_student_policy({str(student)!r})\n"
        "action, _ = policy.predict(np.zeros(4, np.float32), deterministic=True)\n"
        "teacher: Teacher = load_teacher('embedded')\n"
        "print(qpd.__file__, int(action) in (0, 1), teacher.num_parameters > 1000)\n"
    )
    for folder in (tmp_path, source.parent):
        place, *rest = run(python, tmp_path / "script.py", cwd=folder).split()
        home = source if kind == "editable" else python.parents[1]
        assert Path(place).is_relative_to(home) and rest == ["True", "True"]
    run(python, "-c", "import qpd; qpd.load_student_policy", cwd=source.parent)

    (tmp_path / "typed.py").write_text(
        "from qpd.teachers import load_teacher\n"
        "reveal_type(load_teacher('embedded').num_parameters)\n"
    )
    said = run(python, "-m", "mypy", "typed.py", cwd=tmp_path)
    assert 'Revealed type is "int"' in said and "Success" in said


def test_links_that_git_wrote_as_text_stop_import_and_build(built: Path, tmp_path: Path) -> None:
    """As on Windows without its developer mode; what the message says repairs it."""
    clone, python = tmp_path / "clone", built.parent / "builder" / "bin" / "python"
    run("git", "clone", "--quiet", "-c", "core.symlinks=false", ROOT, clone, cwd=tmp_path)
    said = run(python, "-c", "import qpd.teachers", cwd=clone, code=1)
    assert "ImportError: qpd/teachers is a text file, not a link: git config" in said
    command = (python, "-m", "build", "--wheel", "--outdir", tmp_path / "dist", clone)
    said = run(*command, cwd=tmp_path, code=1)
    assert "src/qpd is no folder: git config core.symlinks true" in said
    run("git", "config", "core.symlinks", "true", cwd=clone)
    run("git", "checkout", "--quiet", "-f", "HEAD", cwd=clone)
    assert (clone / "src" / "qpd" / "teachers" / "sb3_teacher.py").is_file()


def test_the_wheel_works_with_only_what_it_declares(environment: Path, tmp_path: Path) -> None:
    qpd = environment / "bin" / "qpd"
    assert run(qpd, "--version", cwd=tmp_path).startswith("qpd 0.")
    report = json.loads(run(qpd, "doctor", "--json", cwd=tmp_path))
    states = {(one["topic"], one["name"]): one["state"] for one in report["checks"]}
    assert report["healthy"] and states["extras", "sweep"] == "missing"

    run(qpd, "run", "ci", "-o", "run", cwd=tmp_path)
    run(qpd, "export", "run", "--format", "c", "-o", "c", cwd=tmp_path)
    run("make", "-C", "c", "test", cwd=tmp_path)

    for command, extra in NEEDS_AN_EXTRA:
        said = run(qpd, *command.split(), cwd=tmp_path, code=2)
        assert f'pip install "qpd-rl[{extra}]"' in said and len(said.splitlines()) == 1, said
        assert not list(tmp_path.glob("new*")), command
