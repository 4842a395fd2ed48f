"""Check the built site for broken links and external resources."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Resources that a browser loads by itself, by tag; not links that a reader follows.
_FETCHED = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "iframe": ("src",),
    "embed": ("src",),
    "object": ("data",),
}
_IDLE_LINKS = {"canonical", "prev", "next", "author", "license", "alternate"}
_CSS_URL = re.compile(r"""(?:url\(\s*['"]?|@import\s+['"])((?:https?:)?//[^'")\s]+)""")
# Hosts that scripts commonly load from; addresses in comments and licences don't count.
_CDN_URL = re.compile(
    r"""https?://[^\s"'`<>\\)]*(?:unpkg|jsdelivr|cdnjs|googleapis|gstatic|polyfill)[^\s"'`<>\\)]*"""
)


@dataclass
class _Page(HTMLParser):
    """Ids, links and fetched addresses of a page."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        self.ids |= {known[name] for name in ("id", "name") if name in known}
        if "href" in known:
            self.links.append(known["href"])
        if tag == "link" and known.get("rel") not in _IDLE_LINKS:
            self.fetched.append(known.get("href", ""))
        for name in _FETCHED.get(tag, ()):
            for address in (
                known.get(name, "").split(",") if name == "srcset" else [known.get(name)]
            ):
                self.fetched += (address or "").split()[:1]
        # A missing picture is a broken link as well.
        self.links += [known["src"]] if known.get("src") else []
        self.fetched += _CSS_URL.findall(known.get("style", ""))


def broken_links(site: Path) -> list[str]:
    """Return one line for each broken internal link, image or anchor of the HTML pages."""
    pages = {path.resolve(): _read(path) for path in sorted(site.rglob("*.html"))}
    lines = []
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            reason = _why_broken(link, path, site.resolve(), pages)
            if reason:
                lines.append(f"{path.relative_to(site.resolve())}: {link}: {reason}")
    return lines


def external_resources(site: Path) -> list[str]:
    """Return one line for each external script, style, font or picture of pages and styles."""
    lines = []
    for path in sorted(site.rglob("*.html")):
        lines += [f"{path.relative_to(site)}: {a}" for a in _read(path).fetched if _is_external(a)]
    for path in sorted([*site.rglob("*.css"), *site.rglob("*.html")]):
        found = _CSS_URL.findall(path.read_text(encoding="utf-8"))
        lines += [f"{path.relative_to(site)}: {address}" for address in found]
    return lines


def script_addresses(site: Path) -> set[str]:
    """Return every address of a content delivery network in the site's scripts."""
    found: set[str] = set()
    for path in sorted(site.rglob("*.js")):
        found |= set(_CDN_URL.findall(path.read_text(encoding="utf-8")))
    return found


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    return page


def _is_external(address: str) -> bool:
    return address.startswith("//") or urlsplit(address).scheme in ("http", "https")


def _why_broken(link: str, page: Path, site: Path, pages: dict[Path, _Page]) -> str | None:
    """Return the reason why a link on `page` is broken; None for good and for external links."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    place = unquote(parts.path)
    folder = site if place.startswith("/") else page.parent
    target = (folder / place.lstrip("/")).resolve() if place else page
    if target.is_dir():
        target /= "index.html"
    if not target.is_relative_to(site):
        return "is outside the site"
    if not target.is_file():
        return "there is no such file"
    fragment = unquote(parts.fragment)
    if fragment and target in pages and fragment not in pages[target].ids:
        return "there is no such anchor"
    return None
