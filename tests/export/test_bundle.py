"""Export folders: complete, described by their manifest, and never over something else."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from qpd.cli import main
from qpd.export.bundle import (
    ExportError,
    ExportSource,
    golden_vectors,
    load_export_source,
    write_bundle,
)
from qpd.integer.integer_student import IntegerEngine
from tests.command_line import call

RUNS = Path(__file__).resolve().parents[2] / "runs-reference"
XXS = RUNS / "breakout-ppo-xxs"


@pytest.fixture(scope="module")
def source() -> ExportSource:
    return load_export_source(XXS)


def test_manifest_describes_every_file(source: ExportSource, tmp_path: Path) -> None:
    write_bundle(tmp_path / "out", "c", source, {"a.c": b"int x;", "sub/b.h": b""})
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["target"] == "c" and manifest["student"] == "breakout-ppo-xxs"
    assert manifest["weight_bits"] == [8] * 5
    for name, entry in manifest["files"].items():
        content = (tmp_path / "out" / name).read_bytes()
        assert entry == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert set(manifest["files"]) == {"a.c", "sub/b.h"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_a_former_export_is_replaced_whole(source: ExportSource, tmp_path: Path) -> None:
    write_bundle(tmp_path / "out", "c", source, {"old.c": b"1"})
    write_bundle(tmp_path / "out", "c", source, {"new.c": b"2"})
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == ["manifest.json", "new.c"]


@pytest.mark.parametrize("there", ["onnx export", "notes", "run directory"])
def test_something_else_is_never_overwritten(
    source: ExportSource, tmp_path: Path, there: str
) -> None:
    folder = tmp_path / "out"
    if there == "onnx export":
        write_bundle(folder, "onnx", source, {"student.onnx": b"1"})
    else:
        folder.mkdir()
        name = "manifest.json" if there == "run directory" else "notes.txt"
        (folder / name).write_text('{"format_version": 1}')
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    with pytest.raises(ExportError, match="name a new folder"):
        write_bundle(folder, "c", source, {"a.c": b"2"})
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_files_of_the_users_own_stay_and_what_was_built_goes(
    source: ExportSource, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    write_bundle(folder, "c", source, {"a.c": b"1", "former.c": b"1"})
    for name in ("main.c", "mine/build/notes.txt", "build/host/qpd_test", "mine/__pycache__/a.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"mine")
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("main.c")
    write_bundle(folder, "c", source, {"a.c": b"2"})
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    assert found == {"a.c", "manifest.json", "main.c", "mine/build/notes.txt", "link"}
    assert (folder / "a.c").read_bytes() == b"2" and (folder / "link").read_bytes() == b"mine"
    # A file of the export that somebody changed is no longer only the export's.
    (folder / "a.c").write_bytes(b"3")
    with pytest.raises(ExportError, match=r"a\.c: was changed since it was exported; move it away"):
        write_bundle(folder, "c", source, {"a.c": b"4"})
    assert (folder / "a.c").read_bytes() == b"3"


@pytest.mark.parametrize("files", ['{"a.c": 1}', "7", "[]", '{"a.c": {"sha256": 3}}'])
def test_a_manifest_that_no_export_wrote_protects_what_is_there(
    files: str, source: ExportSource, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "a.c").write_bytes(b"mine")
    manifest = f'{{"format": "qpd-export", "target": "c", "files": {files}}}'
    (folder / "manifest.json").write_text(manifest)
    with pytest.raises(ExportError, match="holds something that is not an export|was changed"):
        write_bundle(folder, "c", source, {"a.c": b"1"})
    assert (folder / "a.c").read_bytes() == b"mine"


def test_a_file_of_the_users_own_is_not_replaced_by_one_that_is_new(
    source: ExportSource, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    write_bundle(folder, "c", source, {"a.c": b"1"})
    (folder / "qpd_sample.c").write_bytes(b"mine")
    with pytest.raises(ExportError, match=r"out/qpd_sample\.c: is not the earlier export's"):
        write_bundle(folder, "c", source, {"a.c": b"2", "qpd_sample.c": b"2"})
    found = {path.name: path.read_bytes() for path in folder.glob("*.c")}
    assert found == {"a.c": b"1", "qpd_sample.c": b"mine"}


def test_an_export_into_a_link_is_written_where_it_leads(
    source: ExportSource, tmp_path: Path
) -> None:
    (tmp_path / "libraries" / "QPD").mkdir(parents=True)
    link = tmp_path / "out"
    link.symlink_to(tmp_path / "libraries" / "QPD")
    for content in (b"1", b"2"):
        write_bundle(link, "c", source, {"a.c": content})
        assert link.is_symlink()
        assert (tmp_path / "libraries" / "QPD" / "a.c").read_bytes() == content
    assert sorted(p.name for p in tmp_path.iterdir()) == ["libraries", "out"]
    assert [p.name for p in (tmp_path / "libraries").iterdir()] == ["QPD"]


def test_a_failed_export_leaves_the_former_one(source: ExportSource, tmp_path: Path) -> None:
    write_bundle(tmp_path / "out", "c", source, {"a.c": b"1"})
    with pytest.raises(ValueError, match="not a valid name"):
        write_bundle(tmp_path / "out", "c", source, {"b.c": b"2", "../evil": b"3"})
    assert (tmp_path / "out" / "a.c").read_bytes() == b"1"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_golden_vectors_tell_students_apart(source: ExportSource) -> None:
    golden = golden_vectors(source.student)
    assert golden.observations.shape == (16, 4, 84, 84) and golden.observations.dtype == np.uint8
    assert golden.logits.dtype == np.int32
    assert len(np.unique(golden.logits, axis=0)) >= 14
    assert len(np.unique(golden.logits.argmax(1))) > 1
    engine = IntegerEngine(source.student)
    assert (engine.integer_outputs(golden.observations) == golden.logits).all()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--format", "cobol"], "--format cobol: one of c, onnx, litert, sb3, bin"),
        (["--format", "c", "-o", "{here}"], "holds something that is not an export"),
    ],
)
def test_wrong_input_is_one_line(
    arguments: list[str],
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit) as stopped:
        main(["export", str(XXS), *[a.format(here=tmp_path) for a in arguments]])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert line in error and error.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_command_writes_the_folder_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = XXS / "quantized.safetensors"
    with pytest.raises(SystemExit) as stopped:
        main(["export", str(file), "--format", "c", "-o", str(tmp_path / "out"), "--json"])
    assert stopped.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["folder"] == str(tmp_path / "out")
    for name, size in printed["files"].items():
        assert (tmp_path / "out" / name).stat().st_size == size
    assert {"qpd.h", "Makefile", "README.md"} <= set(printed["files"])
    assert set(printed["files"]) == {path.name for path in (tmp_path / "out").iterdir()}


def test_the_table_names_every_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said, _ = call(capsys, "export", XXS, "--format", "c", "-o", tmp_path / "out")
    assert code == 0
    first_words = {line.split()[0]: line.split() for line in said.splitlines() if line.strip()}
    for path in (tmp_path / "out").iterdir():
        assert first_words[path.name][-1] == f"{path.stat().st_size:,}"


def test_another_student_of_a_run_has_a_folder_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("quantized.safetensors", "ptq.safetensors"):
        shutil.copy(XXS / "quantized.safetensors", tmp_path / name)
        code, _, err = call(capsys, "export", tmp_path / name, "--format", "bin")
        assert code == 0, err
    assert sorted(p.name for p in (tmp_path / "exports").iterdir()) == ["bin", "ptq-bin"]


def test_a_folders_hidden_characters_are_shown(tmp_path: Path) -> None:
    run = tmp_path / "a\x1b[31mb"
    run.mkdir()
    shutil.copyfile(
        RUNS / "classic-ppo-cartpole/quantized.safetensors", run / "quantized.safetensors"
    )
    assert load_export_source(run).name == r"a\x1b[31mb"
