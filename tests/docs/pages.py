"""The pages of the documents, taken apart: links, headings, blocks of code, commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)(?P=ticks) *$",
    re.M | re.S,
)
_SNIPPET = re.compile(r'^ *--8<-- "(?P<path>[^"]+)"$', re.M)
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^(#+) +(.+?)(?: +#+)?$", re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.strip().splitlines()[0][:60]}"


def pages() -> list[Path]:
    """Return every page of the repository's documents, those of the root included."""
    return [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """Return the fenced blocks of a page; snippets in them are put in."""
    found = []
    for match in _FENCE.finditer(page.read_text(encoding="utf-8")):
        name = match["info"].strip().split(" ")[0]
        indent = len(match["indent"])
        lines = [line[indent:] for line in match["body"].splitlines()]
        text = _SNIPPET.sub(lambda hit: (ROOT / hit["path"]).read_text(), "\n".join(lines) + "\n")
        found.append(Block(page, name, text))
    return [block for block in found if language is None or block.language == language]


def snippets(page: Path) -> list[str]:
    """Return the files that a page shows."""
    return [match["path"] for match in _SNIPPET.finditer(page.read_text(encoding="utf-8"))]


def prose(page: Path) -> str:
    """Return a page without its blocks of code, fenced and in lines."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"`[^`\n]*`", lambda hit: "x" * len(hit[0]), text)


def links(page: Path) -> list[str]:
    """Return the targets of a page's links."""
    return [match["target"] for match in _LINK.finditer(prose(page))]


def anchors(page: Path) -> set[str]:
    """Return what a link may name after `#`: the headings of a page, as slugs."""
    found: set[str] = set()
    for _, title in _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        slug = slug_of(title)
        number = 1
        while slug in found:
            slug = f"{slug_of(title)}-{number}"
            number += 1
        found.add(slug)
    return found


def slug_of(title: str) -> str:
    """Return the anchor of a heading, as on the site and on the hosts of repositories.

    >>> slug_of("For programs: `--json`")
    'for-programs---json'
    """
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
    return re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
