"""The pages that the site adds, without building it; and the site itself, in soak."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from scripts.docs_pages import (
    SURFACE,
    decisions,
    decisions_page,
    linked_names,
    notebook_page,
    notebooks,
    reference_page,
)
from tests.docs.pages import DOCS, ROOT


def test_the_reference_has_the_public_names_and_no_others():
    found = {
        module: re.findall(rf"^::: {re.escape(module)}\.(\w+)$", reference_page(module), re.M)
        for module in SURFACE
    }

    assert found == SURFACE


def test_every_name_of_the_list_leads_to_its_place_in_the_reference():
    text = linked_names((DOCS / "reference.md").read_text())

    targets = set(re.findall(r"\]\(reference/([\w.]+)\.md#([\w.]+)\)", text))

    assert targets == {(m, f"{m}.{name}") for m, names in SURFACE.items() for name in names}


def test_every_decision_is_on_their_page_with_its_number():
    text = decisions_page()

    for path in decisions():
        row = rf"^\| {int(path.name[:4])} \| \[[^\]]+\]\({path.name}\) \|$"
        assert re.search(row, text, re.M), path.name


def test_a_notebook_is_a_page_of_text_code_and_what_it_printed():
    page = notebook_page(notebooks()[0])

    assert page.startswith("# A crash, taken apart")
    assert "```python\nimport sqlite3" in page
    assert "be   count 2   written by 2:1   before 1" in page


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_site_is_built_without_a_warning():
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")

    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )

    assert (built.returncode, built.stdout) == (0, ""), built.stderr
