"""The mkdocs hook: generated pages, files of the repository as pages, quoted tables, equations."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent

# Files of the repository that are pages of the site: page -> file.
INCLUDED = {
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "reference-runs.md": "runs-reference/README.md",
    "benchmarks.md": "benchmarks/README.md",
}
# `<!-- table from README.md: first header cell -->` on a line of its own.
_TABLE = re.compile(r"^<!-- table from (\S+): (.+?) -->$", re.MULTILINE)
# Output of pymdownx.arithmatex (generic) for $...$ and $$...$$.
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_startup(**_: object) -> None:
    """Make this checkout importable: mkdocs loads this file by path, from any folder."""
    sys.path.insert(0, str(ROOT))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files in docs/."""
    from docs_build.cli_reference import cli_page
    from docs_build.error_reference import errors_page
    from docs_build.recipe_reference import (
        recipe_keys_page,
        shipped_recipes_page,
        training_keys_page,
    )

    pages = {
        "reference/recipe-keys.md": recipe_keys_page(),
        "reference/training-keys.md": training_keys_page(),
        "reference/shipped-recipes.md": shipped_recipes_page(),
        "reference/cli.md": cli_page(),
        "reference/errors.md": errors_page(),
    }
    for page, source in INCLUDED.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        pages[page] = text.replace("](../docs/", "](")
    for page, content in pages.items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Insert the tables that pages quote from files of the repository, and link to pages of it.

    In docs/ links name the files, so that they lead somewhere on a Git host, too.
    """
    for page, source in INCLUDED.items():
        markdown = markdown.replace(f"](../{source}", f"]({page}")
    return _TABLE.sub(lambda found: _quoted(found[1], found[2]), markdown)


def on_page_content(html: str, **_: object) -> str:
    """Render the equations of a page."""
    return render_equations(html)


def render_equations(page: str) -> str:
    """Return the HTML of a page with every LaTeX formula replaced by MathML."""
    page = _INLINE.sub(lambda found: _mathml(found[1], "inline"), page)
    return _DISPLAY.sub(
        lambda found: f'<div class="equation">{_mathml(found[1], "block")}</div>', page
    )


def _mathml(latex: str, display: str) -> str:
    return convert(html.unescape(latex).strip(), display=display)


def _quoted(source: str, first_cell: str) -> str:
    from docs_build.markdown import find_table

    try:
        return find_table((ROOT / source).read_text(encoding="utf-8"), first_cell)
    except (OSError, ValueError) as error:
        raise PluginError(f"a page quotes a table from {source}: {error}") from error
