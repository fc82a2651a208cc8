"""The worked cases of Storm's documents, as transactional topologies do them."""

from __future__ import annotations

from waterspout import Config, FailedException
from waterspout.coordination.events import BatchCommitted, BatchEmitted, BatchFailed
from waterspout.state import OpaqueMap, OpaqueValue
from waterspout.state._base import ValueUpdater
from waterspout.state._memory import MemoryMap
from waterspout.testing._batch_bolts import LocalBatches
from waterspout.transactional import (
    BatchBolt,
    BatchCoordinator,
    BatchEmitter,
    Committer,
    OpaqueMemoryTransactionalSpout,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)

DATABASES: dict[str, dict] = {}
MAPS: dict[str, MemoryMap] = {}


class Batches(TransactionalSpout):
    """A list of batches; the metadata of a batch is its position in it."""

    output_fields = ("tx", "word")

    def __init__(self, *batches):
        self.batches = batches

    def get_coordinator(self, conf, context):
        return Numbers(len(self.batches))

    def get_emitter(self, conf, context):
        return Words(self.batches)


class Numbers(BatchCoordinator):
    def __init__(self, count):
        self.left = count

    def is_ready(self):
        return self.left > 0

    def initialize_transaction(self, txid, previous):
        self.left -= 1
        return 0 if previous is None else previous + 1


class Words(BatchEmitter):
    def __init__(self, batches):
        self.batches = batches

    def emit_batch(self, attempt, metadata, collector):
        for word in self.batches[metadata]:
            collector.emit([attempt, word])


class WordCounts(BatchBolt, Committer):
    """Keeps the txid with each count; fails once, after some words were written."""

    output_fields = ("tx",)

    def __init__(self, database, fails_before=()):
        self.database = database
        self.fails_before = fails_before

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.counts = {}

    def execute(self, tuple):
        self.counts[tuple["word"]] = self.counts.get(tuple["word"], 0) + 1

    def finish_batch(self):
        database = DATABASES[self.database]
        for word, count in self.counts.items():
            if (str(self.id), word) in self.fails_before:
                raise FailedException(f"the database is gone before {word}")
            stored, txid = database.get(word, (0, None))
            if txid != self.id.transaction_id:
                database[word] = (stored + count, self.id.transaction_id)


def run(builder, **more):
    local = LocalBatches(builder.build_topology(), Config(**more))
    local.finish()
    local.close()
    return local


def test_man_dog_apple():
    """Batch 3 has man, man, dog; its first attempt got as far as dog before it failed."""
    DATABASES["words"] = words = {}
    spout = Batches(
        ["man"] * 3 + ["dog"] * 3,
        ["apple"] * 10,
        ["dog", "man", "man"],
    )
    builder = TransactionalTopologyBuilder("man-dog-apple", "spout", spout)
    committer = WordCounts("words", fails_before=[("3:0", "man")])
    builder.set_bolt("counts", committer).global_grouping("spout")
    seen = {}

    def look(event):
        if isinstance(event, BatchFailed):
            seen[str(event.attempt)] = dict(words)

    local = LocalBatches(builder.build_topology(), listener=look)
    local.finish()

    assert seen == {"3:0": {"man": (3, 1), "dog": (4, 3), "apple": (10, 2)}}
    assert words == {"man": (5, 3), "dog": (4, 3), "apple": (10, 2)}


class Add(ValueUpdater):
    def __init__(self, partial):
        self.partial = partial

    def update(self, stored):
        return (stored or 0) + self.partial


class OpaqueCount(BatchBolt, Committer):
    """One number, kept by the library's opaque map over a store of the user's choice."""

    output_fields = ("tx",)

    def __init__(self, store, fail_after=()):
        self.store = store
        self.fail_after = fail_after

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.context = context
        self.count = 0

    def execute(self, tuple):
        self.count += 1

    def finish_batch(self):
        state = OpaqueMap(MAPS[self.store])
        txid, attempt = self.id.transaction_id, self.id.attempt_id
        state.begin_commit(txid, attempt=attempt, resolved=self.context.resolved)
        state.multi_update([("count",)], [Add(self.count)])
        state.commit(txid)
        if str(self.id) in self.fail_after:
            raise FailedException("after the write")


def opaque_count(name, *batches, fail_after=()):
    MAPS[name] = MemoryMap()
    builder = TransactionalTopologyBuilder(name, "spout", Batches(*batches))
    builder.set_bolt("count", OpaqueCount(name, fail_after)).global_grouping("spout")
    run(builder)
    return MAPS[name].multi_get([("count",)])[0]


def test_value_4_previous_1_txid_2_with_a_partial_of_2_for_txid_3():
    before = opaque_count("opaque-before", ["a"], ["a"] * 3)
    after = opaque_count("opaque-3", ["a"], ["a"] * 3, ["a"] * 2)

    assert before == OpaqueValue(txid=2, attempt=0, value=4, prev=1)
    assert after == OpaqueValue(txid=3, attempt=0, value=6, prev=4)


def test_value_4_previous_1_txid_2_with_a_partial_of_2_for_txid_2():
    """The first attempt at batch 2 had three and wrote 4; the second one has two."""
    MAPS["opaque-2"] = MemoryMap()
    spout = OpaqueMemoryTransactionalSpout([["a"], ["a"] * 2, [], ["a"]], "word", 2)
    spout.set_disabled(1)
    spout.set_disabled(3)
    builder = TransactionalTopologyBuilder("opaque-2", "spout", spout)
    committer = OpaqueCount("opaque-2", fail_after=["2:0"])
    builder.set_bolt("count", committer).global_grouping("spout")
    topology = builder.build_topology()
    store = {}

    def look(event):
        if isinstance(event, BatchFailed):
            store[str(event.attempt)] = MAPS["opaque-2"].multi_get([("count",)])[0]
            spout.set_disabled(3)

    local = LocalBatches(topology, listener=look)
    local.finish()
    spout.set_disabled(1, False)
    spout.set_disabled(3, False)
    local.finish()

    assert store["2:0"] == OpaqueValue(txid=2, attempt=0, value=4, prev=1)
    assert MAPS["opaque-2"].multi_get([("count",)]) == [OpaqueValue(2, 1, value=3, prev=1)]


class Numbered(OpaqueMemoryTransactionalSpout):
    """Tuples 1, 2, 3...; how many a batch takes can be changed while it runs."""

    def __init__(self, count):
        super().__init__([list(range(1, count + 1))], "n", 50)


class Ranges(BatchBolt, Committer):
    output_fields = ("tx", "first", "last")

    def __init__(self, fails=()):
        self.fails = fails

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.numbers = []

    def execute(self, tuple):
        self.numbers.append(tuple["n"])

    def finish_batch(self):
        if str(self.id) in self.fails:
            raise FailedException("transaction A fails")
        self.collector.emit([self.id, min(self.numbers), max(self.numbers)])


def test_transactions_a_b_c_after_a_failure_nothing_is_skipped():
    """A 1-50 and B 51-100 are out when A fails: then A 1-40, B 41-90, C 91-140."""
    spout = Numbered(140)
    builder = TransactionalTopologyBuilder("a-b-c", "spout", spout)
    builder.set_bolt("ranges", Ranges(fails=["1:0"])).global_grouping("spout")
    emitted, ranges = [], []

    def look(event):
        match event:
            case BatchEmitted(attempt=attempt):
                _, pinned = local.loop.ledger.emitted[attempt.txid].metadata["spout"][0]
                emitted.append((str(attempt), pinned[0] + 1, pinned[0] + pinned[1]))
                if str(attempt) == "1:1":
                    spout.take = 50
            case BatchFailed():
                spout.take = 40
            case BatchCommitted(attempt=attempt):
                ranges.append(str(attempt))

    config = Config(max_spout_pending=2)
    local = LocalBatches(builder.build_topology(), config, listener=look)
    local.finish()

    assert emitted == [
        ("1:0", 1, 50),
        ("2:0", 51, 100),
        ("1:1", 1, 40),
        ("2:1", 41, 90),
        ("3:0", 91, 140),
    ]
    assert ranges == ["1:1", "2:1", "3:0"]
    assert [tuple(map(str, row)) for row in local.emitted("ranges")] == [
        ("1:1", "1", "40"),
        ("2:1", "41", "90"),
        ("3:0", "91", "140"),
    ]


class OpaqueCounts(BatchBolt, Committer):
    """A number for each word, kept by the library's opaque map."""

    output_fields = ("tx",)

    def __init__(self, store, fail_after=(), heeds_resolved=True):
        self.store = store
        self.fail_after = fail_after
        self.heeds_resolved = heeds_resolved

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.context = context
        self.counts = {}

    def execute(self, tuple):
        self.counts[tuple["word"]] = self.counts.get(tuple["word"], 0) + 1

    def finish_batch(self):
        state = OpaqueMap(MAPS[self.store])
        resolved = self.context.resolved if self.heeds_resolved else {}
        state.begin_commit(self.id.txid, attempt=self.id.attempt_id, resolved=resolved)
        keys = [(word,) for word in self.counts]
        state.multi_update(keys, [Add(count) for count in self.counts.values()])
        state.commit(self.id.txid)
        if str(self.id) in self.fail_after:
            raise FailedException("after the write")


def counts_after_an_outage(name, **how):
    """x and y are written by 1:0, which fails; x's broker is down for 1:1; batch 2 brings x."""
    MAPS[name] = MemoryMap()
    spout = OpaqueMemoryTransactionalSpout([["x"], ["y"]], "word", 1)
    builder = TransactionalTopologyBuilder(name, "spout", spout)
    committer = OpaqueCounts(name, fail_after=["1:0"], **how)
    builder.set_bolt("counts", committer).global_grouping("spout")

    def outage(event):
        match event:
            case BatchFailed():
                spout.set_disabled(0)
            case BatchCommitted():
                spout.set_disabled(0, False)

    local = LocalBatches(builder.build_topology(), listener=outage)
    local.finish()
    local.finish()
    return [record.value for record in MAPS[name].multi_get([("x",), ("y",)])]


def test_a_write_of_an_attempt_that_never_committed_is_not_counted_when_its_tuple_comes_later():
    assert counts_after_an_outage("hole-closed") == [1, 1]


def test_the_documented_rule_alone_counts_it_twice():
    assert counts_after_an_outage("hole-open", heeds_resolved=False) == [2, 1]
