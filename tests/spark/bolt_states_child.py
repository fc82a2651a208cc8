"""A transactional topology with two states, also in a process of its own: FOLDER OPAQUE."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.killing import session
from tests.transactional.components import Once
from waterspout import Config, submit
from waterspout.state.sqlite import SQLiteState
from waterspout.transactional import (
    BatchBolt,
    MemoryTransactionalSpout,
    OpaqueMemoryTransactionalSpout,
    TransactionalTopologyBuilder,
)

WORDS = [["a", "b", "a", "b", "a"], ["c", "d", "c", "a", "e"]]

__all__ = ["WORDS", "KeepLines", "Once", "words_topology"]


def add_one(stored):
    return (stored or 0) + 1


class CountWords(BatchBolt):
    """Counts words, and tells what each count has become."""

    output_fields = ("tx", "now")

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.words, self.seen = context.state("words"), []

    def execute(self, tuple):
        self.seen.append(tuple["word"])

    def finish_batch(self):
        for word in self.seen:
            self.collector.emit([self.id, self.words.update(word, add_one)])


class Reach(BatchBolt):
    """Counts how many words have reached a count."""

    output_fields = ("tx",)

    def __init__(self, fail):
        self.fail = fail

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.reached = context.state("reached")

    def execute(self, tuple):
        self.reached.update(tuple["now"], add_one)

    def finish_batch(self):
        if self.fail is not None and self.id.transaction_id == 2:
            self.fail("after the words were written")


class KeepLines(BatchBolt):
    """Counts how often each number came."""

    output_fields = ("tx",)

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.lines = context.state("lines")

    def execute(self, tuple):
        self.lines.update(tuple["n"], add_one)


def words_topology(words, reached, *, opaque=False, fail=None):
    kind = OpaqueMemoryTransactionalSpout if opaque else MemoryTransactionalSpout
    builder = TransactionalTopologyBuilder("stateful", "words", kind(WORDS, "word", 2), 2)
    count = builder.set_committer_bolt("count", CountWords(), 2).fields_grouping("words", "word")
    count.with_state("words", words, keys="word string", values="count bigint")
    reach = builder.set_committer_bolt("reach", Reach(fail), 2).fields_grouping("count", "now")
    reach.with_state("reached", reached, keys="now bigint", values="words bigint")
    return builder.build_topology()


def main(folder: Path, opaque: bool) -> None:
    words = SQLiteState.opaque(folder / "words.db", table="words")
    reached = SQLiteState.opaque(folder / "words.db", table="reached")
    topology = words_topology(words, reached, opaque=opaque)
    config = Config(home=str(folder / "home"), max_spout_pending=2)
    run = submit(topology, session(folder / "spark.log"), config)
    run.process_all_available(timeout=150)
    run.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "True")
