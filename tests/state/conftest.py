"""SQLite states in a file of the test's own, closed when it ends, and a look from outside."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.state._base import StateKind
from waterspout.state.sqlite import SQLiteState


@pytest.fixture
def db(tmp_path):
    return tmp_path / "counts.db"


@pytest.fixture
def make_state(db):
    """Make the live state of a table; by default the opaque one of a word count."""
    states = []

    def make(keys="word string", values="count bigint", *, kind=StateKind.OPAQUE, table=None):
        factory = SQLiteState(str(db), table or "word_counts", kind=kind)
        if keys is not None:
            factory = factory.bind(Schema.parse(keys), Schema.parse(values))
        states.append(factory.make_state(Config(), 0, 1))
        return states[-1]

    yield make
    for state in states:
        state.close()


@pytest.fixture
def select(db):
    """Run a query as anyone would who opens the file."""

    def query(sql):
        with closing(sqlite3.connect(db)) as connection:
            return connection.execute(sql).fetchall()

    return query
