"""The notebooks of the documents print what they say they print."""

from __future__ import annotations

import json

import pytest

from scripts.docs_pages import notebooks
from tests.docs.notebooks import ran, stored
from waterspout import faults

ON_SPARK = "3-a-run-on-spark"
IN_PROCESS = [path for path in notebooks() if path.stem != ON_SPARK]


@pytest.fixture(autouse=True)
def _no_faults():
    yield
    faults.install(None)


@pytest.mark.parametrize("path", IN_PROCESS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_says(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert ran(path) == stored(path)


@pytest.mark.soak
@pytest.mark.spark
def test_the_notebook_on_spark_prints_what_it_says(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (path,) = (path for path in notebooks() if path.stem == ON_SPARK)

    assert ran(path) == stored(path)


def test_there_are_three_notebooks_in_the_form_that_jupyter_reads():
    assert len(notebooks()) == 3
    for path in notebooks():
        document = json.loads(path.read_text())
        assert (document["nbformat"], document["metadata"]["kernelspec"]["name"]) == (4, "python3")
        ids = [cell["id"] for cell in document["cells"]]
        assert len(set(ids)) == len(ids)
        assert any(cell["cell_type"] == "code" and cell["outputs"] for cell in document["cells"])
