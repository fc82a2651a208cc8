"""Two databases in one transaction: how often each word came, and how many words came how often.

    waterspout run examples/transactional_words.py --until-idle

Counts of words are kept in one store; the second has, for counts of 0-9, 10-19 and so on, how many
words stand there. When a word moves up a bucket, both change in the same batch, or neither does.
By default both are SQLite files; WORDS_REDIS=redis://localhost keeps the words in Redis instead.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter

from waterspout.transactional import (
    BatchBolt,
    Committer,
    MemoryTransactionalSpout,
    TransactionalTopologyBuilder,
)

FOLDER = os.environ.get("WORDS_FOLDER", ".")
BUCKET = 10

LINES = [
    "to be or not to be that is the question",
    "the cow jumped over the moon and the dish ran away",
    "all work and no play makes the day long and the night longer",
]
WORDS = [[[word] for word in (line.split() * 5)] for line in LINES]


class SQLiteTable:
    """Values by key, each with the id of the batch that wrote it and the value before."""

    def __init__(self, path, table):
        self.path, self.table = path, table

    def update(self, txid, changes):
        """Apply changes that are not there yet; return, by key, the value before and now."""
        done = {}
        with sqlite3.connect(self.path, timeout=30) as db:
            db.execute(
                f"CREATE TABLE IF NOT EXISTS {self.table} "
                "(key TEXT PRIMARY KEY, value INTEGER, before INTEGER, txid INTEGER)"
            )
            db.execute("BEGIN IMMEDIATE")
            for key, change in changes.items():
                row = db.execute(
                    f"SELECT value, before, txid FROM {self.table} WHERE key = ?", (key,)
                ).fetchone()
                done[key] = _moved(row, txid, change)
                before, value = done[key]
                db.execute(
                    f"INSERT OR REPLACE INTO {self.table} VALUES (?, ?, ?, ?)",
                    (key, value, before, txid),
                )
        return done


class RedisTable:
    """The same in Redis, a JSON text for each key."""

    def __init__(self, url, prefix):
        self.url, self.prefix = url, prefix

    def update(self, txid, changes):
        """Apply changes that are not there yet; return, by key, the value before and now."""
        import redis

        keys = list(changes)
        with redis.Redis.from_url(self.url) as client:
            stored = client.mget([self.prefix + key for key in keys])
            rows = [None if text is None else json.loads(text) for text in stored]
            done = {
                key: _moved(row, txid, changes[key]) for key, row in zip(keys, rows, strict=True)
            }
            texts = {
                self.prefix + key: json.dumps([value, before, txid])
                for key, (before, value) in done.items()
            }
            client.mset(texts)
        return done


def _moved(row, txid, change):
    """Return the value before this batch and after it, whether or not the batch was here before."""
    value, before, written = row or (None, None, 0)
    start = before if written == txid else value
    return start, (start or 0) + change


class CountWords(BatchBolt, Committer):
    """Adds the batch's words to their counts; tells what each count was and is."""

    output_fields = ("tx", "word", "before", "now")

    def __init__(self, table):
        self.table = table

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.counts = Counter()

    def execute(self, tuple):
        self.counts[tuple["word"]] += 1

    def finish_batch(self):
        if self.counts:
            moved = self.table.update(self.id.transaction_id, self.counts)
            for word, (before, now) in moved.items():
                self.collector.emit([self.id, word, before, now])


class Buckets(BatchBolt):
    """Turns the way of a word's count into a step down in one bucket and up in another."""

    output_fields = ("tx", "bucket", "change")

    def execute(self, tuple):
        before, now = tuple["before"], tuple["now"]
        old = None if before is None else before // BUCKET
        if old == now // BUCKET:
            return
        if old is not None:
            self.collector.emit([self.id, old, -1])
        self.collector.emit([self.id, now // BUCKET, +1])


class CountBuckets(BatchBolt, Committer):
    """Adds the steps of a batch to the buckets."""

    output_fields = ("tx", "bucket", "words")

    def __init__(self, table):
        self.table = table

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.changes = Counter()

    def execute(self, tuple):
        self.changes[str(tuple["bucket"])] += tuple["change"]

    def finish_batch(self):
        if self.changes:
            self.table.update(self.id.transaction_id, self.changes)


def make_topology(words, buckets, data=WORDS, take=7):
    """Return the topology over two tables."""
    spout = MemoryTransactionalSpout(data, "word", take)
    builder = TransactionalTopologyBuilder("transactional-words", "words", spout, parallelism=2)
    builder.set_bolt("count", CountWords(words), 3).fields_grouping("words", "word")
    builder.set_bolt("move", Buckets(), 2).shuffle_grouping("count")
    builder.set_bolt("buckets", CountBuckets(buckets), 2).fields_grouping("move", "bucket")
    return builder.build_topology()


def _words_table():
    url = os.environ.get("WORDS_REDIS")
    if url is not None:
        return RedisTable(url, "words:")
    return SQLiteTable(os.path.join(FOLDER, "words.db"), "words")


topology = make_topology(_words_table(), SQLiteTable(os.path.join(FOLDER, "buckets.db"), "buckets"))
