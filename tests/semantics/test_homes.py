"""One topology name under two homes: what one has written never passes for the other's."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

from waterspout.coordination.embedded import EmbeddedStore
from waterspout.errors import FencedError, StateMismatchError
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout, LocalRun
from waterspout.trident import Count, TridentTopology


def start(home, path, rows):
    topology = TridentTopology("counted")
    state = SQLiteState.opaque(path, table="words")
    stream = topology.new_stream("rows", FixedBatchSpout("word string", 1, rows))
    stream.group_by("word").persistent_aggregate(state, Count(), out="count")
    return LocalRun(topology, store=EmbeddedStore(home, "counted"))


def table(path):
    with sqlite3.connect(path) as db:
        return dict(db.execute("SELECT word, count FROM words"))


def run(home, path, rows):
    it = start(home, path, rows)
    it.finish()
    it.close()


def test_a_second_home_is_refused_at_the_start(tmp_path):
    path = tmp_path / "state.db"
    run(tmp_path / "one", path, ["a", "a"])
    run(tmp_path / "two", tmp_path / "other.db", ["b", "b"])

    with pytest.raises(StateMismatchError, match="another waterspout home"):
        start(tmp_path / "two", path, ["b", "b", "b"])

    assert table(path) == {"a": 2}


def test_two_homes_at_once_do_not_overwrite_each_other(tmp_path):
    path = tmp_path / "state.db"
    first, second = (start(tmp_path / name, path, ["a", "a"]) for name in ("one", "two"))
    first.finish()

    with pytest.raises((FencedError, StateMismatchError)):
        second.finish()

    assert table(path) == {"a": 2}


def test_a_copied_home_does_not_go_on_beside_the_original(tmp_path):
    path = tmp_path / "state.db"
    run(tmp_path / "one", path, ["a"])
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    original = start(tmp_path / "one", path, ["a", "a"])

    with pytest.raises(FencedError, match="from another home"):
        start(tmp_path / "copy", path, ["a", "a"])
    original.finish()

    assert table(path) == {"a": 2}
