"""What a ledger tells of a topology that nobody serves, in the shapes of the API."""

from __future__ import annotations

import json

import pytest

from tests.coordination.drivers import ledger_at
from waterspout.coordination.commands.outside import Sight
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Ledger
from waterspout.ui import _stored_facts as facts
from waterspout.ui._attempts import matrix

GRAPH = {
    "spout in": {"spout": "FileSpout", "kind": "transactional", "path": "/data"},
    "state counts": {
        "backend": "sqlite", "kind": "opaque", "table": "words", "partitions": 2,
        "layout": "word string -> count bigint",
    },
    "state late": {"backend": "redis", "kind": "transactional", "prefix": "w", "since": 3},
}  # fmt: skip


def ledger_of(graph=GRAPH, *, committed: int = 0) -> Ledger:
    ledger = Ledger("words", graph, "history")
    for txid in range(1, committed + 1):
        attempt = TransactionAttempt(txid, 0)
        ledger = ledger.emit(attempt, {"in": {"files": [txid]}}).begin(attempt).commit(attempt)
    return ledger


@pytest.mark.parametrize(
    ("ledger", "kind"),
    [
        (ledger_of(), "trident"),
        (ledger_of({"spout in": {"kind": "S", "streams": {}}}), "core"),
        (ledger_of({"spout in": {"kind": "S"}, "committer c": {"kind": "C"}}), "transactional"),
        (ledger_of({"spout in": {"kind": "S"}}, committed=1), "transactional"),
        (ledger_of({}), ""),
        (None, ""),
        (ledger_at(2), "transactional"),
    ],
)
def test_the_kind_is_known_by_the_stored_graph(ledger, kind) -> None:
    assert facts.kind_of(Sight("words", ledger=ledger)) == kind


def test_a_topology_is_told_without_its_code() -> None:
    found = facts.topology(Sight("words", ledger=ledger_of()))

    assert (found["name"], found["kind"], found["status"]) == ("words", "trident", "never run")
    assert [(node["id"], node["kind"]) for node in found["graph"]["nodes"]] == [
        ("in", "spout"), ("counts", "state"), ("late", "state"),
    ]  # fmt: skip
    assert [(s["name"], s["kind"], s["store"], s["since"]) for s in found["states"]] == [
        ("counts", "opaque", "sqlite#words", 1), ("late", "transactional", "redis#w", 3),
    ]  # fmt: skip
    assert json.loads(json.dumps(found)) == found
    assert facts.topology(Sight("words", problem="damaged"))["status"] == "damaged"


def test_committed_and_unfinished_batches_are_told_with_what_was_in_them() -> None:
    ledger = ledger_of(committed=3)
    for number in (0, 1):
        ledger = ledger.emit(TransactionAttempt(4, number), {"in": {"files": [4]}})
    ledger = ledger.begin(TransactionAttempt(4, 1)).emit(TransactionAttempt(5, 0), {"in": [5]})
    known = {2: (1, {"in": {"files": [2]}}), 3: (0, {"in": {"files": [3]}, "$skipped": ["in"]})}

    found = facts.batches(ledger, known.get, limit=10)

    told = [(a["txid"], a["attempt"], a["replay"], a["outcome"]) for a in found["attempts"]]
    assert told == [
        (2, 1, True, "committed"), (3, 0, False, "committed"),
        (4, 1, True, "unfinished"), (5, 0, False, "unfinished"),
    ]  # fmt: skip
    two, three, four, five = found["attempts"]
    assert (two["from"], three["skipped"]) == ({"in": {"files": [2]}}, ["in"])
    assert ("while it committed" in four["why"], "unfinished" in five["why"]) == (True, True)
    assert found["states"] == ["counts", "late"]
    assert [list(a["states"]) for a in found["attempts"]] == [["counts"], *[["counts", "late"]] * 3]
    assert len(facts.batches(ledger, known.get, limit=3)["attempts"]) == 3


def test_the_matrix_of_a_stored_topology_says_what_had_begun() -> None:
    ledger = ledger_of(committed=1)
    attempt = TransactionAttempt(2, 0)
    ledger = ledger.emit(attempt, {"in": [2]}).begin(attempt).emit(TransactionAttempt(3, 0), {})

    found = facts.batches(ledger, {1: (0, {"in": [1]})}.get, limit=10)

    rows = matrix(found["attempts"], found["states"])["rows"]
    names = ("counts", "late")
    assert {row["id"]: [row["cells"][name]["level"] for name in names] for row in rows} == {
        "2": ["begun", ""], "1": ["committed", ""],
    }  # fmt: skip


def test_the_last_words_of_a_run_are_one_point() -> None:
    last = {"timestamp": 90.5, "in_flight": 2, "input_rows": 7, "processing_s": 0.5, "lag": {}}

    found = facts.pressure({"last_progress": last, "lag": {"in": {"files": 3}}})

    (point,) = found["points"]
    assert (point["t"], point["size"], point["pending"]) == (90, 7, 2)
    assert (point["lag"], point["processing_s"]) == ({"in": {"files": 3}}, 0.5)
    assert facts.pressure({})["points"] == []
