"""`exactly_once` under Structured Streaming: replays, kills, wrong checkpoints, Connect."""

from __future__ import annotations

import random
import shutil
import signal
import sqlite3
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from tests.soaking import soaked
from tests.spark.killing import run_child, said
from tests.spark.sink_child import query, sink_of
from waterspout import Config, faults, submit
from waterspout._schema import Schema
from waterspout.errors import SourceError
from waterspout.faults import Fault, FaultPlan, InjectedError
from waterspout.sinks import adopt, exactly_once
from waterspout.spouts.files import FileSpout
from waterspout.state.postgres import PostgresState
from waterspout.state.redis import RedisState
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Columns, Count, Max, Split, Sum, TridentTopology, expr

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

CHILD = "tests.spark.sink_child"
WORDS = [f"{'x' * (i % 5)}word{i}" for i in range(30)]


def write_files(folder: Path, numbers: range) -> None:
    rng = random.Random(numbers.start)
    (folder / "in").mkdir(exist_ok=True)
    for number in numbers:
        lines = [" ".join(rng.choices(WORDS, k=5)) for _ in range(20)]
        (folder / "in" / f"{number:03}.txt").write_text("\n".join(lines) + "\n")


def recount(folder: Path) -> Counter[str]:
    counts: Counter[str] = Counter()
    for path in (folder / "in").iterdir():
        counts.update(path.read_text().split())
    return counts


def rows(folder: Path) -> dict[str, tuple[int, int, int]]:
    with sqlite3.connect(folder / "counts.db") as db:
        found = db.execute("SELECT word, count, letters, longest FROM word_counts")
        return {word: tuple(values) for word, *values in found}


def total(folder: Path) -> int:
    with sqlite3.connect(folder / "counts.db") as db:
        return db.execute("SELECT count FROM total").fetchone()[0]


def assert_exact(folder: Path) -> None:
    counts = recount(folder)
    assert rows(folder) == {w: (n, n * len(w), len(w)) for w, n in counts.items()}
    assert total(folder) == counts.total()


def run_query(spark, folder: Path, sink=None) -> None:
    running = query(spark, folder, sink or sink_of(folder))
    try:
        running.processAllAvailable()
    finally:
        running.stop()


def newest_commit(folder: Path) -> Path:
    return max((folder / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))


def forget_last_commit(folder: Path) -> None:
    newest = newest_commit(folder)
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink()


def test_counts_are_exact_and_a_batch_that_spark_repeats_is_not_counted_again(spark, tmp_path):
    write_files(tmp_path, range(3))
    passed = []
    faults.install(lambda name, context: passed.append((context["txid"], name)))
    run_query(spark, tmp_path)
    faults.install(None)
    # The steps of the commit protocol, for both states; one write a partition. Both are claimed
    # before the first is written.
    steps = [name for txid, name in passed if txid == 1 and name != "processing"]
    once = [s for i, s in enumerate(steps) if s[:5] != "write" or s not in steps[i - 2 : i]]
    known = [point for point in faults.BATCH_POINTS if point in steps]
    claims = known.index("write.before")
    assert once == known[:claims] * 2 + known[claims:] * 2
    assert {"commit.before_record", "head.after", "write.after", "settle.after"} <= set(steps)
    assert_exact(tmp_path)
    before = rows(tmp_path)

    forget_last_commit(tmp_path)
    run_query(spark, tmp_path)  # Spark repeats batch 2, the state has it

    assert int(newest_commit(tmp_path).name) == 2
    assert rows(tmp_path) == before
    write_files(tmp_path, range(3, 5))
    run_query(spark, tmp_path)
    assert_exact(tmp_path)


@pytest.mark.soak  # shows that the test above can fail
def test_without_it_the_repeated_batch_is_counted_twice(spark, tmp_path):
    # What is being mended: the same bookkeeping-free upsert as people write it by hand.
    write_files(tmp_path, range(2))

    def by_hand(frame, batch_id):
        with sqlite3.connect(tmp_path / "counts.db") as db:
            db.execute("CREATE TABLE IF NOT EXISTS total (count INTEGER)")
            db.execute("INSERT INTO total VALUES (?)", (frame.count(),))

    run_query(spark, tmp_path, by_hand)
    forget_last_commit(tmp_path)
    run_query(spark, tmp_path, by_hand)

    with sqlite3.connect(tmp_path / "counts.db") as db:
        counted = db.execute("SELECT sum(count) FROM total").fetchone()[0]
    assert counted == 300
    assert recount(tmp_path).total() == 200


@pytest.mark.parametrize("mode", [soaked("driver"), "tasks"])
def test_an_attempt_that_failed_half_way_is_made_good(spark, tmp_path, mode):
    write_files(tmp_path, range(3))
    local = SQLiteState.opaque(tmp_path / "counts.db", table="t", driver_only=mode == "driver")
    sink = exactly_once(local, keys="word", count=Count()).configured(
        Config(commit_in=mode, state_partitions=4)
    )
    where = {"txid": 2, "partition": 1}
    faults.install(FaultPlan([Fault("write.after", "raise", nth=None, where=where)]))
    with pytest.raises(StreamingQueryException, match=r"injected at write\.after"):
        run_query(spark, tmp_path, sink)
    faults.install(None)

    run_query(spark, tmp_path, sink)

    with sqlite3.connect(tmp_path / "counts.db") as db:
        assert dict(db.execute("SELECT word, count FROM t")) == recount(tmp_path)


@pytest.mark.soak
def test_a_younger_checkpoint_is_refused_and_nothing_is_written(spark, tmp_path):
    write_files(tmp_path, range(3))
    run_query(spark, tmp_path)
    before = rows(tmp_path)

    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match="another checkpoint"):
        run_query(spark, tmp_path)

    assert rows(tmp_path) == before
    assert_exact(tmp_path)


def test_a_checkpoint_restored_from_an_older_copy_is_refused(spark, tmp_path):
    write_files(tmp_path, range(2))
    run_query(spark, tmp_path)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    write_files(tmp_path, range(2, 5))
    run_query(spark, tmp_path)
    before = rows(tmp_path)

    shutil.rmtree(tmp_path / "checkpoint")
    shutil.move(tmp_path / "copy", tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match="younger than the state"):
        run_query(spark, tmp_path)

    assert rows(tmp_path) == before


@pytest.mark.soak
def test_a_sink_grows_by_a_column_and_a_state(spark, tmp_path):
    path = tmp_path / "counts.db"
    write_files(tmp_path, range(2))
    run_query(spark, tmp_path)
    write_files(tmp_path, range(2, 3))
    grown = (
        exactly_once(
            SQLiteState.opaque(path, table="word_counts"),
            keys=["word"],
            count=Count(),
            letters=("size", Sum()),
            longest=("size", Max()),
            late=Count(),
        )
        .also(SQLiteState.transactional(path, table="total"), count=Count())
        .also(SQLiteState.opaque(path, table="since"), keys=["word"], count=Count())
    )
    with pytest.raises(StreamingQueryException, match=r"'since' .* is empty.*starting_at\(2\)"):
        run_query(spark, tmp_path, grown)

    run_query(spark, tmp_path, grown.starting_at(2))
    write_files(tmp_path, range(3, 4))
    run_query(spark, tmp_path, grown.starting_at(2))

    assert_exact(tmp_path)
    late = Counter(" ".join((tmp_path / "in" / f"{n:03}.txt").read_text() for n in (2, 3)).split())
    with sqlite3.connect(path) as db:
        assert dict(db.execute("SELECT word, count FROM since")) == late
        column = dict(db.execute("SELECT word, late FROM word_counts"))
    assert column == {word: late.get(word) for word in recount(tmp_path)}


@pytest.mark.soak
def test_an_empty_state_under_a_query_that_has_run_before_must_be_said_to_begin_here(
    spark, tmp_path
):
    write_files(tmp_path, range(2))
    run_query(spark, tmp_path, lambda frame, batch_id: None)
    write_files(tmp_path, range(2, 4))

    with pytest.raises(StreamingQueryException, match=r"starting_at\(2\)"):
        run_query(spark, tmp_path)
    run_query(spark, tmp_path, sink_of(tmp_path).starting_at(2))
    # With another first batch, the next batch would be taken for one that is there.
    write_files(tmp_path, range(4, 5))
    with pytest.raises(StreamingQueryException, match=r"begins with batch 2 .*starting_at\(3\)"):
        run_query(spark, tmp_path, sink_of(tmp_path).starting_at(3))
    run_query(spark, tmp_path)

    late: Counter[str] = Counter()
    for number in (2, 3, 4):
        late.update((tmp_path / "in" / f"{number:03}.txt").read_text().split())
    assert {word: n for word, (n, _, _) in rows(tmp_path).items()} == late


def test_two_queries_on_one_table_are_refused(spark, tmp_path):
    write_files(tmp_path, range(1))
    run_query(spark, tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    write_files(other, range(1))

    with pytest.raises(StreamingQueryException, match="another checkpoint"):
        run_query(spark, other, sink_of(tmp_path))
    with pytest.raises(StreamingQueryException, match="belongs to 'sink foreachBatch'"):
        run_query(spark, other, sink_of(tmp_path).named("mine"))

    assert_exact(tmp_path)


@pytest.mark.soak
def test_one_sink_given_to_two_queries_serves_the_first_and_refuses_the_second(spark, tmp_path):
    write_files(tmp_path, range(2))
    other = tmp_path / "other"
    other.mkdir()
    write_files(other, range(1))
    sink = sink_of(tmp_path)
    run_query(spark, tmp_path, sink)

    # Its batch 0 must not be taken for the batch 0 that the state has.
    with pytest.raises(StreamingQueryException, match="another checkpoint"):
        run_query(spark, other, sink)

    write_files(tmp_path, range(2, 3))
    run_query(spark, tmp_path, sink)
    assert_exact(tmp_path)


def test_of_two_states_only_the_one_without_the_batch_is_written(spark, tmp_path):
    write_files(tmp_path, range(2))
    sink = sink_of(tmp_path)
    # The first state is settled, the second one is half-way in its commit.
    fault = Fault("settle.before", "raise", nth=2, where={"txid": 2})
    faults.install(FaultPlan([fault]))
    with pytest.raises(StreamingQueryException, match="injected"):
        run_query(spark, tmp_path, sink)
    faults.install(None)

    run_query(spark, tmp_path, sink)

    assert_exact(tmp_path)


def test_two_states_of_a_sink_that_are_one_table_are_refused_before_anything_is_written(
    spark, tmp_path
):
    write_files(tmp_path, range(1))
    (tmp_path / "link").symlink_to(tmp_path)
    one, other = (
        SQLiteState.opaque(folder / "one.db", table="counts")
        for folder in (tmp_path, tmp_path / "link")
    )
    sink = exactly_once(one, keys=["word"], count=Count()).also(other, keys=["word"], count=Count())

    for _ in range(2):
        with pytest.raises(
            StreamingQueryException, match="is where 'state1' of 'sink foreachBatch"
        ):
            run_query(spark, tmp_path, sink)

    with sqlite3.connect(tmp_path / "one.db") as db:
        assert db.execute("SELECT * FROM counts").fetchall() == []


@pytest.mark.soak
@pytest.mark.parametrize(
    ("server", "mode"),
    [
        soaked("postgres_server", "driver"),
        ("postgres_server", "tasks"),
        soaked("redis_server", "driver"),
        soaked("redis_server", "tasks"),
    ],
)
def test_a_repeated_batch_is_not_counted_again_on_a_server(spark, tmp_path, request, server, mode):
    place = request.getfixturevalue(server)
    if server == "postgres_server":
        state = PostgresState.opaque(place.fresh_database(), table="counts")
    else:
        state = RedisState.opaque(place.url, prefix=f"counts-{mode}")
    sink = exactly_once(state, keys=["word"], count=Count()).configured(
        Config(commit_in=mode, state_partitions=2)
    )
    write_files(tmp_path, range(2))
    run_query(spark, tmp_path, sink)
    forget_last_commit(tmp_path)
    write_files(tmp_path, range(2, 3))

    run_query(spark, tmp_path, sink)

    (target,) = sink.targets
    bound = target.factory.bind(Schema.parse("word string"), Schema.parse("count bigint"))
    found = bound.make_state(Config(), 0, 1)
    words = recount(tmp_path)
    assert found.multi_get([(word,) for word in words]) == list(words.values())
    found.close()


def adopting_topology(folder: Path) -> TridentTopology:
    topology = TridentTopology("adopts")
    lines = topology.new_stream("lines", FileSpout(folder / "in", max_files=1))
    words = lines.each("value", Split(), out="word").each(
        "word", expr("cast(length(word) as bigint)"), out="size bigint"
    )
    path = folder / "counts.db"
    words.group_by("word").persistent_aggregate(
        SQLiteState.opaque(path, table="word_counts"),
        Columns(count=Count(), letters=("size", Sum()), longest=("size", Max())),
    )
    total = SQLiteState.transactional(path, table="total")
    words.persistent_aggregate(total, Columns(count=Count()))
    return topology


def test_a_topology_adopts_the_query_and_goes_on_where_it_stopped(spark, tmp_path):
    write_files(tmp_path, range(3))
    run_query(spark, tmp_path)

    # Interrupted before the mark, after it, and with one of two states settled.
    for point in ("mark.before", "mark.after", "settle.after"):
        faults.install(FaultPlan([Fault(point, "raise")]))
        with pytest.raises(InjectedError):
            adopt(tmp_path / "checkpoint", adopting_topology(tmp_path))
        faults.install(None)
    assert adopt(tmp_path / "checkpoint", adopting_topology(tmp_path)) == 4
    assert adopt(tmp_path / "checkpoint", adopting_topology(tmp_path)) == 4
    write_files(tmp_path, range(3, 5))
    run = submit(adopting_topology(tmp_path), spark)
    try:
        run.process_all_available(timeout=60)
        assert run.last_progress["txid"] == 5
    finally:
        run.stop()

    assert_exact(tmp_path)
    # The query no longer owns the states.
    with pytest.raises(StreamingQueryException, match="belongs to 'adopts'"):
        run_query(spark, tmp_path)
    assert_exact(tmp_path)


def test_a_query_that_has_not_finished_its_batch_is_not_adopted(spark, tmp_path):
    write_files(tmp_path, range(2))
    run_query(spark, tmp_path)
    forget_last_commit(tmp_path)

    with pytest.raises(SourceError, match="has begun batch 1 and not finished it"):
        adopt(tmp_path / "checkpoint", adopting_topology(tmp_path))
    with pytest.raises(SourceError, match="is not the checkpoint of a streaming query"):
        adopt(tmp_path, adopting_topology(tmp_path))


@pytest.mark.soak
def test_kill_minus_nine_around_a_write_and_the_query_goes_on_exactly(tmp_path):
    points = ["write.before", "write.after", "settle.before"]
    write_files(tmp_path, range(len(points) + 2))

    for txid, point in enumerate(points, start=1):
        fault = {"point": point, "action": "kill", "where": {"txid": txid}}
        assert run_child(CHILD, tmp_path, [fault]) == -signal.SIGKILL, point

    assert run_child(CHILD, tmp_path) == 0, said(tmp_path)
    assert_exact(tmp_path)


@pytest.mark.soak
def test_works_on_spark_connect(tmp_path, connect_server):
    remote = connect_server.url
    write_files(tmp_path, range(2))

    assert run_child(CHILD, tmp_path, remote=remote) == 0, said(tmp_path)
    forget_last_commit(tmp_path)
    write_files(tmp_path, range(2, 3))
    assert run_child(CHILD, tmp_path, remote=remote) == 0, said(tmp_path)
    assert_exact(tmp_path)


@pytest.mark.soak
def test_on_spark_connect_a_new_checkpoint_is_not_taken_for_the_old_one(tmp_path, connect_server):
    remote = connect_server.url
    write_files(tmp_path, range(1))
    assert run_child(CHILD, tmp_path, remote=remote) == 0, said(tmp_path)
    # Spark repeats batch 0 of the same query: it is there.
    forget_last_commit(tmp_path)
    assert run_child(CHILD, tmp_path, remote=remote) == 0, said(tmp_path)
    assert_exact(tmp_path)

    shutil.rmtree(tmp_path / "checkpoint")

    # Batch 0 of another query: before, it was skipped without a word.
    assert run_child(CHILD, tmp_path, remote=remote) == 1
    assert "another checkpoint" in (tmp_path / "child.log").read_text()
    assert_exact(tmp_path)
