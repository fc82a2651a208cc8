"""The examples of the tutorial, of the how-to pages and of those who come from elsewhere."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import shutil
import sqlite3
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.pages import ROOT
from tests.soaking import soaked
from waterspout import Config, faults, submit
from waterspout.cli.loading import load_topology
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.events import BatchCommitted, BatchFailed, RunEnded, ServiceAway
from waterspout.faults import Fault, FaultPlan
from waterspout.testing import LocalRun, SimulatedCrash, run_in_process
from waterspout.transactional import TransactionAttempt

SET = {  # what each file of the tutorial gives, of seven files of tickets
    "routes": [("island", 23, 207), ("north", 17, 68), ("south", 20, 100)],
    "harbours": [("Fishmarket", 37, 168), ("Lighthouse", 23, 207)],
    "late": [("island", 2), ("north", 1), ("south", 1)],
}
TABLES = {
    "ferry": {"routes"},
    "hours": {"routes", "hours", "late"},
    "harbours": {"routes", "hours", "late", "harbours"},
    "ask": {"routes", "hours", "late", "harbours"},
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A copy of the examples in the current folder, of which no module stays."""
    for name in ("tutorial", "how_to", "coming_from"):
        shutil.copytree(ROOT / "examples" / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WATERSPOUT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    faults.install(None)
    for name, module in list(sys.modules.items()):
        if name not in before and str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def module(place: Path, folder: str, name: str) -> ModuleType:
    sys.path.insert(0, str(place / folder))
    return importlib.import_module(name)


def rows(database: str, query: str) -> list[tuple]:
    with contextlib.closing(sqlite3.connect(database)) as db:
        return sorted(db.execute(query).fetchall())


def sell(place: Path, files: int) -> None:
    module(place, "tutorial", "sell").sell(files)


def assert_exact(place: Path, step: str) -> None:
    """Compare the tables of a step with what seven files hold."""
    recount = module(place, "tutorial", "recount")
    assert recount.stored() == recount.recounted()
    assert rows("ferry.db", "SELECT route, tickets, income FROM routes") == SET["routes"]
    if "harbours" in TABLES[step]:
        found = rows("ferry.db", "SELECT harbour, tickets, income FROM harbours")
        assert found == SET["harbours"]
    if "late" in TABLES[step]:
        assert rows("ferry.db", "SELECT route, tickets FROM late") == SET["late"]
        hours = rows("ferry.db", "SELECT substr(window_start, 12, 2), sum(tickets) FROM hours"
                                 " GROUP BY window_start")  # fmt: skip
        assert hours == [(f"{hour:02}", 8) for hour in range(8, 14)]


def test_the_tickets_of_the_repository_are_those_that_are_sold(place):
    sell_module = module(place, "tutorial", "sell")
    for number in (1, 2, 3):
        path = ROOT / "examples" / "tutorial" / "tickets" / f"{number:02}.json"
        found = [json.loads(line) for line in path.read_text().splitlines()]
        assert found == sell_module.tickets(number)


# The last one has all that the others have.
@pytest.mark.parametrize("step", ["ferry", soaked("hours"), soaked("harbours"), "ask"])
def test_a_step_of_the_tutorial_is_exact_also_if_batches_are_replayed(step, place):
    sell(place, 4)
    again = [Fault("write.after", "fail", nth=n) for n in (2, 5)]
    faults.install(FaultPlan(again))

    run = run_in_process(load_topology(f"tutorial/{step}.py"), Config(retry_backoff_millis=1))

    assert_exact(place, step)
    if step == "ask":
        answer = run.execute("taken", "Lighthouse Nowhere Fishmarket")
        assert sorted(answer) == [["Fishmarket", 37, 168], ["Lighthouse", 23, 207]]


@pytest.mark.parametrize(
    "point", ["write.after", *map(soaked, ("metadata.after", "head.after", "mark.before"))]
)
def test_the_ferry_that_dies_in_the_sixth_batch_goes_on_exactly(point, place):
    sell(place, 4)

    def die(name, where):
        if name == point and where.get("txid") == 6:
            faults.install(None)
            raise SimulatedCrash(point)

    def life():
        # The process of the life before is gone: its lease is free at once.
        store = EmbeddedStore(place / "home", "ferry", lease_s=0, clock=lambda: 1e9, durable=False)
        return LocalRun(load_topology("tutorial/ferry.py"), store=store)

    faults.install(die)
    with pytest.raises(SimulatedCrash):
        life().finish()
    second = life()
    second.finish()
    second.close()

    assert_exact(place, "ferry")


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_the_whole_tutorial_runs_on_spark_and_grows(spark, place):
    for step in ("ferry", "ask"):  # the second one has four states more
        run = submit(load_topology(f"tutorial/{step}.py"), config=Config(max_spout_pending=3))
        run.process_all_available(timeout=200)
        run.stop()
        sell(place, 1)

    assert run.last_progress.txid == 4
    assert rows("ferry.db", "SELECT route, tickets, income FROM routes") == [
        ("island", 10, 90), ("north", 11, 44), ("south", 12, 60),
    ]  # fmt: skip
    begun = rows("ferry.db", "SELECT harbour, tickets FROM harbours")
    assert sum(tickets for _, tickets in begun) == 9  # of the fourth file alone


def test_orders_are_counted_once(place):
    run_in_process(load_topology("how_to/deduplicate.py"))

    assert rows("sales.db", "SELECT item, orders, revenue FROM sales") == [
        ("rope", 1, 12), ("tea", 2, 8),
    ]  # fmt: skip


def test_the_newest_version_of_an_order_stays_and_all_are_kept(place):
    faults.install(FaultPlan([Fault("write.after", "fail", nth=n) for n in (1, 4)]))

    run_in_process(load_topology("how_to/upsert.py"), Config(retry_backoff_millis=1))

    assert rows("orders.db", "SELECT id, version, status FROM orders") == [
        ("o-1", 3, "sent"), ("o-2", 1, "new"),
    ]  # fmt: skip
    assert rows("orders.db", "SELECT id, version FROM history") == [
        ("o-1", 1), ("o-1", 2), ("o-1", 3), ("o-2", 1),
    ]  # fmt: skip


def test_late_clicks_are_in_a_table_of_their_own(place):
    run_in_process(load_topology("how_to/late_data.py"))

    minutes = "SELECT page, substr(window_start, 12, 5), clicks FROM minutes"
    assert rows("clicks.db", minutes) == [
        ("home", "12:00", 1), ("home", "12:02", 1), ("shop", "12:00", 1),
    ]  # fmt: skip
    assert rows("clicks.db", "SELECT page, clicks FROM late") == [("home", 1)]


def test_the_tests_of_the_page_on_testing_pass(place):
    tests = module(place, "how_to", "test_words")
    ran = 0
    for name, function in inspect.getmembers(tests, inspect.isfunction):
        if name.startswith("test_"):
            marks = getattr(function, "pytestmark", ())
            for arguments in marks[0].args[1] if marks else [None]:
                function(*([] if arguments is None else [arguments]))
                ran += 1

    assert ran == 5


def test_the_alarm_rings_for_outages_replays_and_ends_and_for_nothing_else(place):
    rung: list[str] = []
    alarm = module(place, "how_to", "alert").Alarm(rung.append, replays=2)
    attempt = TransactionAttempt(7, 0)
    failed = BatchFailed("words", attempt, ValueError("x"), False)
    committed = BatchCommitted("words", attempt, None)

    for event in (
        ServiceAway("words", "redis", "refused", 59.0, 1.0),
        failed, committed, failed,
        RunEnded("words", None),
    ):  # fmt: skip
        alarm(event)
    assert rung == []
    for event in (
        ServiceAway("words", "redis", "refused", 61.0, 1.0),
        failed,
        RunEnded("words", ValueError("no more")),
    ):
        alarm(event)

    assert rung == [
        "words waits for redis, 61 s",
        "words: batch 7 fails again and again: x",
        "words has stopped: no more",
    ]


def test_what_comes_from_storm_gives_what_storm_gives(place):
    run = run_in_process(load_topology("coming_from/storm_trident.py"))
    bolts = module(place, "coming_from", "storm_bolts")
    bolts.sentences.feed(["the cow and the moon"], msg_id=1)

    waves = run_in_process(bolts.topology)

    assert run.execute("words", "the moon whale") == [[5]]
    assert sorted(waves.emitted("count"))[-2:] == [("the", 1), ("the", 2)]
    assert bolts.sentences.tracker.acks == {1: 1}


def test_totals_are_in_the_table(place):
    run_in_process(load_topology("coming_from/totals.py"))

    assert rows("totals.db", "SELECT account, total FROM totals") == [("ann", 12), ("bo", 2)]


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_a_query_by_hand_with_a_sink_and_as_a_topology_count_alike(spark, place):
    folder = place / "lines"
    folder.mkdir()
    (folder / "1.txt").write_text("to be or\nnot to be\n")
    by_hand = module(place, "coming_from", "query_by_hand")
    sink = module(place, "coming_from", "query_with_sink")
    topologies = module(place, "coming_from", "query_as_topology")
    migrate = module(place, "how_to", "migrate").migrate
    by_hand.count_words(spark, str(folder), str(place / "checkpoint-1"))
    sink.count_words(spark, str(folder), str(place / "checkpoint-2"))
    counts = "SELECT word, count FROM counts"
    wanted = [("be", 2), ("not", 1), ("or", 1), ("to", 2)]
    assert rows("words_by_hand.db", counts) == rows("words.db", counts) == wanted

    begins = migrate(str(folder), str(place / "checkpoint-2"))
    (folder / "2.txt").write_text("to see\n")
    run = submit(topologies.word_count(str(folder)))
    run.process_all_available(timeout=100)
    run.stop()

    assert begins == 2
    assert rows("words.db", counts) == [*wanted[:3], ("see", 1), ("to", 3)]


@pytest.mark.soak
@pytest.mark.spark
def test_what_was_added_later_is_filled_from_the_beginning(spark, place, monkeypatch):
    from waterspout.cli import main

    monkeypatch.setattr(spark, "stop", lambda: None)
    (place / "sales").mkdir()

    def sale(number, city, item, amount):
        row = {"city": city, "item": item, "amount": amount}
        (place / "sales" / f"{number}.json").write_text(json.dumps(row) + "\n")

    sale(1, "bergen", "rope", 12)
    assert main(["run", "how_to/sales_before.py", "--until-idle"]) == 0
    sale(2, "bergen", "tea", 3)
    assert main(["run", "how_to/sales_after.py", "--until-idle"]) == 0
    assert rows("sales.db", "SELECT city, n, total FROM cities") == [("bergen", 2, 3)]

    assert main(["state", "backfill", "how_to/sales_after.py"]) == 0

    assert rows("sales.db", "SELECT city, n, total FROM cities") == [("bergen", 2, 15)]
    assert rows("sales.db", "SELECT item, n FROM items") == [("rope", 1), ("tea", 1)]
    assert main(["state", "audit", "how_to/sales_after.py"]) == 0
