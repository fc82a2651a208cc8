"""How many words there are, exactly: partial counts in parallel, one committer.

    waterspout run examples/transactional_global_count.py --until-idle

The total is one row of a SQLite file, with the id of the batch that it is of. A batch that is
replayed, after a failure or a crash, finds its own id there and is not added again.
"""

from __future__ import annotations

import os
import sqlite3

from waterspout.transactional import (
    BatchBolt,
    Committer,
    MemoryTransactionalSpout,
    TransactionalTopologyBuilder,
)

PATH = os.environ.get("TOTAL_DB", "total.db")

WORDS = [
    ["cat", "dog", "chicken", "cat", "dog", "apple"],
    ["cat", "dog", "apple", "banana"],
    ["cat", "cat", "cat", "cat", "cat", "dog", "dog", "dog", "dog"],
]


class PartialCount(BatchBolt):
    """Counts the tuples of a batch that come to one task."""

    output_fields = ("tx", "count")

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.count = 0

    def execute(self, tuple):
        self.count += 1

    def finish_batch(self):
        self.collector.emit([self.id, self.count])


class UpdateTotal(BatchBolt, Committer):
    """Adds the partial counts of a batch to the total, once."""

    output_fields = ("tx", "total")

    def __init__(self, path):
        self.path = path

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.sum = 0

    def execute(self, tuple):
        self.sum += tuple["count"]

    def finish_batch(self):
        with sqlite3.connect(self.path) as db:
            db.execute("CREATE TABLE IF NOT EXISTS total (txid INTEGER, value INTEGER)")
            txid, value = db.execute("SELECT txid, value FROM total").fetchone() or (0, 0)
            if txid != self.id.transaction_id:
                value += self.sum
                db.execute("DELETE FROM total")
                db.execute("INSERT INTO total VALUES (?, ?)", (self.id.transaction_id, value))
        self.collector.emit([self.id, value])


spout = MemoryTransactionalSpout(WORDS, "word", take=3)
builder = TransactionalTopologyBuilder("transactional-global-count", "words", spout, parallelism=3)
builder.set_bolt("partial", PartialCount(), 5).none_grouping("words")
builder.set_bolt("total", UpdateTotal(PATH)).global_grouping("partial")
topology = builder.build_topology()
