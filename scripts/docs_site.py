"""What the site of `make docs` has beside the files of docs/: hooks of MkDocs.

`ADD ...` in the nav of mkdocs.yml stands for pages that are made here: one for each public module,
from its docstrings; the decisions; the notebooks, as they ran; files of the repository's root.
Tables that are made from the code are filled (`scripts/docs_tables.py`). When the site is built, it
is looked at once more: the reference has the public names and no others, and no page takes anything
from another host.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from mkdocs.exceptions import PluginError  # noqa: E402
from mkdocs.structure.files import File, Files  # noqa: E402
from pymdownx.slugs import slugify  # noqa: E402

from scripts.docs_pages import (  # noqa: E402
    ROOT_PAGES,
    SURFACE,
    decisions,
    decisions_page,
    linked_names,
    notebook_page,
    notebooks,
    reference_page,
    reference_path,
)
from scripts.docs_tables import filled  # noqa: E402

ADD = "ADD "
# Pages of wide tables and few headings.
WIDE = ("configuration.md", "errors.md", "coming-from/storm.md", "coming-from/flink-bytewax.md")
_CODE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)*(?:examples|src|tests|scripts|benchmarks|deploy)/[^)]*\)"
)
_FOREIGN = re.compile(
    r"<(?:script|img|iframe|source|video)\b[^>]*\ssrc=\"?(?:https?:)?//[^>]*>"
    r"|<link\b[^>]*\brel=\"?(?:stylesheet|preconnect|preload|icon)\b[^>]*href=\"?(?:https?:)?//[^>]*>"
)


def on_config(config: Any) -> Any:
    """Put the pages that are made here into the navigation."""
    # As in the repository: "For programs: `--json`" is #for-programs---json.
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    config.nav = [_added(entry) for entry in config.nav]
    return config


def _added(entry: Any) -> Any:
    match entry:
        case dict():
            return {title: _added(below) for title, below in entry.items()}
        case list():
            return [_added(each) for each in entry]
        case str() if entry.startswith(ADD):
            return _pages_of(entry.removeprefix(ADD))
        case _:
            return entry


def _pages_of(what: str) -> Any:
    match what:
        case "modules":
            return [{module: reference_path(module)} for module in SURFACE]
        case "decisions":
            return ["decisions/index.md", *(f"decisions/{path.name}" for path in decisions())]
        case "notebooks":
            return [f"notebooks/{path.stem}.md" for path in notebooks()]
        case _:
            return ROOT_PAGES[what]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    for module in SURFACE:
        files.append(_made(config, reference_path(module), reference_page(module)))
    files.append(_made(config, "decisions/index.md", decisions_page()))
    for path in notebooks():
        files.append(_made(config, f"notebooks/{path.stem}.md", notebook_page(path)))
    for name, page in ROOT_PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(_made(config, page, re.sub(r"(\]\()docs/", r"\1", text)))
    return files


def _made(config: Any, path: str, text: str) -> File:
    return File.generated(config, path, content=text)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Fill tables, and let links to files of the root lead to their pages."""
    text = filled(markdown)
    here = page.file.src_uri
    if here == "reference.md":
        text = linked_names(text)
    if here in WIDE:
        page.meta["hide"] = ["toc"]
    for name, target in ROOT_PAGES.items():
        way = posixpath.relpath(target, posixpath.dirname(here) or ".")
        text = re.sub(rf"\]\((?:\.\./)*{re.escape(name)}", f"]({way}", text)
    # Code is in the repository, not on the site.
    return _CODE.sub(r"\1", text)


def on_post_build(config: Any) -> None:
    """Refuse a site that is not what it must be."""
    site = Path(config.site_dir)
    found = {
        module: re.findall(
            rf"<h2 id=\"?{re.escape(module)}\.(\w+)\"?[ >]",
            (site / f"reference/{module}.html").read_text(encoding="utf-8"),
        )
        for module in SURFACE
    }
    if found != SURFACE:
        wrong = {
            m: sorted(set(found[m]) ^ set(SURFACE[m])) for m in SURFACE if found[m] != SURFACE[m]
        }
        raise PluginError(f"the reference has not just the public names: {wrong}")
    foreign = [
        f"{page.relative_to(site)}: {hit}"
        for page in sorted(site.rglob("*.html"))
        for hit in _FOREIGN.findall(page.read_text(encoding="utf-8"))
    ]
    if foreign:
        raise PluginError("pages take something from other hosts:\n" + "\n".join(foreign))
