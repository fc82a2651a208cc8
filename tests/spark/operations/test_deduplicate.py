"""deduplicate on Spark: as without it, by tasks, after a failed attempt and a killed driver."""

from __future__ import annotations

import datetime as dt
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.soaking import soaked
from tests.spark.killing import run_child, said
from tests.spark.operations.support import run_both
from tests.trident.support import finish
from waterspout import Config, faults
from waterspout.faults import Fault, FaultPlan
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Count, TridentTopology

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

CHILD = "tests.spark.operations.deduplicate_child"
HOUR = dt.timedelta(hours=1)
ROWS = [(n % 31, f"{n:02}", n / 8) for n in range(60)]
FIRST = [(n, f"{n:02}", n / 8) for n in range(31)]


def orders_of(rows=ROWS, size=20):
    topology = TridentTopology("orders")
    fields = "id bigint, what string, price double"
    return topology, topology.new_stream("orders", FixedBatchSpout(fields, size, rows))


def test_both_engines_let_the_same_rows_pass(spark, home):
    def build(look):
        topology, orders = orders_of()
        look("ever", orders.deduplicate("id"))
        look("an hour", orders.deduplicate("id", within=HOUR))
        # Of two rows of one batch the least passes, wherever they are.
        look("spread", orders.shuffle().parallelism_hint(3).deduplicate("id"))
        look("behind", orders.deduplicate("id").group_by("id").aggregate(Count(), "n"))
        return topology

    ran = run_both(build, spark, home)

    assert ran.differences == {}
    assert ran["ever"] == ran["an hour"] == ran["spread"] == sorted(FIRST, key=repr)
    assert ran["behind"] == sorted(((n, 1) for n in range(31)), key=repr)


def passed(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as db:
        return dict(db.execute("SELECT what, n FROM passed"))


@pytest.mark.parametrize(
    ("commit_in", "within"),
    [soaked("tasks", None), ("auto", HOUR), soaked("auto", None), soaked("tasks", HOUR)],
)
def test_a_failed_attempt_that_has_written_its_keys_loses_no_row(
    spark, tmp_path, commit_in, within
):
    reach = {"driver_only": commit_in != "tasks"}
    topology, orders = orders_of()
    spread = orders.shuffle().parallelism_hint(2)
    seen = SQLiteState.opaque(tmp_path / "seen.db", table="seen", **reach)
    results = SQLiteState.opaque(tmp_path / "passed.db", table="passed", **reach)
    rows = spread.deduplicate("id", seen, within).group_by("what")
    rows.persistent_aggregate(results, Count(), out="n")
    config = Config(commit_in=commit_in, retry_backoff_millis=1, home=str(tmp_path / "home"))
    # The keys of the batch are in their table then, and what follows is not.
    first = {"attempt": 0}
    plan = [Fault("write.after", "fail", where={"txid": t, **first}, nth=None) for t in (1, 2)]
    faults.install(FaultPlan(plan))
    try:
        run = finish(topology, spark, config)
    finally:
        faults.install(None)

    assert passed(tmp_path / "passed.db") == {what: 1 for _, what, _ in FIRST}
    assert [p["attempt"] for p in run.recent_progress] == [1, 1, 0]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_loses_and_doubles_no_row(tmp_path, connect_server):
    (tmp_path / "in").mkdir()
    for file in range(6):  # half of a file's lines were in the file before, and one comes twice
        lines = [*range(5 * file, 5 * file + 10), 5 * file]
        (tmp_path / "in" / f"{file}.txt").write_text("".join(f"{n:02}\n" for n in lines))

    # After the keys have been written, before what passes is; then before the mark.
    for point, txid, nth in [("write.after", 2, 1), ("write.after", 3, 2), ("mark.before", 5, 1)]:
        fault = {"point": point, "action": "kill", "where": {"txid": txid}, "nth": nth}
        assert run_child(CHILD, tmp_path, [fault], connect_server.url) == -9, said(tmp_path)
    assert run_child(CHILD, tmp_path, remote=connect_server.url) == 0, said(tmp_path)

    everything = {f"{n:02}": 1 for n in range(35)}
    assert passed(tmp_path / "ever.db") == everything
    assert passed(tmp_path / "within.db") == everything
