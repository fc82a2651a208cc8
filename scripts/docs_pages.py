"""Pages of the site that are made from the repository: the reference, decisions, notebooks.

Nothing here needs MkDocs: `scripts/docs_site.py` puts these pages into the site, and tests look at
them without building it.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.test_exports import SURFACE  # noqa: E402

__all__ = [
    "ROOT_PAGES",
    "SURFACE",
    "decisions",
    "decisions_page",
    "linked_names",
    "notebook_page",
    "notebooks",
    "reference_page",
    "reference_path",
]

DOCS = ROOT / "docs"
ROOT_PAGES = {
    name: f"{Path(name).stem.lower()}.md"
    for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
}


def reference_path(module: str) -> str:
    """Return the path of the page of a public module."""
    return f"reference/{module}.md"


def reference_page(module: str) -> str:
    """Return the page of a module: its public names, each from its docstring."""
    lines = [f"# {module}", "", _docstring(module), ""]
    for name in SURFACE[module]:
        lines += [f"::: {module}.{name}", ""]
    return "\n".join(lines)


def _docstring(module: str) -> str:
    path = ROOT / "src" / module.replace(".", "/")
    source = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    return ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""


def linked_names(text: str) -> str:
    """Return the list of public names, each with a link to its place in the reference."""
    module, lines = "", []
    for line in text.splitlines():
        if heading := re.fullmatch(r"## `([\w.]+)`", line):
            module = heading[1]
        elif row := re.match(r"\| `(\w+)` \|", line):
            place = f"{reference_path(module)}#{module}.{row[1]}"
            line = f"| [`{row[1]}`]({place}) |{line[row.end() :]}"
        lines.append(line)
    return "\n".join(lines)


def decisions() -> list[Path]:
    """Return the decision records, in order."""
    return sorted((DOCS / "decisions").glob("[0-9]*.md"))


def decisions_page() -> str:
    """Return the list of decisions, by the titles that they have."""
    lines = [
        "# Decisions",
        "",
        "What was decided, why, and what was rejected; a page each, in the order of their numbers.",
        "",
        "| | |",
        "|---|---|",
    ]
    for path in decisions():
        title = path.read_text(encoding="utf-8").partition("\n")[0]
        number, _, words = title.removeprefix("# ").partition(". ")
        lines.append(f"| {number} | [{words}]({path.name}) |")
    return "\n".join(lines) + "\n"


def notebooks() -> list[Path]:
    """Return the notebooks, in the order of their names."""
    return sorted((DOCS / "notebooks").glob("*.ipynb"))


def notebook_page(path: Path) -> str:
    """Return a notebook as a page: text, code, and what the code printed."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    note = (
        '!!! tip "This page is a notebook"\n'
        f"    `docs/notebooks/{path.name}`; a test runs it, and compares what it prints.\n"
    )
    parts: list[str] = []
    for cell in cells:
        parts += [*_cell(cell), *([note] if not parts else [])]
    return "\n".join(parts)


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source + "\n"
        return
    yield f"```python\n{source}\n```\n"
    for output in cell["outputs"]:
        text = output.get("text") or output["data"]["text/plain"]
        yield f"```text\n{''.join(text).rstrip()}\n```\n{{ .output }}\n"
