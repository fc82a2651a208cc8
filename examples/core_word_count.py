"""Count words with spouts and bolts; a broken sentence ends in the dead letters.

waterspout run examples/core_word_count.py --until-idle
sqlite3 core_word_counts.db 'SELECT word, count FROM counts ORDER BY count DESC'
waterspout dead-letters list core_word_count

Every sentence is tracked until all its words are counted. One that fails is emitted again; one
that has failed four times is put aside, with the error, and the rest goes on.
"""

import sqlite3
from collections import deque
from pathlib import Path

from waterspout import BasicBolt, Spout, TopologyBuilder, submit

SENTENCES = ["the cow jumped over the moon", "four score and seven years ago", 1863, "the moon"]
DATABASE = Path("core_word_counts.db").absolute()


class Sentences(Spout):
    """Emits each sentence until it is acked."""

    output_fields = ("sentence",)

    def open(self, conf, context, collector):
        self.collector = collector
        self.waiting = deque(range(len(SENTENCES)))

    def next_tuple(self):
        if self.waiting:
            number = self.waiting.popleft()
            self.collector.emit([SENTENCES[number]], msg_id=number)

    def fail(self, msg_id):
        self.waiting.append(msg_id)


class Split(BasicBolt):
    """Turns a sentence into words, each anchored to it."""

    output_fields = ("word",)

    def execute(self, tuple, collector):
        for word in tuple["sentence"].split():
            collector.emit([word])


class Count(BasicBolt):
    """Counts in memory: the state survives lost workers, not the end of the run."""

    output_fields = ("word", "count")

    def __init__(self):
        self.counts = {}

    def execute(self, tuple, collector):
        word = tuple["word"]
        self.counts[word] = self.counts.get(word, 0) + 1
        collector.emit([word, self.counts[word]])


class Store(BasicBolt):
    """Keeps the newest count of each word."""

    transient = ("db",)  # made by prepare, wherever the bolt is

    def prepare(self, conf, context):
        self.db = sqlite3.connect(DATABASE, isolation_level=None)
        self.db.execute("CREATE TABLE IF NOT EXISTS counts (word TEXT PRIMARY KEY, count INTEGER)")

    def execute(self, tuple, collector):
        self.db.execute("INSERT OR REPLACE INTO counts VALUES (?, ?)", list(tuple))


builder = TopologyBuilder()
builder.set_spout("sentences", Sentences())
builder.set_bolt("split", Split(), 2).shuffle_grouping("sentences")
builder.set_bolt("count", Count(), 2).fields_grouping("split", "word")
builder.set_bolt("store", Store()).global_grouping("count")
topology = builder.create_topology("core_word_count")

if __name__ == "__main__":
    run = submit(topology)
    run.process_all_available()
    run.stop()
    print(dict(sqlite3.connect(DATABASE).execute("SELECT word, count FROM counts")))
