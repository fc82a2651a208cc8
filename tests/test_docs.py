"""What the documents say is true: tables match the code, the first topology runs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import waterspout.trident
from waterspout import Config
from waterspout.faults import POINTS
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout, run_in_process
from waterspout.trident import Split, TridentTopology

ROOT = Path(__file__).parents[1]


def test_every_option_is_in_the_configuration_table():
    rows = [
        f"| `{row.name}` | `{row.key}` | {row.unit} | `{row.default}` | {row.doc} |"
        for row in Config.describe()
    ]

    table = (ROOT / "docs" / "configuration.md").read_text().splitlines()

    assert [line for line in table if line.startswith("| `")] == rows


def test_architecture_names_every_kill_point():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set()
    for mark in re.findall(r"`\[([a-z._/]+)\]`", text):
        stem, _, rest = mark.rpartition(".")
        named.update(f"{stem}.{part}" if stem else part for part in rest.split("/"))

    assert named - {"brackets"} == set(POINTS)


def test_links_between_documents_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"


@pytest.mark.spark
def test_the_first_topology_of_the_readme_runs(spark, tmp_path, monkeypatch):
    code, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sentences").mkdir()
    (tmp_path / "sentences" / "a.txt").write_text("a storm over a storm\nno storm\n")
    names: dict[str, object] = {}

    exec(code, names)

    assert names["counts"].get("storm") == 3


def test_the_function_of_the_page_on_drpc_answers():
    code, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "docs/drpc.md").read_text(), re.S)
    topology = TridentTopology("words")
    lines = FixedBatchSpout("value string", 2, ["cat dog", "cat cat cow"])
    words = topology.new_stream("lines", lines).each("value", Split(), "word")
    names = {
        **vars(waterspout.trident),
        "topology": topology,
        "words": words,
        "state": MemoryMapState.opaque(),
    }

    exec(code, names)

    assert run_in_process(topology).execute("words", "cat dog") == [[4]]


@pytest.mark.parametrize("source", ["progress", "events"])
def test_the_page_on_progress_lists_every_key_and_event(source):
    page = (ROOT / "docs" / "progress.md").read_text()
    tree = ast.parse((ROOT / "src/waterspout/coordination" / f"{source}.py").read_text())
    missing = []
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        fields = [n for n, each in enumerate(node.body) if isinstance(each, ast.AnnAssign)]
        if source == "progress":
            rows = [
                f"| `{node.body[n].target.id}` | {node.body[n + 1].value.value} |" for n in fields
            ]
        elif node.name in ("Event", "EventBus"):
            continue
        else:
            names = ", ".join(f"`{node.body[n].target.id}`" for n in fields)
            summary = ast.get_docstring(node).split("\n")[0]
            rows = [f"| `{node.name}` | {summary} | {names} |"]
        missing += [f"{node.name}: {row}" for row in rows if row not in page]

    assert missing == []


@pytest.mark.spark
def test_the_listener_of_the_page_on_progress_hears_the_batches(spark):
    code, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "docs/progress.md").read_text(), re.S)
    names: dict[str, object] = {}

    exec(code, names)

    assert names["lines"][-1] == "batch 2: 1 rows"
