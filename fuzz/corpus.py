"""Keep what fuzzing found, in `corpus.zip`: `python -m fuzz.corpus extract|add|replace ...`.

A member is TARGET/NAME, its name the SHA-1 of its bytes, as libFuzzer names what it finds. The
archive's bytes depend on nothing but what is kept: members lie in order, without dates, and stored,
as compressors differ between versions of zlib (git compresses them anyway).
"""

import argparse
import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from qpd.files.atomic import write_bytes

ARCHIVE = Path(__file__).with_name("corpus.zip")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def read_corpus(archive: Path = ARCHIVE) -> dict[str, dict[str, bytes]]:
    """Return the kept inputs of each target by name, both in order."""
    kept: dict[str, dict[str, bytes]] = {}
    with zipfile.ZipFile(archive) as opened:
        for member in sorted(opened.namelist()):
            target, _, name = member.partition("/")
            kept.setdefault(target, {})[name] = opened.read(member)
    return kept


def write_corpus(inputs: Mapping[str, Sequence[bytes]], archive: Path = ARCHIVE) -> None:
    """Keep exactly these inputs of each target; what is given twice is kept once."""
    members = {
        f"{target}/{hashlib.sha1(content).hexdigest()}": content
        for target, contents in inputs.items()
        for content in contents
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        for member, content in sorted(members.items()):
            info = zipfile.ZipInfo(member, _EPOCH)
            info.create_system = 3  # as on Unix, on Windows too
            opened.writestr(info, content)
    write_bytes(archive, buffer.getvalue())


def extract(folder: Path, archive: Path = ARCHIVE) -> None:
    """Write each input to FOLDER/TARGET/NAME."""
    for target, inputs in read_corpus(archive).items():
        (folder / target).mkdir(parents=True, exist_ok=True)
        for name, content in inputs.items():
            (folder / target / name).write_bytes(content)


def main(arguments: Sequence[str] | None = None, archive: Path = ARCHIVE) -> None:
    """Parse the command line and do what it says."""
    kept = {target: list(inputs.values()) for target, inputs in read_corpus(archive).items()}
    parser = argparse.ArgumentParser(prog="python -m fuzz.corpus")
    commands = parser.add_subparsers(dest="command", required=True)
    out = commands.add_parser("extract", help="write all inputs to FOLDER/TARGET/NAME")
    out.add_argument("folder", type=Path)
    for name, text in (("add", "keep these files too"), ("replace", "keep only these files")):
        command = commands.add_parser(name, help=f"{text} for TARGET")
        command.add_argument("target", choices=list(kept))
        command.add_argument("files", type=Path, nargs="+", metavar="FILE")
    asked = parser.parse_args(arguments)
    if asked.command == "extract":
        extract(asked.folder, archive)
        return
    before = kept[asked.target] if asked.command == "add" else []
    kept[asked.target] = [*before, *(file.read_bytes() for file in asked.files)]
    write_corpus(kept, archive)
    print(f"{asked.target}: {len(read_corpus(archive)[asked.target])} inputs are kept")


if __name__ == "__main__":
    main()
