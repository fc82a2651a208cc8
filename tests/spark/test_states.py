"""States on real Spark, written in the driver and by tasks: the same rows either way."""

from __future__ import annotations

import math
import random
import sqlite3
from collections import Counter
from dataclasses import dataclass

import pytest

from tests.soaking import soaked
from tests.trident.support import capture, finish
from waterspout import Config, faults
from waterspout._schema import Schema
from waterspout.errors import StateMismatchError
from waterspout.faults import Fault, FaultPlan
from waterspout.state import MemoryMapState, State, StateFactory
from waterspout.state._head import Head
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import (
    Count,
    MapGet,
    QueryFunction,
    ReducerAggregator,
    SnapshotGet,
    Split,
    StateUpdater,
    Sum,
    TridentTopology,
    expr,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

SENTENCES = ["the cow jumped over the moon", "the man went to the store", "to be or not to be"]
COUNTS = Counter(" ".join(SENTENCES).split())
# By driver is how the tests of all operations commit.
both_ways = pytest.mark.parametrize("where", [soaked("driver", id="driver"), "tasks"])
both_ways_in_soak = pytest.mark.parametrize("where", [soaked("driver"), soaked("tasks")])


def conf(where, **more):
    return Config(commit_in=where, retry_backoff_millis=1, **more)


def sqlite(path, table, where="driver"):
    return SQLiteState.opaque(path, table=table, driver_only=where == "driver")


def rows_of(path, query):
    with sqlite3.connect(path) as db:
        return sorted(db.execute(query).fetchall(), key=repr)


def stream_of(fields, rows, size):
    topology = TridentTopology("states")
    return topology, topology.new_stream("rows", FixedBatchSpout(fields, size, rows))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "states.db"


@both_ways
def test_a_grouped_count_is_the_same_table_wherever_it_is_committed(spark, path, where):
    topology, lines = stream_of("line string", SENTENCES, 1)
    counts = (
        lines.each("line", Split(), out="word")
        .group_by("word")
        .persistent_aggregate(sqlite(path, "counts", where), Count(), out="count")
        .parallelism_hint(3)
    )

    finish(topology, spark, conf(where, max_spout_pending=2))

    assert rows_of(path, "SELECT word, count FROM counts") == sorted(COUNTS.items(), key=repr)
    # Every row says which batch wrote it last, and what was there before.
    assert rows_of(path, "SELECT count, _txid, _prev_count FROM counts WHERE word = 'to'") == [
        (3, 3, 1)
    ]
    assert counts.get("to") == 3


@pytest.mark.soak
@both_ways
def test_a_global_sum_and_count_are_one_row_each(spark, path, where):
    topology, numbers = stream_of("n bigint", range(1, 101), 40)
    total = numbers.persistent_aggregate(sqlite(path, "total", where), "n", Sum(), out="total")
    count = numbers.persistent_aggregate(sqlite(path, "counted", where), Count(), out="count")

    finish(topology, spark, conf(where))

    assert rows_of(path, "SELECT total, _txid FROM total") == [(5050, 3)]
    assert rows_of(path, "SELECT count, _txid FROM counted") == [(100, 3)]
    assert (total.get(), count.get()) == (5050, 100)


class Average(ReducerAggregator[list]):
    """[sum, count], as JSON in one column; must be prepared before it is used."""

    def prepare(self, conf, context):
        self.start = [0, 0]

    def init(self):
        return list(self.start)

    def reduce(self, value, tuple):
        return [value[0] + tuple["n"], value[1] + 1]

    def output_types(self, inputs):
        return ["array<bigint>"]


@both_ways_in_soak
def test_a_reducer_folds_every_tuple_of_every_batch(spark, path, where):
    dice = random.Random(3)
    rows = [(dice.choice("abc"), dice.randint(0, 9)) for _ in range(60)]
    topology, numbers = stream_of("k string, n bigint", rows, 25)
    by_key = numbers.group_by("k").persistent_aggregate(
        sqlite(path, "by_key", where), "n", Average(), out="average"
    )
    over_all = numbers.persistent_aggregate(
        sqlite(path, "over_all", where), "n", Average(), out="average"
    )

    finish(topology, spark, conf(where))

    recount = {key: [n for k, n in rows if k == key] for key in "abc"}
    assert by_key.multi_get(list("abc")) == [[sum(ns), len(ns)] for ns in recount.values()]
    assert over_all.get() == [sum(n for _, n in rows), 60]


@both_ways_in_soak
def test_null_nan_and_odd_keys_keep_apart_and_together(spark, path, where):
    keys = [("", 0.0), (None, math.nan), (None, -0.0), ("x'\"; --", None), ("é", 1e300)]
    topology, rows = stream_of("s string, x double", keys * 3, 4)
    counts = rows.group_by(["s", "x"]).persistent_aggregate(
        sqlite(path, "odd", where), Count(), out="n"
    )

    finish(topology, spark, conf(where))

    assert counts.multi_get(keys) == [3, 3, 3, 3, 3]
    assert rows_of(path, "SELECT count(*), sum(n) FROM odd") == [(5, 15)]


@pytest.mark.soak
def test_a_result_above_the_cap_is_committed_in_chunks_exactly(spark, path):
    # Fails in the middle of the 50 chunks of batch 2, and so replays some and not others.
    where = {"txid": 2, "attempt": 0}
    faults.install(FaultPlan([Fault("write.after", "fail", nth=20, where=where)]))
    topology, numbers = stream_of("n bigint", range(10_000), 5000)
    keyed = numbers.each("n", expr("n % 5000"), out="k bigint")
    keyed.group_by("k").persistent_aggregate(sqlite(path, "many"), Count(), out="c")

    run = finish(topology, spark, Config(collect_max_rows=100, retry_backoff_millis=1))

    assert [p["written_rows"] for p in run.recent_progress] == [5000, 5000]
    assert rows_of(path, "SELECT min(k), max(k), count(*), min(c), max(c) FROM many") == [
        (0, 4999, 5000, 2, 2)
    ]
    assert [p["attempt"] for p in run.recent_progress] == [0, 1]


class LocationDB(State):
    """The example of Trident's documentation: where each user is, in a database."""

    def __init__(self, path):
        self._db = sqlite3.connect(path, timeout=30, isolation_level=None)
        self._db.execute("CREATE TABLE IF NOT EXISTS places (id INTEGER PRIMARY KEY, place TEXT)")
        self._txid = None

    def begin_commit(self, txid):
        self._txid = txid
        self._db.execute("BEGIN IMMEDIATE")

    def commit(self, txid):
        assert txid == self._txid
        self._db.execute("COMMIT")

    def set_locations_bulk(self, ids, places):
        self._db.executemany(
            "INSERT OR REPLACE INTO places VALUES (?, ?)", zip(ids, places, strict=True)
        )

    def bulk_get_locations(self, ids):
        found = (self._db.execute("SELECT place FROM places WHERE id = ?", (i,)) for i in ids)
        return [row[0] if (row := rows.fetchone()) else None for rows in found]

    def close(self):
        self._db.close()


@dataclass(frozen=True)
class LocationDBFactory(StateFactory):
    path: str
    driver_only: bool = True

    def make_state(self, conf, partition_index, num_partitions):
        return LocationDB(self.path)


class LocationUpdater(StateUpdater[LocationDB]):
    def update_state(self, state, tuples, collector):
        state.set_locations_bulk([t[0] for t in tuples], [t[1] for t in tuples])
        for t in tuples:
            collector.emit((t["userid"], f"now in {t['location']}"))


class QueryLocation(QueryFunction[LocationDB, str]):
    def batch_retrieve(self, state, tuples):
        return state.bulk_get_locations([t[0] for t in tuples])

    def execute(self, tuple, result, collector):
        collector.emit((result,))


@both_ways
def test_a_state_of_the_users_own_is_updated_by_the_users_own_updater(spark, path, where):
    moves = [(i, place) for place in ("home", "work") for i in range(5)]
    topology, locations = stream_of("userid bigint, location string", moves, 5)
    state = locations.partition_persist(
        LocationDBFactory(str(path), where == "driver"), ["userid", "location"], LocationUpdater(),
        out="userid bigint, news string",
    )  # fmt: skip
    news = capture(state.new_values_stream()) if where == "driver" else None

    finish(topology, spark, conf(where))

    assert rows_of(path, "SELECT id, place FROM places") == [(i, "work") for i in range(5)]
    if news is not None:
        assert news.batches == {
            1: [(i, "now in home") for i in range(5)],
            2: [(i, "now in work") for i in range(5)],
        }


def test_a_static_state_of_the_users_own_is_asked_by_tasks(spark, path):
    state = LocationDB(str(path))
    state.set_locations_bulk([1, 2], ["home", "work"])
    state.close()
    topology, users = stream_of("userid bigint", [1, 2, 3], 2)
    locations = topology.new_static_state(LocationDBFactory(str(path), driver_only=False))
    kept = capture(users.state_query(locations, "userid", QueryLocation(), out="location string"))

    finish(topology, spark)

    assert kept.rows == [(1, "home"), (2, "work"), (3, None)]


def test_rows_with_a_map_in_them_can_be_persisted(spark):
    topology, rows = stream_of("k string, m map<string,bigint>", [("a", {"x": 1}), ("b", None)], 2)
    kept = capture(rows)

    finish(topology, spark, Config(state_partitions=3))

    assert kept.rows == [("a", [("x", 1)]), ("b", None)]


@both_ways
def test_new_values_feed_a_second_state_exactly(spark, path, where):
    # Batches: a b | a a | c b. Every batch passes on each key that it changed, once.
    topology, words = stream_of("word string", list("abaacb"), 2)
    counts = words.group_by("word").persistent_aggregate(
        sqlite(path, "counts", where), Count(), out="count"
    )
    new = counts.new_values_stream()
    new.group_by("count").persistent_aggregate(sqlite(path, "sizes", where), Count(), out="n")
    new.persistent_aggregate(sqlite(path, "sum", where), "count", Sum(), out="total")

    finish(topology, spark, conf(where, max_spout_pending=3))

    assert rows_of(path, "SELECT word, count FROM counts") == [("a", 3), ("b", 2), ("c", 1)]
    # New values: a 1, b 1; a 3; c 1, b 2.
    assert rows_of(path, "SELECT count, n FROM sizes") == [(1, 3), (2, 1), (3, 1)]
    assert rows_of(path, "SELECT total FROM sum") == [(8,)]


@pytest.mark.soak
def test_new_values_go_through_functions_in_the_commit_phase(spark, tmp_path):
    log = str(tmp_path / "log")

    def note(text):
        with open(log, "a") as file:
            file.write(f"{text}\n")
        return True

    topology, words = stream_of("word string", list("aab"), 2)
    counts = words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), out="count")
    news = counts.new_values_stream().each(
        ["word", "count"], lambda word, count: f"{word}={count}", out="text string"
    )
    kept, upper = capture(news, "text"), capture(news.each("text", expr("upper(text)"), "t string"))
    news.filter("text", note)  # nobody reads it, and it runs

    finish(topology, spark)

    assert kept.batches == {1: [("a=2",)], 2: [("b=1",)]}
    assert [row[-1] for row in upper.rows] == ["A=2", "B=1"]
    assert (tmp_path / "log").read_text() == "a=2\nb=1\n"


@both_ways
def test_a_query_on_its_own_state_sees_exactly_the_batches_before(spark, path, where):
    topology, words = stream_of("id bigint, word string", list(enumerate("aabaab")), 2)
    counts = words.group_by("word").persistent_aggregate(
        sqlite(path, "counts", where), Count(), out="count"
    )
    asked = words.state_query(counts, "word", MapGet(), out="before")
    # What was found, by tuple, in a state of its own.
    found = asked.each("before", expr("coalesce(before, 0)"), out="n bigint")
    found.group_by(["id", "n"]).persistent_aggregate(
        sqlite(path, "seen", where), Count(), out="times"
    )

    finish(topology, spark, conf(where, max_spout_pending=3))

    # Batches: a a | b a | a b.
    assert rows_of(path, "SELECT id, n, times FROM seen") == [
        (0, 0, 1), (1, 0, 1), (2, 0, 1), (3, 2, 1), (4, 3, 1), (5, 1, 1),
    ]  # fmt: skip


def test_a_query_that_follows_from_the_update_sees_the_batches_before_too(spark):
    topology, words = stream_of("word string", list("aabaab"), 2)
    counts = words.group_by("word").persistent_aggregate(MemoryMapState(), Count(), out="count")
    asked = counts.new_values_stream().state_query(counts, "word", MapGet(), out="before")
    kept = capture(asked)

    finish(topology, spark, Config(max_spout_pending=3))

    assert kept.batches == {
        1: [("a", 2, None)],
        2: [("a", 3, 2), ("b", 1, None)],
        3: [("a", 4, 3), ("b", 2, 1)],
    }


def test_map_get_and_snapshot_get_ask_static_states(spark, path):
    memory, total = MemoryMapState(), MemoryMapState()
    by_tasks = sqlite(path, "counts", "tasks")
    writer, words = stream_of("word string", list("aabca"), 2)
    words.group_by("word").persistent_aggregate(memory, Count(), out="n")
    words.group_by("word").persistent_aggregate(by_tasks, Count(), out="n")
    words.persistent_aggregate(total, Count(), out="n")
    finish(writer, spark)

    reader = TridentTopology("reader")
    asked = reader.new_stream("words", FixedBatchSpout("word", 1, list("az")))
    bound = by_tasks.bind(Schema.parse("word string"), Schema.parse("n bigint"))
    kept = capture(
        asked.state_query(reader.new_static_state(memory), "word", MapGet(), out="m bigint")
        .state_query(reader.new_static_state(bound), "word", MapGet(), out="t bigint")
        .state_query(reader.new_static_state(total), "word", GetTotal(), out="total bigint")
    )
    # In the commit phase too, where this topology's own batches must not count.
    counts = asked.group_by("word").persistent_aggregate(MemoryMapState(), Count(), out="own")
    late = capture(
        counts.new_values_stream()
        .state_query(reader.new_static_state(memory), "word", MapGet(), out="m bigint")
        .state_query(reader.new_static_state(bound), "word", MapGet(), out="t bigint")
    )

    finish(reader, spark)

    assert kept.rows == [("a", 3, 3, 5), ("z", None, None, 5)]
    assert late.rows == [("a", 1, 3, 3), ("z", 1, None, None)]


class GetTotal(QueryFunction):
    """SnapshotGet for a state that this topology knows only as a map."""

    def batch_retrieve(self, state, tuples):
        return state.multi_get([()]) * len(tuples)

    def execute(self, tuple, result, collector):
        collector.emit((result,))


def test_snapshot_get_sees_the_global_value_before_the_batch(spark):
    topology, numbers = stream_of("n bigint", [1, 2, 3, 4], 1)
    total = numbers.persistent_aggregate(MemoryMapState(), "n", Sum(), out="total")
    kept = capture(numbers.state_query(total, "n", SnapshotGet(), out="before"))

    finish(topology, spark, Config(max_spout_pending=2))

    assert kept.rows == [(1, None), (2, 1), (3, 3), (4, 6)]
    assert total.get() == 10


@pytest.mark.soak
@both_ways
def test_several_states_of_one_topology_hold_the_same_batches(spark, path, where):
    topology, words = stream_of("word string, n bigint", [(w, len(w)) for w in COUNTS], 6)
    words.group_by("word").persistent_aggregate(sqlite(path, "a", where), "n", Sum(), out="total")
    words.persistent_aggregate(sqlite(path, "b", where), Count(), out="words")
    other = SQLiteState.transactional(path, table="c", driver_only=where == "driver")
    words.filter("n", expr("n > 3")).group_by("n").persistent_aggregate(other, Count(), out="words")

    run = finish(topology, spark, conf(where))

    sizes = Counter(len(word) for word in COUNTS if len(word) > 3)
    assert rows_of(path, "SELECT word, total FROM a") == sorted((w, len(w)) for w in COUNTS)
    assert rows_of(path, "SELECT words FROM b") == [(12,)]
    assert rows_of(path, "SELECT n, words FROM c") == sorted(sizes.items())
    assert [p["txid"] for p in run.recent_progress] == [1, 2]
    heads = rows_of(path, "SELECT name, json_extract(head, '$.txid') FROM _waterspout_heads")
    assert heads == [(name, run.last_progress["txid"]) for name in "abc"]


def test_a_key_of_several_typed_fields_is_read_back_with_them(spark, path):
    topology, rows = stream_of(
        "a string, b bigint, c boolean", [("x", 1, True), ("x", 1, False)], 1
    )
    state = rows.group_by(["a", "b", "c"]).persistent_aggregate(
        sqlite(path, "typed"), Count(), out="n"
    )

    finish(topology, spark)

    assert state.get(("x", 1, True)) == 1
    assert state.multi_get([("x", 1, False), ["x", 1, True], ("x", 2, True)]) == [1, 1, None]


@pytest.mark.parametrize("reads_on", [False, True], ids=["", "its new values are read"])
def test_a_table_that_tasks_wrote_and_somebody_emptied_stops_the_next_run(spark, path, reads_on):
    def topology(lines):
        topology, stream = stream_of("line string", lines, 2)
        words = stream.each("line", Split(), out="word").group_by("word")
        counts = words.persistent_aggregate(sqlite(path, "counts", "tasks"), Count(), out="count")
        counts.parallelism_hint(2)
        if reads_on:
            sums = sqlite(path, "sums", "tasks")
            counts.new_values_stream().persistent_aggregate(sums, "count", Sum(), out="total")
        return topology

    config = conf("tasks")
    finish(topology(SENTENCES[:2]), spark, config)
    ((head,),) = rows_of(path, "SELECT head FROM _waterspout_heads WHERE name = 'counts'")
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM counts")

    with pytest.raises(StateMismatchError, match="holds no record of key"):
        finish(topology(SENTENCES), spark, config)

    assert len(Head.from_text(head).witnesses) == 1
    assert rows_of(path, "SELECT * FROM counts") == []
