"""Links between the documents lead to pages and headings, and every page can be found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.docs_pages import ROOT_PAGES
from tests.docs.pages import DOCS, ROOT, anchors, blocks, links, pages, slug_of, snippets

SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def in_nav(entry: Any = None) -> Iterator[str]:
    match SITE["nav"] if entry is None else entry:
        case dict() as named:
            yield from in_nav(list(named.values()))
        case list() as several:
            for each in several:
                yield from in_nav(each)
        case str() as page:
            yield page


def test_every_link_leads_to_a_file_and_to_a_heading_of_it():
    wrong = []
    for page in pages():
        for target in links(page):
            if re.match(r"https?://|mailto:", target):
                continue
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            if not path.exists():
                wrong.append(f"{page.relative_to(ROOT)} -> {target}: no such file")
            elif anchor and path.suffix == ".md" and anchor not in anchors(path):
                wrong.append(f"{page.relative_to(ROOT)} -> {target}: no such heading")

    assert not wrong, "\n".join(wrong)


def test_documents_of_the_site_link_only_to_what_is_on_it_or_to_code():
    folders = ("benchmarks", "deploy", "examples", "scripts", "src", "tests")
    code = tuple(ROOT / name for name in folders)
    outside = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in DOCS.rglob("*.md")
        for target in links(page)
        if not re.match(r"https?://|#", target)
        and not any(
            (page.parent / target.partition("#")[0]).resolve().is_relative_to(place)
            for place in (DOCS, *code)
        )
        and Path(target.partition("#")[0]).name not in ROOT_PAGES
    ]

    assert outside == []


def test_every_page_is_in_the_navigation_of_the_site_once():
    listed = [page for page in in_nav() if not page.startswith("ADD ")]
    there = [
        path.relative_to(DOCS).as_posix()
        for path in DOCS.rglob("*.md")
        if path.parent.name != "decisions"
    ]

    assert sorted(listed) == sorted(there)


def test_what_is_added_to_the_navigation_is_there():
    added = {page.removeprefix("ADD ") for page in in_nav() if page.startswith("ADD ")}

    assert added == {"decisions", "modules", "notebooks", *ROOT_PAGES}


def test_every_example_that_a_page_shows_is_there_and_every_example_is_shown():
    shown = {path for page in pages() for path in snippets(page)}
    made = {
        path.relative_to(ROOT).as_posix()
        for folder in ("tutorial", "how_to", "coming_from")
        for path in (ROOT / "examples" / folder).glob("*.py")
    }

    assert [path for path in shown if not (ROOT / path).is_file()] == []
    assert made - shown == {
        "examples/tutorial/recount.py",  # these are run, and need not be read
        "examples/tutorial/sell.py",
        "examples/tutorial/sell_to_kafka.py",
    }


def test_the_pages_of_the_readme_rule_are_linked_from_the_first_page():
    found = {target.partition("#")[0] for target in links(DOCS / "index.md")}
    sections = {"tutorial/count.md", "how-to/index.md", "concepts.md", "reference.md", "failure.md"}

    assert sections <= found


@pytest.mark.parametrize(
    ("title", "slug"),
    [
        ("For programs: `--json`", "for-programs---json"),
        ("`waterspout.faults`", "waterspoutfaults"),
        ("The server of a run, and the page", "the-server-of-a-run-and-the-page"),
        ("From [a](b.md) to z", "from-a-to-z"),
    ],
)
def test_a_heading_has_the_anchor_that_the_site_gives_it(title, slug):
    assert slug_of(title) == slug
    slugs = pytest.importorskip("pymdownx.slugs")
    plain = re.sub(r"`|\[([^\]]*)\]\([^)]*\)", r"\1", title)
    assert slugs.slugify(case="lower")(plain, "-") == slug


def test_blocks_within_tabs_are_found():
    page = DOCS / "coming-from" / "foreach-batch.md"

    assert len(blocks(page, "python")) == 3
    assert "exactly_once(" in blocks(page, "python")[1].text
