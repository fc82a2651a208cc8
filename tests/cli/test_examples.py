"""The examples, in this process and on Spark; `test_run` has a few more."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from waterspout import Config, faults
from waterspout.cli.loading import load_topology
from waterspout.faults import Fault, FaultPlan
from waterspout.testing import run_in_process

EXAMPLES = Path(__file__).parents[2] / "examples"
CORE_WORD_COUNT = EXAMPLES / "core_word_count.py"
CORE_COUNTS = {
    "the": 3, "moon": 2, "cow": 1, "jumped": 1, "over": 1,
    "four": 1, "score": 1, "and": 1, "seven": 1, "years": 1, "ago": 1,
}  # fmt: skip

TRIDENT = {
    "word_count_query": {
        "word_queries.db: SELECT number, question, total FROM answers": [
            (1, "the", 0), (2, "the boats", 2 + 1), (3, "gulls tide whale", 0 + 2 + 0),
        ],
        "word_queries.db: SELECT word, count FROM counts WHERE count > 1": [
            ("boats", 3), ("the", 6), ("tide", 2),
        ],
    },
    "reach": {
        "reach.db: SELECT request, page, people FROM reach": [
            (1, "harbour.example/tides", 7), (2, "harbour.example/ferries", 3),
        ],
    },
    "top_hashtags": {
        "hashtags.db: SELECT until, place, tag, times FROM top_tags": [
            (3, 1, "storm", 2), (3, 2, "ferry", 1), (6, 1, "storm", 3), (6, 2, "ferry", 2),
            (9, 1, "storm", 4), (9, 2, "ferry", 2), (12, 1, "gulls", 4), (12, 2, "storm", 2),
        ],
    },
    "devices": {
        "devices.db: SELECT hour, device, lowest FROM coldest": [
            (1, "shed", 2.0), (2, "roof", 3.0),
        ],
        "devices.db: SELECT hour, device, highest FROM warmest": [
            (1, "hall", 19.5), (2, "hall", 20.5),
        ],
        "devices.db: SELECT hour, device, left FROM weakest": [(1, "hall", 35), (2, "shed", 87)],
        "devices.db: SELECT hour, device, left FROM strongest": [(1, "shed", 90), (2, "hall", 30)],
        "devices.db: SELECT kind, lowest, highest FROM ranges": [
            ("indoor", 19.5, 20.5), ("outdoor", 2.0, 5.5),
        ],
    },
    "account_totals": {
        "accounts.db: SELECT account, payments, eur, usd FROM totals": [
            ("ferry", 3, "0.30", "1000000000000.01"), ("lighthouse", 3, "200.00", "-15.75"),
        ],
        "accounts.db: SELECT account, payments, eur_after, usd_after FROM statements": [
            ("ferry", 1, "0.10", "0.00"), ("ferry", 3, "0.30", "1000000000000.01"),
            ("lighthouse", 2, "120.10", "-15.75"), ("lighthouse", 3, "200.00", "-15.75"),
        ],
    },
    "retried_orders": {
        "sales.db: SELECT item, orders, revenue FROM sales": [
            ("lamp", 1, 40), ("rope", 1, 12), ("tea", 2, 8),
        ],
        "sales.db: SELECT id, passed_in FROM orders_seen": [
            ("o-1", 1), ("o-2", 1), ("o-3", 2), ("o-4", 2),
        ],
    },
    "upsert_orders": {
        "orders.db: SELECT id, status, at FROM orders": [
            ("o-1", "delivered", 9), ("o-2", "shipped", 7), ("o-3", "cancelled", 6),
        ],
        "orders.db: SELECT id, status, at FROM changes": [
            ("o-1", "delivered", 9), ("o-1", "paid", 3), ("o-1", "placed", 1),
            ("o-1", "shipped", 8), ("o-2", "paid", 5), ("o-2", "placed", 2),
            ("o-2", "shipped", 7), ("o-3", "cancelled", 6), ("o-3", "placed", 4),
        ],
    },
    "sessions": {
        "sessions.db: SELECT user, substr(started, 12, 5), substr(ended, 12, 5), pages"
        " FROM sessions": [
            ("mara", "09:00", "09:50", 3), ("mara", "11:00", "11:01", 2),
            ("odd", "09:05", "09:05", 1), ("odd", "09:36", "09:36", 1),
        ],
    },
}  # fmt: skip


def tables_of(example: str, place: Path) -> dict[str, list[tuple]]:
    """What the queries of an example find, in an order of their own."""
    found = {}
    for text in TRIDENT[example]:
        database, query = text.split(": ")
        with contextlib.closing(sqlite3.connect(place / database)) as db:
            found[text] = sorted(db.execute(query).fetchall())
    return found


@pytest.mark.parametrize("failing", [None, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("example", TRIDENT)
def test_an_example_gives_its_results_also_if_a_batch_is_replayed(example, failing, place):
    if failing is not None:  # after the n-th write to a state, and once more soon after
        again = [Fault("write.after", "fail", nth=n) for n in (failing, failing + 2)]
        faults.install(FaultPlan(again))

    run_in_process(load_topology(str(EXAMPLES / f"{example}.py")), Config(retry_backoff_millis=1))

    assert tables_of(example, place) == TRIDENT[example]


# Some in each run, all in soak.
@pytest.mark.spark
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(name, marks=[pytest.mark.soak] if number % 4 else [])
        for number, name in enumerate(TRIDENT)
    ],
)
def test_an_example_gives_its_results_on_spark_and_nothing_more_the_second_time(
    example, shared_spark, cli, place
):
    for _ in range(2):
        outcome = cli("run", str(EXAMPLES / f"{example}.py"), "--until-idle")

        assert outcome.code == 0, outcome.err
        assert tables_of(example, place) == TRIDENT[example]


def stored(database: Path) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(database)) as db:
        return dict(db.execute("SELECT word, count FROM counts").fetchall())


def test_the_words_are_counted_and_the_broken_sentence_is_put_aside(place):
    run = run_in_process(load_topology(str(CORE_WORD_COUNT)))

    assert stored(place / "core_word_counts.db") == CORE_COUNTS
    (letter,) = run.letters
    assert (letter.values, letter.failed_in, letter.failures) == ((1863,), "split", 4)


@pytest.mark.spark
def test_the_broken_sentence_can_be_replayed_on_spark_and_comes_back(shared_spark, cli, place):
    ran = cli("run", str(CORE_WORD_COUNT), "--until-idle", "--log-file", "spark.log")
    marked = cli("dead-letters", "replay", "core_word_count", "1")
    again = cli("run", str(CORE_WORD_COUNT), "--until-idle")
    listed = cli("dead-letters", "list", "core_word_count").out.splitlines()

    assert ran.code == 0, ran.err
    assert stored(place / "core_word_counts.db") == CORE_COUNTS
    *_, end, letters = ran.out.splitlines()
    assert end.startswith("core_word_count: done; ")
    assert ", 3 acked, 4 failed, 1 dead letter in " in end
    assert letters == (
        "core_word_count: 1 dead letter is kept; see: waterspout dead-letters list core_word_count"
    )
    assert ran.out.count("split: AttributeError: 'int' object has no attribute 'split'") == 1
    assert "Traceback" not in ran.out
    assert "in execute" in (place / "spark.log").read_text()
    assert marked.code == 0, marked.err
    assert again.code == 0, again.err
    assert [line.split()[-2] for line in listed[1:]] == ["8", "4"]
