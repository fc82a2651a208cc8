"""Tables of the documents that are made from the code: `python scripts/docs_tables.py` writes them.

A page has a place for a table between two comments:

    <!-- made: configuration -->
    <!-- end -->

`make docs` fills these places when it builds the site, and a test compares what the repository has
there with what the code says. So a table can be read in the file and on the site, and is never
written by hand.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from waterspout import Config, errors
from waterspout.cli.failures import EXIT_CODES
from waterspout.coordination import events, progress
from waterspout.metrics._catalog import CATALOG

__all__ = ["TABLES", "filled", "pages", "remedy"]

ROOT = Path(__file__).parents[1]
_PLACE = re.compile(r"(<!-- made: (?P<name>[\w:. -]+) -->\n)(?P<table>.*?)(<!-- end -->)", re.S)
_TODO = "What to do: "


def table(head: str, rows: Iterable[Iterable[object]]) -> str:
    """Return a table in Markdown; a cell must be on one line."""
    titles = head.split(" | ")
    lines = [titles, ["---"] * len(titles), *rows]
    texts = [[re.sub(r"(?<!\\)\|", r"\\|", str(cell)) for cell in line] for line in lines]
    made = [f"| {' | '.join(cells)} |" for cells in texts]
    made[1] = f"|{'---|' * len(titles)}"
    return "\n" + "\n".join(made) + "\n\n"


def configuration() -> str:
    """Every option of a run."""
    rows = (
        [f"`{r.name}`", f"`{r.key}`", r.unit, f"`{r.default}`", r.doc] for r in Config.describe()
    )
    return table("name | key | unit | default | meaning", rows)


def all_events() -> str:
    """Every event with its own fields."""
    rows = []
    for name, found in _classes(events):
        if name not in ("Event", "EventBus"):
            common = {each.name for each in dataclasses.fields(events.Event)}
            own = [f"`{f.name}`" for f in dataclasses.fields(found) if f.name not in common]
            rows.append([f"`{name}`", first_line(found), ", ".join(own)])
    return table("event | when | fields", rows)


def keys_of(name: str) -> str:
    """The keys of one class of progress, each with the text below it in the source."""
    (source,) = (
        node
        for node in ast.parse(inspect.getsource(progress)).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    rows = []
    for field, text in zip(source.body, source.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=said)):
                rows.append([f"`{key}`", " ".join(str(said).split())])
    return table("key | what it is", rows)


def metrics() -> str:
    """Every metric of the exposition."""
    rows = (
        [
            f"`{each.family if each.kind == 'histogram' else each.series[0]}`",
            each.kind,
            ", ".join(f"`{label}`" for label in each.labels),
            each.doc,
        ]
        for each in CATALOG
    )
    return table("metric | type | labels | what it is", rows)


def exit_codes() -> str:
    """What the exit codes of commands mean."""
    return table("exit code | means", ([code, text] for code, text in EXIT_CODES.items()))


def all_errors() -> str:
    """Every error: when it is raised, and what to do."""
    rows = (
        [f"`{name}`", first_line(found), _linked(remedy(found))] for name, found in _classes(errors)
    )
    return table("error | when | what to do", rows)


def _linked(text: str) -> str:
    """Return a text of the code in which files of docs/ are links, for a page of docs/."""
    return re.sub(r"\bdocs/(([\w-]+)\.md(?:#[\w-]+)?)", r"[\2](\1)", text)


def error_tree() -> str:
    """The tree of errors, as the module draws it."""
    drawn = inspect.getdoc(errors) or ""
    lines = [line[4:] for line in drawn.splitlines() if line.startswith("    ")]
    return "\n```text\n" + "\n".join(lines) + "\n```\n\n"


def first_line(found: type) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(found) or "").partition("\n")[0]


def remedy(error: type) -> str:
    """Return what the docstring of an error says is to be done; empty if it says nothing."""
    for paragraph in (error.__doc__ or "").split("\n\n"):
        text = " ".join(paragraph.split())
        if text.startswith(_TODO):
            return text[len(_TODO)].upper() + text[len(_TODO) + 1 :]
    return ""


def _classes(module: object) -> list[tuple[str, type]]:
    """Return the classes that a module defines and exports, in the order of its source."""
    own = [
        (name, found)
        for name, found in vars(module).items()
        if inspect.isclass(found) and found.__module__ == module.__name__
    ]
    return [(name, found) for name, found in own if name in module.__all__]


TABLES: dict[str, Callable[[], str]] = {
    "configuration": configuration,
    "events": all_events,
    "metrics": metrics,
    "exit codes": exit_codes,
    "errors": all_errors,
    "error tree": error_tree,
    **{
        f"keys of {name}": lambda name=name: keys_of(name)  # type: ignore[misc]
        for name, _ in _classes(progress)
    },
}


def filled(text: str) -> str:
    """Return the text of a page with its tables as the code has them now."""

    def fill(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in TABLES:
            raise KeyError(f"there is no table {name!r}; there are {', '.join(TABLES)}")
        return f"{found[1]}{TABLES[name]()}{found[4]}"

    return _PLACE.sub(fill, text)


def pages() -> list[Path]:
    """Return the pages of the repository."""
    return [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    """Write every table anew."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        made = filled(text)
        if made != text:
            page.write_text(made, encoding="utf-8")
            print(f"{page.relative_to(ROOT)} has new tables", file=sys.stderr)


if __name__ == "__main__":
    main()
