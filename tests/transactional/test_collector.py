"""`BatchCollector`: the attempt comes first, on every stream."""

from __future__ import annotations

from typing import ClassVar

import pytest

from waterspout.errors import EmitError
from waterspout.topology import Direct
from waterspout.topology._ports import Port
from waterspout.transactional import (
    BatchBolt,
    BatchCollector,
    MemoryTransactionalSpout,
    TransactionalTopologyBuilder,
    TransactionAttempt,
)
from waterspout.transactional._bolts import TakenTuples
from waterspout.waves.frames import unpack
from waterspout.waves.outlets import make_outlets

ATTEMPT = TransactionAttempt(3, 1)


class Router(BatchBolt):
    streams: ClassVar = {"default": ("tx", "n"), "odd": ("tx", "n", "why"), "to": Direct("tx", "n")}

    def execute(self, tuple):
        pass


class Sink(BatchBolt):
    output_fields = ("tx",)

    def execute(self, tuple):
        pass


@pytest.fixture
def collector():
    spout = MemoryTransactionalSpout([[1]], "n", 1)
    builder = TransactionalTopologyBuilder("t", "spout", spout)
    builder.set_bolt("router", Router()).shuffle_grouping("spout")
    builder.set_bolt("all", Sink(), 2).all_grouping("router")
    builder.set_bolt("odd", Sink()).global_grouping("router", stream="odd")
    builder.set_bolt("direct", Sink(), 2).direct_grouping("router", stream="to")
    topology = builder.build_topology()
    port = Port("router", make_outlets(topology, topology.tasks["router"][0], 0))
    return BatchCollector(port, ATTEMPT)


def sent(collector):
    return {
        (stream, task): box.values
        for stream, outlet in collector.port.outlets.items()
        for task, box in outlet.boxes.items()
    }


def test_emit_returns_the_tasks_that_get_the_tuple(collector):
    assert collector.emit([ATTEMPT, 7]) == (3, 4)
    assert collector.emit((ATTEMPT, 8, "because"), stream="odd") == (5,)
    assert sent(collector) == {
        ("default", 3): [(ATTEMPT, 7)],
        ("default", 4): [(ATTEMPT, 7)],
        ("odd", 5): [(ATTEMPT, 8, "because")],
    }
    assert collector.count == 2


def test_an_equal_attempt_will_do(collector):
    assert collector.emit([TransactionAttempt(3, 1), 7]) == (3, 4)


def test_emit_direct_goes_to_the_task_that_is_named(collector):
    collector.emit_direct(7, [ATTEMPT, 1], stream="to")

    assert sent(collector) == {("to", 7): [(ATTEMPT, 1)]}
    assert collector.count == 1


@pytest.mark.parametrize(
    "first", [TransactionAttempt(3, 0), TransactionAttempt(2, 1), 3, None, "3:1", (3, 1)],
    ids=["other attempt", "other batch", "number", "None", "text", "tuple"],
)  # fmt: skip
def test_the_first_value_must_be_this_attempt(collector, first):
    expected = "it must be the transaction attempt 3:1"
    with pytest.raises(EmitError, match=expected):
        collector.emit([first, 1])
    with pytest.raises(EmitError, match=expected):
        collector.emit_direct(6, [first, 1], stream="to")

    assert sent(collector) == {}


@pytest.mark.parametrize("values", [[], [ATTEMPT], [ATTEMPT, 1, 2], "ab", 7, {"tx": ATTEMPT}])
def test_values_must_fit_the_stream(collector, values):
    with pytest.raises(EmitError):
        collector.emit(values)


def test_streams_and_their_kinds_are_checked(collector):
    with pytest.raises(EmitError, match="unknown stream 'x' of 'router'"):
        collector.emit([ATTEMPT, 1], stream="x")
    with pytest.raises(EmitError, match="is direct: use emit_direct"):
        collector.emit([ATTEMPT, 1], stream="to")
    with pytest.raises(EmitError, match="is not direct: use emit"):
        collector.emit_direct(3, [ATTEMPT, 1])
    with pytest.raises(EmitError, match="task 3 does not take stream 'to'"):
        collector.emit_direct(3, [ATTEMPT, 1], stream="to")

    assert sent(collector) == {}


def test_the_collector_of_a_planner_may_only_count():
    counting = TakenTuples(ATTEMPT, keeps=False)

    assert counting.emit(["anything"]) == ()
    counting.emit_direct(1, ["else"], stream="unknown")
    assert counting.count == 2


def test_what_a_planner_has_taken_is_emitted_under_the_attempt_that_holds_it():
    asked = TransactionAttempt(ATTEMPT.txid, 0)
    values = [asked, 1]
    taken = TakenTuples(asked)
    taken.emit(values)
    values[1] = 2  # an emitter may use one list for all its tuples
    taken.emit(values)
    found = TakenTuples(ATTEMPT)

    TakenTuples.emit_packed(taken.packed(), ATTEMPT, found)

    assert unpack(found.packed()) == (
        ATTEMPT,
        [("default", None, (ATTEMPT, 1)), ("default", None, (ATTEMPT, 2))],
    )
