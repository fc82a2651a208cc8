"""Two states of a topology on one table, however its address is spelled, are found out."""

from __future__ import annotations

import os
import sqlite3

import pytest

from waterspout import Config
from waterspout._schema import Schema
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.errors import ForeignStoreError
from waterspout.state import MemoryMapState
from waterspout.state.redis import RedisState
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout, LocalBatches, LocalRun
from waterspout.transactional import (
    BatchBolt,
    Committer,
    MemoryTransactionalSpout,
    TransactionalTopologyBuilder,
)
from waterspout.trident import Count, MapGet, TridentTopology

ROWS = ["a", "b", "a", "c"]
COLUMNS = Schema.parse("word string"), Schema.parse("count bigint")


def counting(*states, topology=None):
    """One stream per state, each counted into its own."""
    topology = topology or TridentTopology("twice")
    for n, state in enumerate(states):
        words = topology.new_stream(f"words{n}", FixedBatchSpout("word string", 2, ROWS))
        words.group_by("word").persistent_aggregate(state, Count(), out="count")
    return topology


def run(topology, home):
    it = LocalRun(topology, Config(), store=EmbeddedStore(home, "twice"))
    try:
        it.finish()
    finally:
        it.close()


def words(path):
    with sqlite3.connect(path) as db:
        return dict(db.execute("SELECT word, count FROM words"))


def spellings(folder):
    (folder / "sub").mkdir()
    os.symlink(folder, folder / "link")
    os.symlink(folder / "s.db", folder / "linked.db")
    there = ("s.db", "sub/../s.db", "link/s.db", "linked.db")
    return [SQLiteState.opaque(folder / name, table="words") for name in there]


@pytest.mark.parametrize("other", [1, 2, 3], ids=["dots", "linked folder", "linked file"])
def test_a_file_under_two_paths_is_refused_before_anything_is_written(tmp_path, other):
    first, *others = spellings(tmp_path)
    topology = counting(first, others[other - 1])

    for _ in range(2):  # by the first claim, and then at the start of the next run
        with pytest.raises(ForeignStoreError, match="'state1' of 'twice' is kept, so 'state2' may"):
            run(topology, tmp_path / "home")

    assert words(tmp_path / "s.db") == {}


def test_a_server_under_two_addresses_is_refused_before_anything_is_written(redis_server, tmp_path):
    url = redis_server.url
    bare, named = url.removesuffix("/0"), url.replace("127.0.0.1", "localhost")
    assert len({url, bare, named}) == 3
    for n, pair in enumerate([(url, bare), (url, named)]):
        states = [RedisState.opaque(address, prefix=f"one-table-{n}") for address in pair]
        with pytest.raises(ForeignStoreError, match="'state1' of 'twice' is kept, so 'state2' may"):
            run(counting(*states), tmp_path / f"home{n}")

        assert list(states[0].bind(*COLUMNS).make_state(Config(), 0, 1).scan()) == []


def test_a_state_in_memory_under_two_recipes_is_refused(tmp_path):
    class Elsewhere(MemoryMapState):
        def location(self):
            return f"elsewhere:{self.id}"

    states = MemoryMapState(id="one-table"), Elsewhere(id="one-table")

    with pytest.raises(ForeignStoreError, match="'state1' of 'twice' is kept, so 'state2' may"):
        run(counting(*states), tmp_path / "home")


def test_states_that_changed_places_are_refused_at_the_start(tmp_path):
    one, two = (SQLiteState.opaque(tmp_path / f"{n}.db", table="words") for n in "12")
    run(counting(one, two), tmp_path / "home")

    with pytest.raises(ForeignStoreError, match="if the order of the states has changed"):
        run(counting(two, one), tmp_path / "home")

    assert words(tmp_path / "1.db") == {"a": 2, "b": 1, "c": 1}


def test_a_static_state_may_read_the_table_that_another_node_writes(tmp_path):
    first, other, *_ = spellings(tmp_path)
    topology = TridentTopology("twice")
    static = topology.new_static_state(other.bind(*COLUMNS))
    words_before = topology.new_stream("ask", FixedBatchSpout("word string", 2, ROWS))
    words_before.state_query(static, "word", MapGet(), out="count bigint")
    counting(first, topology=topology)

    run(topology, tmp_path / "home")

    assert words(tmp_path / "s.db") == {"a": 2, "b": 1, "c": 1}


class Counting(BatchBolt, Committer):
    """Counts words into a state of its own."""

    output_fields = ("tx",)

    def __init__(self, state):
        self.state = state

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.counts = context.state(self.state)

    def execute(self, tuple):
        self.counts.update(tuple["word"], lambda old: (old or 0) + 1)


def test_states_of_two_bolts_are_refused_in_the_same_way(tmp_path):
    first, other, *_ = spellings(tmp_path)
    spout = MemoryTransactionalSpout([ROWS], "word", 2)
    builder = TransactionalTopologyBuilder("twice", "spout", spout)
    for name, state in (("one", first), ("two", other)):
        bolt = builder.set_bolt(name, Counting(name)).fields_grouping("spout", "word")
        bolt.with_state(name, state, keys="word string", values="count bigint")

    batches = LocalBatches(builder.build_topology(), Config(retry_backoff_millis=1))
    with pytest.raises(ForeignStoreError, match="'one' of 'twice' is kept, so 'two' may"):
        batches.finish()
    batches.close()

    assert words(tmp_path / "s.db") == {}
