"""Batches of many keys into SQLite: several statements, and what they cost in a large table."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.state_support import Batches
from waterspout.errors import StaleBatchError
from waterspout.state.sqlite import _map
from waterspout.trident import Sum

ROOT = Path(__file__).parents[2]
COUNTS = "SELECT word, count FROM word_counts ORDER BY word"
WORDS = [f"word-{i:05d}" for i in range(20_000)]
any_path = pytest.mark.parametrize("combine", [None, Sum()], ids=["folded", "combined"])

KILLED = """
import os, signal, sys
from tests.state_support import Batches
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.state.sqlite import SQLiteState, _map
from waterspout.trident import Sum

recipe = SQLiteState(sys.argv[1], "word_counts").bind(
    Schema.parse("word string"), Schema.parse("count bigint")
)
batches = Batches(recipe.make_state(Config(), 0, 1), combine=Sum())
words = {f"word-{i:05d}": 1 for i in range(20_000)}
for _ in range(12):
    batches.commit(words)
if sys.argv[2] == "in the middle":
    batches.claim()
    objects = _map._as_objects
    def killed(*columns):
        first, *_ = objects(*columns)
        yield first
        os.kill(os.getpid(), signal.SIGKILL)
    _map._as_objects = killed
    batches.write(words)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def few_rows(monkeypatch):
    """Let a statement write three rows."""
    monkeypatch.setattr(_map, "_ROWS", 3)


@any_path
def test_a_batch_of_several_statements_counts_each_key_once(make_state, select, few_rows, combine):
    batches = Batches(make_state(), combine=combine)
    words = {f"{i:02d}": i for i in range(11)}

    for _ in range(3):
        batches.commit(words)

    assert dict(select(COUNTS)) == {word: 3 * n for word, n in words.items()}


@any_path
def test_a_batch_that_is_interrupted_between_two_statements_has_written_nothing(
    make_state, select, few_rows, combine, monkeypatch
):
    batches = Batches(make_state(), combine=combine)
    words = {f"{i:02d}": i for i in range(11)}
    batches.commit(words)
    batches.claim()
    objects = _map._as_objects

    def interrupted(*columns):
        yield next(objects(*columns))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_map, "_as_objects", interrupted)
        with pytest.raises(KeyboardInterrupt):
            batches.write(words)

    assert dict(select(COUNTS)) == words
    batches.write(words)
    assert dict(select(COUNTS)) == {word: 2 * n for word, n in words.items()}


@any_path
def test_a_row_of_a_later_batch_refuses_all_statements_of_an_older_one(
    make_state, select, db, few_rows, combine
):
    batches = Batches(make_state(), combine=combine)
    words = {f"{i:02d}": i for i in range(11)}
    batches.commit(words)
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("UPDATE word_counts SET _txid = 9 WHERE word = '08'")
    batches.claim()

    with pytest.raises(StaleBatchError):
        batches.write(words)

    assert dict(select(COUNTS)) == words


@pytest.mark.parametrize("moment", ["between batches", "in the middle"])
def test_a_writer_that_is_killed_with_many_pages_in_its_log_loses_no_batch(
    db, make_state, select, moment
):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(db), moment], cwd=ROOT, timeout=60)

    assert killed.returncode == -signal.SIGKILL
    assert db.with_name("counts.db-wal").stat().st_size > 4_000_000
    assert select(COUNTS) == [(word, 12) for word in WORDS]
    assert make_state().multi_get([(WORDS[0],), (WORDS[-1],)]) == [12, 12]


def test_to_claim_and_settle_a_batch_costs_the_same_in_a_table_of_any_size(make_state):
    state = make_state()
    batches, steps = Batches(state, combine=Sum()), []

    def cost():
        count = 0

        def step():
            nonlocal count
            count += 1

        state._backing._db.set_progress_handler(step, 1)
        batches.claim()
        state._backing._db.set_progress_handler(None, 0)
        batches.write({"a": 1})
        batches.mark()
        batches.settle()
        steps.append(count)

    batches.commit({"a": 1})
    cost()
    batches.commit(dict.fromkeys(WORDS, 1))
    cost()

    assert steps[0] == steps[1]
