"""`qpd push`: a student with its model card, to a folder or to the Hugging Face hub."""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

import typer

from qpd.commands.output import AsJson, Quiet, print_json, print_table
from qpd.errors.codes import ErrorCode
from qpd.errors.nearest_name import did_you_mean
from qpd.export.formats import EXPORTERS

# What each format's exporter imports beyond QPD's own dependencies.
_NEEDS = {
    "c": (),
    "onnx": ("onnx",),
    "litert": ("flatbuffers", "ai_edge_litert"),
    "sb3": ("stable_baselines3",),
    "bin": (),
}


def push(
    run: Annotated[Path, typer.Argument(help="run directory")],
    repo: Annotated[str, typer.Argument(metavar="ORG/NAME", help="repository on the hub")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="write the folder but upload nothing; works offline")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="new folder to keep; with --dry-run, default RUN/hub"),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="make a new repository private")
    ] = False,
    formats: Annotated[
        str | None,
        typer.Option(
            "--formats",
            help="some of c,onnx,litert,sb3,bin; default: all that are installed and can be made",
        ),
    ] = None,
    video: Annotated[bool, typer.Option(help="film a game")] = True,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Publish a quantized student on the Hugging Face hub, with a model card."""
    from qpd.hub.contents import (
        can_be_filmed,
        check_new,
        load_push_source,
        made_exports,
        write_hub_folder,
    )
    from qpd.hub.model_card import model_card
    from qpd.hub.push import check_repo_id, hub_client, upload

    check_repo_id(repo)
    exporters = _exporters(formats)
    source = load_push_source(run)
    is_filmed = video and can_be_filmed(source)
    client = None if dry_run else hub_client(repo)
    kept = output or (run / "hub" if dry_run else None)
    if kept is not None:
        check_new(kept)
    exports, left_out = made_exports(source, exporters)
    for name, why in left_out.items():
        if formats is not None:  # it was asked for by name
            raise why
        print(f"{name}: left out: {why}", file=sys.stderr)
    card = model_card(source, repo, list(exports), is_filmed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = kept or Path(temporary) / "hub"
        write_hub_folder(folder, source, card, exports, is_filmed)
        address = None if client is None else upload(client, folder, repo, private)
        if as_json or not quiet:
            _print(folder, repo, address, kept is not None, as_json)


def _exporters(formats: str | None) -> dict[str, Any]:
    """Return the named exporters, or those whose packages are installed."""
    from qpd.hub.contents import HubPushError

    if formats is None:
        chosen = [name for name, needs in _NEEDS.items() if all(map(find_spec, needs))]
    else:
        chosen = list(dict.fromkeys(name.strip() for name in formats.split(",")))
    for name in chosen:
        if name not in _NEEDS:
            raise HubPushError(
                f"--formats {formats}: {name}: one of {', '.join(_NEEDS)}"
                f"{did_you_mean(name, _NEEDS)}",
                ErrorCode.COMMAND_LINE,
            )
    return {name: resolve_name(EXPORTERS[name]) for name in chosen}


def _print(folder: Path, repo: str, address: str | None, is_kept: bool, as_json: bool) -> None:
    from qpd.hub.contents import folder_files

    sizes = folder_files(folder)
    if as_json:
        where = {"folder": str(folder) if is_kept else None, "url": address}
        print_json({"repo": repo, **where, "files": sizes})
        return
    print_table(["file", "bytes"], [[name, f"{size:,}"] for name, size in sizes.items()])
    if address is not None:
        print(address)
    else:
        print(f"{folder}: check its README.md; the same command without --dry-run uploads it")
