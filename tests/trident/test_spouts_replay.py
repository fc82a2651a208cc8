"""What a replayed batch holds, for each kind of spout: the table of the spouts' document."""

from __future__ import annotations

import pytest

from tests.trident.spout_kinds import (
    AT_ONCE,
    FAILURES,
    Batches,
    Messages,
    Opaque,
    Partitioned,
    SteadyBatches,
    Stumble,
    Whole,
    calls,
    fill,
    forget,
    run_to_the_end,
)
from tests.trident.support import Capture, capture
from waterspout.coordination.events import BatchCommitted
from waterspout.errors import SourceError
from waterspout.spouts import EmittingSpout
from waterspout.testing import FixedBatchSpout, LocalRun
from waterspout.transactional import MemoryTransactionalSpout
from waterspout.trident import TridentTopology


@pytest.fixture(autouse=True)
def _from_the_beginning():
    forget()


def stumbling(spout, out=None) -> tuple[TridentTopology, Capture]:
    topology = TridentTopology("replays")
    stream = topology.new_stream("words", spout, out=out)
    return topology, capture(stream.each("word", Stumble()))


def committed_batches(spout, out=None, config=AT_ONCE):
    topology, kept = stumbling(spout, out)
    heard = []
    run_to_the_end(topology, config, listener=heard.append)
    attempts = [str(event.attempt) for event in heard if isinstance(event, BatchCommitted)]
    batches = {txid: [word for (word,) in rows] for txid, rows in kept.batches.items()}
    return batches, attempts


def test_a_rich_spouts_messages_are_failed_and_the_replay_is_a_new_batch():
    fill("abcde")
    FAILURES["b"] = 1
    config = AT_ONCE.replace(spout_max_batch_size=2)

    batches, attempts = committed_batches(Messages(), "word string", config)

    assert batches == {1: ["c", "d"], 2: ["a", "e"], 3: ["b"]}
    assert attempts == ["1:1", "2:0", "3:0"]
    assert calls("fail") == [("a",), ("b",)]
    assert calls("ack") == [("c",), ("d",), ("e",), ("a",), ("b",)]


def test_a_rich_spout_that_is_dry_ends_the_batch():
    fill("abc")

    batches, _ = committed_batches(Messages(), "word string")

    assert batches == {1: ["a", "b", "c"]}


def test_a_batch_that_fails_takes_the_messages_of_later_ones_with_it():
    fill("abcdef")
    FAILURES["a"] = 1
    config = AT_ONCE.replace(spout_max_batch_size=2, max_spout_pending=3)
    topology, kept = stumbling(Messages(), "word string")
    run = LocalRun(topology, config)
    run.loop.step()
    assert sorted(run.loop.ledger.emitted) == [1, 2, 3]

    run.finish(max_steps=2_000)
    run.close()

    assert [word for (word,) in calls("fail")] == list("abcdef")
    assert sorted(word for (word,) in calls("ack")) == list("abcdef")
    assert [word for (word,) in kept.rows] == list("abcdef")


@pytest.mark.parametrize("spout", [Batches, SteadyBatches])
def test_a_batch_spout_is_asked_for_the_same_batch_again(spout):
    fill("abcde")
    FAILURES["c"] = 1

    batches, attempts = committed_batches(spout())

    assert batches == {1: ["a", "b"], 2: ["c", "d"], 3: ["e"]}
    assert attempts == ["1:0", "2:1", "3:0"]
    emitted = [batch for (batch,) in calls("emit_batch")]
    assert emitted[:4] == [1, 2, 2, 3], "asked once for each attempt"
    assert set(emitted[4:]) == {4}, "and, to see whether there is more, for the next"
    assert calls("ack") == [(1,), (2,), (3,)]


class Shrinking(EmittingSpout):
    """Says that it is transactional, and is not."""

    transactional = True
    output_fields = "word string"

    def __init__(self):
        self.words = ["a", "b"]

    def emit_batch(self, batch_id, collector):
        for word in self.words if batch_id == 1 else ():
            collector.emit([word])
        self.words.pop()


def test_a_batch_spout_that_only_says_it_is_transactional_is_found_out():
    FAILURES["a"] = 1
    topology, kept = stumbling(Shrinking())

    with pytest.raises(SourceError, match="gave 1 tuples for batch 1 where it had given 2"):
        run_to_the_end(topology, AT_ONCE.replace(max_retries=0))

    assert kept.rows == []


def test_fixed_batches_are_the_same_in_every_attempt():
    FAILURES["b"] = 2

    batches, attempts = committed_batches(FixedBatchSpout("word", 2, ["a", "b", "c"]))

    assert batches == {1: ["a", "b"], 2: ["c"]}
    assert attempts == ["1:2", "2:0"]


def test_a_transactional_spout_is_asked_once_for_a_txid_and_emits_it_for_every_attempt():
    fill("abc")
    FAILURES["a"] = 1

    batches, attempts = committed_batches(Whole())

    assert batches == {1: ["a", "b"], 2: ["c"]}
    assert attempts == ["1:1", "2:0"]
    assert calls("initialize_transaction") == [(1, None), (2, [0, 2])]
    assert calls("emit_batch") == [
        ("1:0", [0, 2], 0), ("1:1", [0, 2], 0), ("2:0", [2, 3], 0),
    ]  # fmt: skip


def test_every_partition_is_emitted_again_with_its_metadata():
    source = fill("abc", "xy")
    FAILURES["x"] = 1
    topology, kept = stumbling(Partitioned())
    run = LocalRun(topology, AT_ONCE)
    run.loop.step()
    source.take = 1  # another size must not change a batch that was planned

    run.finish(max_steps=2_000)
    run.close()

    assert kept.batches == {1: [("a",), ("b",), ("x",), ("y",)], 2: [("c",)]}
    assert calls("emit_partition_batch") == [
        ("1:0", 0, [0, 2]), ("1:0", 1, [0, 2]),
        ("1:1", 0, [0, 2]), ("1:1", 1, [0, 2]),
        ("2:0", 0, [2, 3]),
    ]  # fmt: skip


def test_the_list_of_partitions_is_frozen_with_the_batch():
    source = fill("ab")
    FAILURES["a"] = 1
    topology, kept = stumbling(Partitioned())
    run = LocalRun(topology, AT_ONCE)
    run.loop.step()
    source.partitions.append(["x"])

    run.finish(max_steps=2_000)
    run.close()

    assert kept.batches == {1: [("a",), ("b",)], 2: [("x",)]}


def test_an_opaque_spout_reads_again_from_the_last_committed_position():
    source = fill("abc", "xy")
    FAILURES["a"] = 1
    topology, kept = stumbling(Opaque())
    run = LocalRun(topology, AT_ONCE)
    run.loop.step()
    source.down.add(1)
    source.take = 3

    run.finish(max_steps=2_000)
    assert kept.batches == {1: [("a",), ("b",), ("c",)]}, "all of one, nothing of the other"
    source.down.clear()
    run.finish(max_steps=2_000)
    run.close()

    assert kept.batches == {1: [("a",), ("b",), ("c",)], 2: [("x",), ("y",)]}


def test_a_partition_that_vanished_is_left_out_of_the_replay_and_keeps_its_position():
    source = fill("a", "xyz", take=1)
    topology, kept = stumbling(Opaque())
    FAILURES["y"] = 1
    run = LocalRun(topology, AT_ONCE)
    while run.loop.ledger.current < 2:
        run.step()
    while 2 not in run.loop.ledger.emitted:
        run.step()
    gone = source.partitions.pop()

    run.finish(max_steps=2_000)
    assert kept.batches == {1: [("a",), ("x",)]}
    source.partitions.append(gone)
    run.finish(max_steps=2_000)
    run.close()

    assert [word for (word,) in kept.rows] == ["a", "x", "y", "z"]


def test_two_spouts_share_the_txid_and_a_spout_without_data_has_an_empty_part():
    fill("abc")
    FAILURES["a"] = 1
    topology = TridentTopology("both")
    words = capture(topology.new_stream("words", Batches()).each("word", Stumble()))
    memory = MemoryTransactionalSpout([[1, 2], [3]], "n", take=5)
    numbers = capture(topology.new_stream("numbers", memory))

    run_to_the_end(topology)

    assert words.batches == {1: [("a",), ("b",)], 2: [("c",)]}
    assert numbers.batches == {1: [(1,), (2,), (3,)]}


def test_emitters_with_a_hint_share_a_batch():
    fill("abcd", take=4)
    topology = TridentTopology("shares")
    kept = capture(topology.new_stream("words", Whole()).parallelism_hint(2))

    run_to_the_end(topology)

    assert [word for (word,) in kept.rows] == list("abcd")
    assert [index for _, _, index in calls("emit_batch")] == [0, 1]
