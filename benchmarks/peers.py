"""One peer in a process of its own: `python -m benchmarks.peers NAME --data DIR --work DIR`.

Each runs the whole stream several times in one process, from an empty store each time, and
prints when every batch was done. The last pass counts: the JVM compiles during the first.

    batch        the ceiling: one Spark batch job, no store, no stream
    loop         the same, but the words come out of a loop in Python, in one `mapInArrow`
    by-hand-driver, by-hand-executors
                 Structured Streaming, foreachBatch, a transactional upsert written by hand:
                 rows collected to the driver, or written by the tasks
    by-hand-udf  the first of these with the split in a Python UDF
    waterspout   the same stream and store, opaque state, a file a batch, `--pending` batches in
                 flight; `--form` says how the split is written
    backlog      the same without any setting: all files wait, and batches size themselves

The store is SQLite, or with `--redis URL` a Redis that is emptied before each pass.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.turns import open_sqlite, report, run_streaming, two_core_session

TABLE = "word_counts"


def main() -> None:
    """Run the peer that is named on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=sorted(PEERS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--pending", type=int, default=3)
    parser.add_argument("--form", choices=sorted(FORMS), default="native")
    parser.add_argument("--redis", help="its address, if it is the store")
    arguments = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    passes = []
    for number in range(arguments.passes):
        began = time.time()
        ends = PEERS[arguments.name](arguments, number)
        passes.append({"began": began, "ends": ends})
    if arguments.redis:
        counts = _counts_in_redis(arguments)
        (arguments.work / f"counts-{arguments.passes - 1}.json").write_text(json.dumps(counts))
    report({"passes": passes})


def batch(arguments: argparse.Namespace, number: int) -> list[float]:
    """Count everything at once."""
    from pyspark.sql import functions as F

    lines = two_core_session().read.schema("value string").text(str(arguments.data))
    words = lines.select(F.explode(F.split("value", " ")).alias("word"))
    words.groupBy("word").count().toArrow()
    return [time.time()]


def loop(arguments: argparse.Namespace, number: int) -> list[float]:
    """Count everything at once, with a split in Python."""

    def split(batches: Any) -> Any:
        import pyarrow as pa

        for one in batches:
            words: list[str] = []
            for sentence in one.column(0).to_pylist():
                words.extend(sentence.split(" "))
            yield pa.RecordBatch.from_arrays([pa.array(words, pa.string())], ["word"])

    lines = two_core_session().read.schema("value string").text(str(arguments.data))
    lines.mapInArrow(split, "word string").groupBy("word").count().toArrow()
    return [time.time()]


def _open(path: Path) -> sqlite3.Connection:
    return open_sqlite(path, f"{TABLE} (word TEXT PRIMARY KEY, count INTEGER, txid INTEGER)")


def _upsert(db: sqlite3.Connection, rows: list[tuple[str, int]], txid: int) -> None:
    """What one writes by hand: add, unless this batch was added before."""
    db.execute("BEGIN IMMEDIATE")
    db.executemany(
        f"INSERT INTO {TABLE} VALUES (?, ?, {txid}) ON CONFLICT (word) DO UPDATE SET"
        f" count = count + excluded.count, txid = excluded.txid WHERE txid <> excluded.txid",
        rows,
    )
    db.execute("COMMIT")


def _upsert_redis(client: Any, rows: list[tuple[str, int]], txid: int) -> None:
    """The same by hand in Redis: the count and the batch, one read and one write for many words."""
    stamp = b"%d" % txid
    for begin in range(0, len(rows), 5000):
        chunk = rows[begin : begin + 5000]
        changed = {}
        for (word, n), old in zip(chunk, client.mget([word for word, _ in chunk]), strict=True):
            count, last = (b"0", b"") if old is None else old.split(b",")
            if last != stamp:
                changed[word] = b"%d,%b" % (int(count) + n, stamp)
        if changed:
            client.mset(changed)


def _redis(url: str) -> Any:
    import redis

    return redis.Redis.from_url(url)


def _counts_in_redis(arguments: argparse.Namespace) -> dict[str, int]:
    """Return what the last pass has left: of waterspout as its state reads it."""
    words = sorted({w for path in arguments.data.iterdir() for w in path.read_text().split()})
    if arguments.name in ("waterspout", "backlog"):
        from waterspout import Config
        from waterspout._schema import Schema

        recipe = _state(arguments, arguments.passes - 1)
        bound = recipe.bind(Schema.parse("word string"), Schema.parse("count bigint"))
        found = bound.make_state(Config(), 0, 1).multi_get([(word,) for word in words])
        return dict(zip(words, found, strict=True))
    values = _redis(arguments.redis).mget(words)
    return {w: int(v.split(b",")[0]) for w, v in zip(words, values, strict=True)}


def _by_hand(
    write: Callable[[Any, int, Any], None], *, udf: bool = False
) -> Callable[..., list[float]]:
    def run(arguments: argparse.Namespace, number: int) -> list[float]:
        from pyspark.sql import functions as F

        session, ends = two_core_session(), []
        path = arguments.redis or arguments.work / f"counts-{number}.db"
        if arguments.redis:
            _redis(path).flushall()
        else:
            _open(path).close()

        def each_batch(frame: Any, batch_id: int) -> None:
            write(frame.groupBy("word").count(), batch_id, path)
            ends.append(time.time())

        lines = session.readStream.format("text").option("maxFilesPerTrigger", 1)
        in_python = F.udf(lambda sentence: sentence.split(" "), "array<string>")
        words = lines.load(str(arguments.data)).select(
            F.explode(in_python("value") if udf else F.split("value", " ")).alias("word")
        )
        run_streaming(words, "append", arguments.work / str(number), each_batch)
        return ends

    return run


def _write(columns: Any, batch_id: int, target: Any) -> None:
    """Write rows to the file, or the Redis, that is named."""
    rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
    if isinstance(target, str):
        with _redis(target) as client:
            _upsert_redis(client, rows, batch_id)
    else:
        db = _open(target)
        _upsert(db, rows, batch_id)
        db.close()


def _write_from_driver(counts: Any, batch_id: int, target: Any) -> None:
    _write(counts.toArrow().columns, batch_id, target)


def _write_from_executors(counts: Any, batch_id: int, target: Any) -> None:
    def write(batches: Any) -> Any:
        for one in batches:
            _write(one.columns, batch_id, target)
        return iter(())

    counts.mapInArrow(write, counts.schema).write.format("noop").mode("overwrite").save()


def waterspout(arguments: argparse.Namespace, number: int) -> list[float]:
    """The same count as a Trident topology, a file a batch."""
    return _counted(arguments, number, {"max_files": 1}, {"max_spout_pending": arguments.pending})


def backlog(arguments: argparse.Namespace, number: int) -> list[float]:
    """The same count as a Trident topology of which nothing is set."""
    return _counted(arguments, number, {}, {})


def _counted(
    arguments: argparse.Namespace, number: int, spout: dict[str, Any], conf: dict[str, Any]
) -> list[float]:
    from waterspout import Config, submit
    from waterspout.spouts.files import FileSpout
    from waterspout.trident import Count, TridentTopology

    topology = TridentTopology(f"bench-{number}")
    if arguments.redis:
        _redis(arguments.redis).flushall()
    state = _state(arguments, number)
    lines = topology.new_stream("lines", FileSpout(arguments.data, **spout))
    (
        FORMS[arguments.form](lines)
        .group_by("word")
        .persistent_aggregate(state, Count(), out="count")
        .parallelism_hint(1)
    )
    run = submit(topology, config=Config(home=str(arguments.work / "home"), **conf))
    run.process_all_available(timeout=600)
    run.stop()
    return [progress["timestamp"] for progress in run.recent_progress]


def _state(arguments: argparse.Namespace, number: int) -> Any:
    from waterspout.state.redis import RedisState
    from waterspout.state.sqlite import SQLiteState

    if arguments.redis:
        return RedisState.opaque(arguments.redis, prefix=f"bench-{number}:")
    return SQLiteState.opaque(arguments.work / f"counts-{number}.db", table=TABLE)


def _native(lines: Any) -> Any:
    from waterspout.trident import Split

    return lines.each("value", Split(), out="word")


def _arrow(lines: Any) -> Any:
    from waterspout.trident import arrow_function

    @arrow_function
    def split(batch: Any) -> Any:
        import pyarrow.compute as pc

        words = pc.split_pattern(batch.column("value"), " ")
        return pc.list_parent_indices(words), pc.list_flatten(words)

    return lines.each("value", split, out="word string")


def _pandas(lines: Any) -> Any:
    from waterspout.trident import pandas_function

    @pandas_function
    def split(frame: Any) -> Any:
        words = frame["value"].str.split(" ").explode()
        return words.index, words

    return lines.each("value", split, out="word string")


def _generator(lines: Any) -> Any:
    def split(sentence: str) -> Any:
        yield from sentence.split(" ")

    return lines.each("value", split, out="word string")


def _listed(lines: Any) -> Any:
    return lines.flat_map(lambda sentence: sentence.split(" "), out="word string")


def _class(lines: Any) -> Any:
    from waterspout.trident import Function

    class OwnSplit(Function):
        def execute(self, tuple: Any, collector: Any) -> None:
            for word in tuple["value"].split(" "):
                collector.emit((word,))

    return lines.each("value", OwnSplit(), out="word string")


FORMS: dict[str, Callable[[Any], Any]] = {
    "native": _native,
    "arrow": _arrow,
    "pandas": _pandas,
    "generator": _generator,
    "list": _listed,
    "class": _class,
}
PEERS: dict[str, Callable[..., list[float]]] = {
    "batch": batch,
    "loop": loop,
    "by-hand-driver": _by_hand(_write_from_driver),
    "by-hand-executors": _by_hand(_write_from_executors),
    "by-hand-udf": _by_hand(_write_from_driver, udf=True),
    "waterspout": waterspout,
    "backlog": backlog,
}

if __name__ == "__main__":
    main()
