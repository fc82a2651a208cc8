"""`waterspout state` on tables of rows: an answer, or an error that says why there is none."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing

import pytest

from waterspout import Config
from waterspout.cli.loading import load_topology
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.testing import LocalRun

ORDERS = """
from waterspout.testing import FixedBatchSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import AppendRows, Average, TridentTopology, UpsertRows

ROWS = [(1, "placed", 1), (2, "placed", 2), (1, "paid", 3), (2, "shipped", 4)]
topology = TridentTopology("orders")
rows = topology.new_stream("rows", FixedBatchSpout("id bigint, status string, at bigint", 2, ROWS))
rows.partition_persist(SQLiteState.opaque("orders.db", table="changes"), AppendRows())
rows.partition_persist(
    SQLiteState.opaque("orders.db", table="orders"), UpsertRows("id", order_by="at")
)
rows.group_by("status").persistent_aggregate(
    SQLiteState.opaque("orders.db", table="times"), "at", Average(), out="mean"
)
"""


@pytest.fixture
def orders(write, place):
    """A topology that has run to its end: two batches into three tables."""
    file = write(ORDERS, "orders.py")
    run = LocalRun(load_topology(file), Config(), store=EmbeddedStore(place / "home", "orders"))
    run.finish()
    run.loop.close()
    sys.modules.pop("orders", None)
    return file


def select(place, statement):
    with closing(sqlite3.connect(place / "orders.db")) as db:
        return sorted(db.execute(statement).fetchall())


def test_a_row_is_found_by_its_key_as_a_reader_sees_it(cli, orders):
    assert cli("state", "get", orders, "1", "--state", "orders").out == '["paid", 3]\n'
    assert cli("state", "get", orders, "placed", "--state", "times").out == "1.5\n"
    told = cli("state", "explain", orders, "2", "--state", "orders", "--json").out
    known = json.loads(told)
    assert known["value"] == ["shipped", 4]
    assert known["written"]["before"] == ["placed", 2]
    assert known["written"]["txid"] == 2


@pytest.mark.parametrize("command", ["get", "explain"])
def test_appended_rows_have_no_key_to_be_asked_by(cli, orders, command):
    refused = cli("state", command, orders, "1", "--state", "changes")

    assert refused.code != 0
    assert "keeps rows, which have no key to be asked by" in refused.err
    assert "Traceback" not in refused.err


def test_a_batch_is_taken_back_in_all_tables(cli, orders, place):
    assert len(select(place, "SELECT id FROM changes")) == 4

    rolled = cli("state", "rollback", orders, "--yes")

    assert rolled.out == "orders: batch 2 was taken back; the next run emits it again\n"
    assert select(place, "SELECT id, status FROM changes") == [(1, "placed"), (2, "placed")]
    assert select(place, "SELECT id, status FROM orders") == [(1, "placed"), (2, "placed")]
    run = LocalRun(load_topology(orders), Config(), store=EmbeddedStore(place / "home", "orders"))
    run.finish()
    assert len(select(place, "SELECT id FROM changes")) == 4
    assert select(place, "SELECT id, status FROM orders") == [(1, "paid"), (2, "shipped")]


def test_backfill_has_nothing_to_do(cli, orders):
    assert cli("state", "backfill", orders).out == "orders: every state has all batches\n"


@pytest.mark.spark
@pytest.mark.soak
def test_an_audit_says_what_it_does_not_compare(cli, orders, shared_spark, write):
    outcome = cli("state", "audit", orders)

    lines = [line.split("): ")[1] for line in outcome.out.splitlines()]
    assert lines[:2] == [
        "not audited, its rows are appended as they are, and have no key by which to compare them",
        "not audited, which row of a key it holds may depend on how rows are batched",
    ]
    assert lines[2].endswith("keys, exact")


def test_check_tells_the_guarantees(cli, orders):
    checked = cli("check", orders).out

    assert checked.count("exactly-once: spout 'rows' is transactional, the state is opaque") == 3
