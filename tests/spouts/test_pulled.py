"""Core spouts in Trident: what they are called for, and what happens when they raise."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.trident.spout_kinds import (
    AT_ONCE,
    FAILURES,
    Messages,
    Stumble,
    calls,
    fill,
    forget,
    run_to_the_end,
)
from tests.trident.support import capture
from waterspout import Spout
from waterspout.errors import EmitError, SourceError, SpoutCrash
from waterspout.spouts._base import SpoutContext
from waterspout.spouts._sources import source_of
from waterspout.testing import FeederSpout, LocalRun
from waterspout.trident import TridentTopology

RAISES: Counter[str] = Counter()
"""How often a method still raises."""


@pytest.fixture(autouse=True)
def _from_the_beginning():
    forget()
    RAISES.clear()


class Troubled(Messages):
    """Raises where RAISES says so."""

    def _may_raise(self, method):
        if RAISES[method] > 0:
            RAISES[method] -= 1
            raise RuntimeError(f"{method} lost its head")

    def open(self, conf, context, collector):
        self._may_raise("open")
        super().open(conf, context, collector)

    def next_tuple(self):
        self._may_raise("next_tuple")
        super().next_tuple()

    def ack(self, msg_id):
        self._may_raise("ack")
        super().ack(msg_id)

    def fail(self, msg_id):
        self._may_raise("fail")
        super().fail(msg_id)

    def is_drained(self):
        self._may_raise("is_drained")
        return True


def topology_of(spout, out="word string"):
    topology = TridentTopology("pulled")
    stream = topology.new_stream("words", spout, out=out)
    return topology, capture(stream.each("word", Stumble()))


def test_the_limit_of_batches_is_not_taken_for_one_of_messages():
    fill("abcdef")
    topology, kept = topology_of(Messages())

    run_to_the_end(topology, AT_ONCE.replace(max_spout_pending=2))

    assert calls("open") == [(None,)]
    assert kept.batches == {1: [(word,) for word in "abcdef"]}


def test_messages_without_an_id_are_neither_acked_nor_failed():
    spout = FeederSpout("word")
    spout.feed(["a"])
    spout.feed(["b"], msg_id="b")
    spout.feed(["c"])
    topology, kept = topology_of(spout)

    run_to_the_end(topology)

    assert kept.rows == [("a",), ("b",), ("c",)]
    assert spout.tracker.acks == {"b": 1}
    assert spout.tracker.num_fails == 0


def test_the_users_own_object_is_run_and_fed():
    spout = FeederSpout("word", replay=True)
    topology, kept = topology_of(spout)
    run = LocalRun(topology, AT_ONCE)
    run.finish(max_steps=100)
    assert run.loop.ledger.current == 1, "nothing there, no batch"

    spout.feed(["a"], msg_id=1)
    FAILURES["a"] = 1
    run.finish(max_steps=100)
    run.close()

    assert kept.batches == {1: [("a",)]}
    assert spout.tracker.fails == {1: 1}
    assert spout.tracker.acks == {1: 1}


def test_it_is_told_when_the_topology_is_deactivated_and_activated():
    fill("ab")
    topology, kept = topology_of(Messages())
    run = LocalRun(topology, AT_ONCE)
    run.loop.active = False
    run.loop.step()
    run.loop.step()
    assert calls("deactivate") == [()]
    assert run.loop.is_idle
    assert kept.rows == []

    run.loop.active = True
    run.finish(max_steps=100)
    run.close()

    assert calls("activate") == [()]
    assert kept.rows == [("a",), ("b",)]
    assert calls("close") == [()]


class Hesitant(Messages):
    """Is not drained before it was asked three times."""

    asked = 0

    def is_drained(self):
        Hesitant.asked += 1
        return Hesitant.asked > 3


def test_the_run_is_not_idle_before_the_spout_is_drained():
    Hesitant.asked = 0
    fill("a")
    topology, _ = topology_of(Hesitant())

    run_to_the_end(topology)

    assert Hesitant.asked >= 4


@pytest.mark.parametrize("method", ["open", "next_tuple", "ack", "is_drained"])
def test_a_spout_that_raises_is_started_anew_and_its_source_gives_everything(method):
    fill("abc")
    RAISES[method] = 2
    topology, kept = topology_of(Troubled())

    run_to_the_end(topology, AT_ONCE.replace(spout_max_batch_size=2))

    assert sorted(set(kept.rows)) == [("a",), ("b",), ("c",)]
    assert RAISES[method] == 0
    assert {word for (word,) in calls("ack")} == {"a", "b", "c"}


def test_a_spout_whose_fail_raises_gives_the_messages_again_when_it_is_started_anew():
    fill("abc")
    RAISES["fail"] = 1
    FAILURES["a"] = 1
    topology, kept = topology_of(Troubled())

    run_to_the_end(topology)

    assert kept.rows == [("a",), ("b",), ("c",)]


@pytest.mark.parametrize("method", ["open", "next_tuple", "ack", "is_drained"])
def test_a_spout_that_keeps_raising_ends_the_run_with_its_error(method):
    fill("abc")
    RAISES[method] = 1_000
    topology, _ = topology_of(Troubled())

    with pytest.raises(SpoutCrash, match=f"raised in {method}: RuntimeError"):
        run_to_the_end(topology)


def test_what_was_on_the_way_of_a_copy_that_is_gone_is_not_acked_at_the_next():
    fill("abcd")
    topology, _ = topology_of(Troubled())
    run = LocalRun(topology, AT_ONCE.replace(spout_max_batch_size=2, max_spout_pending=2))
    run.loop.step()
    RAISES["next_tuple"] = 1  # while two batches are in flight

    run.finish(max_steps=500)
    run.close()

    # A dict of the new copy would raise for an id that it has not emitted.
    assert {word for (word,) in calls("ack")} == {"a", "b", "c", "d"}


class Wide(Spout):
    output_fields = ("word",)

    def next_tuple(self):
        self.collector.emit(["a", "b"])


def test_a_tuple_of_the_wrong_width_is_an_error_that_names_the_fields():
    topology, _ = topology_of(Wide())

    with pytest.raises(SpoutCrash, match=r"has 1 fields \(word\) but got 2 values") as caught:
        run_to_the_end(topology, AT_ONCE.replace(max_retries=0))

    assert isinstance(caught.value.__cause__, EmitError)


def test_a_value_of_another_type_fails_the_batch_and_names_field_and_value():
    spout = FeederSpout("word")
    spout.feed([1.5])
    topology, _ = topology_of(spout, "word bigint")

    with pytest.raises(TypeError, match=r"spout 'words' gave 1.5 for field 'word'"):
        run_to_the_end(topology, AT_ONCE.replace(max_retries=0))


def test_the_position_of_a_row_is_its_message():
    spout = FeederSpout("word")
    spout.feed(["a"], msg_id=("q", 7))
    spout.feed(["b"])
    source = source_of(spout, topology="t", spout_id="words", out="word string")
    planner = source.open(SpoutContext(AT_ONCE, "words", None, {}, 1))

    metadata = planner.plan(1, None)

    assert source.read(metadata).row_positions() == ["message ('q', 7)", "row 1"]


def test_rows_of_another_driver_are_not_there():
    spout = FeederSpout("word")
    source = source_of(spout, topology="t", spout_id="words", out="word string")

    with pytest.raises(SourceError, match="the source gives its messages again"):
        source.read({"batch": "0-1", "rows": 1})
