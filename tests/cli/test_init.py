"""`waterspout init`: what it makes runs, is tested and counts exactly."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter

import pytest

FILES = [
    ".gitignore",
    "README.md",
    "explore.ipynb",
    "pyproject.toml",
    "sentences/one.txt",
    "sentences/two.txt",
    "tests/test_topology.py",
    "topology.py",
]


@pytest.fixture
def project(cli, place, monkeypatch):
    """A new project, as the current folder, with a home of its own."""
    assert cli("init", "my-words").code == 0
    monkeypatch.chdir(place / "my-words")
    monkeypatch.delenv("WATERSPOUT_HOME")
    return place / "my-words"


def expected(project):
    texts = [file.read_text() for file in (project / "sentences").iterdir()]
    return Counter(word for text in texts for word in text.split())


def counted(project):
    with contextlib.closing(sqlite3.connect(project / "counts.db")) as db:
        return dict(db.execute("SELECT word, count FROM word_counts"))


def test_a_project_has_all_that_it_needs_and_its_name_everywhere(cli, place):
    told = json.loads(cli("init", "my-words", "--json").out)

    folder = place / "my-words"
    made = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    assert told == {"project": "my-words", "folder": str(folder), "files": FILES}
    assert sorted(made) == FILES
    assert not [path for path in made if "@NAME@" in (folder / path).read_text()]
    assert 'TridentTopology("my-words")' in (folder / "topology.py").read_text()


def test_the_project_is_told_with_what_to_do_next(cli, place):
    outcome = cli("init", "words2")

    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [
        f"words2: a project in {place / 'words2'}",
        *(f"  {path}" for path in FILES),
        "next",
        "  cd words2",
        "  waterspout run topology.py --until-idle",
        "  waterspout state get topology.py the",
    ]


def test_what_is_there_is_never_overwritten(cli, place):
    (place / "full").mkdir()
    (place / "full" / "mine.txt").write_text("mine")
    (place / "file").write_text("mine")
    (place / "empty").mkdir()

    for name in ("full", "file"):
        refused = cli("init", name)
        assert refused.code == 2
        assert "is there and not empty" in refused.err
    assert [path.name for path in (place / "full").iterdir()] == ["mine.txt"]
    assert cli("init", "empty").code == 0


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "/tmp/x", "a b", "é", "-x", "x."])
def test_a_name_that_no_topology_or_project_can_have_is_refused(cli, place, name):
    refused = cli("init", "--", name)

    assert refused.code == 2
    assert refused.err.startswith("error: ")
    assert [path.name for path in place.iterdir()] == ["data"]


def test_the_project_passes_its_check_and_its_notebook_is_one(cli, project):
    checked = cli("check", "topology.py")
    notebook = json.loads((project / "explore.ipynb").read_text())

    assert checked.code == 0, checked.err
    assert ": exactly-once: " in checked.out
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        keys = {"cell_type", "id", "metadata", "source"}
        if cell["cell_type"] == "code":
            keys |= {"execution_count", "outputs"}
            assert (cell["execution_count"], cell["outputs"]) == (None, [])
        assert cell.keys() == keys


@pytest.mark.soak
def test_the_tests_of_the_project_pass(project):
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        cwd=project,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 passed" in ran.stdout


@pytest.mark.spark
def test_the_project_runs_and_its_notebook_goes_on_from_there(shared_spark, cli, project):
    first = cli("run", "topology.py", "--until-idle")
    assert first.code == 0, first.err
    assert "done; 2 batches committed" in first.out
    assert counted(project) == expected(project)
    assert cli("state", "get", "topology.py", "the").out == "5\n"

    (project / "sentences" / "three.txt").write_text("the end\n")
    notebook = json.loads((project / "explore.ipynb").read_text())
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)

    assert names["counts"] == expected(project) == counted(project)
    assert names["run"].snapshot().totals.committed == 1, "only the new file"
    assert names["run"].status == "stopped"
