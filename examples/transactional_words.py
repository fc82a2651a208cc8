"""Two databases in one transaction: how often each word came, and how many words came how often.

    waterspout run examples/transactional_words.py --until-idle
    waterspout state get examples/transactional_words.py the --state words

Counts of words are kept in one state; the second has, for counts of 0-9, 10-19 and so on, how many
words stand there. When a word moves up a bucket, both change in the same batch, or neither does.
By default both are SQLite files; WORDS_REDIS=redis://localhost keeps the words in Redis instead.
"""

from __future__ import annotations

import os
from collections import Counter

from waterspout.state.redis import RedisState
from waterspout.state.sqlite import SQLiteState
from waterspout.transactional import (
    BatchBolt,
    MemoryTransactionalSpout,
    TransactionalTopologyBuilder,
)

FOLDER = os.environ.get("WORDS_FOLDER", ".")
REDIS = os.environ.get("WORDS_REDIS")
BUCKET = 10

LINES = [
    "to be or not to be that is the question",
    "the cow jumped over the moon and the dish ran away",
    "all work and no play makes the day long and the night longer",
]
WORDS = [[[word] for word in (line.split() * 5)] for line in LINES]


class Added:
    """Adds a number to what is stored."""

    def __init__(self, change):
        self.change = change

    def update(self, stored):
        """Return the new value; None is stored before the first."""
        return (stored or 0) + self.change


class CountWords(BatchBolt):
    """Adds the batch's words to their counts; tells what each count was and is."""

    output_fields = ("tx", "word", "before", "now")

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.words = context.state("words")
        self.counts = Counter()

    def execute(self, tuple):
        self.counts[tuple["word"]] += 1

    def finish_batch(self):
        words = list(self.counts)
        before = self.words.multi_get(words)
        now = self.words.multi_update(words, [Added(self.counts[word]) for word in words])
        for row in zip(words, before, now, strict=True):
            self.collector.emit([self.id, *row])


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


class CountBuckets(BatchBolt):
    """Adds the steps of a batch to the buckets."""

    output_fields = ("tx",)

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.buckets = context.state("buckets")

    def execute(self, tuple):
        self.buckets.update(tuple["bucket"], Added(tuple["change"]))


def make_topology(words, buckets, data=WORDS, take=7):
    """Return the topology over two states."""
    spout = MemoryTransactionalSpout(data, "word", take)
    builder = TransactionalTopologyBuilder("transactional-words", "words", spout, parallelism=2)
    count = builder.set_committer_bolt("count", CountWords(), 3).fields_grouping("words", "word")
    count.with_state("words", words, keys="word string", values="count bigint")
    builder.set_bolt("move", Buckets(), 2).shuffle_grouping("count")
    moved = builder.set_committer_bolt("buckets", CountBuckets(), 2)
    moved.fields_grouping("move", "bucket")
    moved.with_state("buckets", buckets, keys="bucket bigint", values="words bigint")
    return builder.build_topology()


words_state = SQLiteState.opaque(os.path.join(FOLDER, "words.db"), table="words")
if REDIS is not None:
    words_state = RedisState.opaque(REDIS, prefix="words")
buckets_state = SQLiteState.opaque(os.path.join(FOLDER, "buckets.db"), table="buckets")
topology = make_topology(words_state, buckets_state)
