"""`BatchCollector`: the attempt comes first, on every stream."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa
import pytest

from waterspout.errors import EmitError
from waterspout.topology import Direct
from waterspout.topology._ports import Outlet, Port, nobody
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


def test_an_equal_attempt_will_do(collector):
    assert collector.emit([TransactionAttempt(3, 1), 7]) == (3, 4)


def test_emit_direct_goes_to_the_task_that_is_named(collector):
    collector.emit_direct(7, [ATTEMPT, 1], stream="to")

    assert sent(collector) == {("to", 7): [(ATTEMPT, 1)]}


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


def batches(collector):
    return {
        (stream, task): [(box.batch.to_pydict(), box.anchors.tolist()) for box in boxes]
        for stream, outlet in collector.port.outlets.items()
        for task, boxes in outlet.chunks.items()
    }


WAYS = {
    "list": [[7, 8]],
    "dict": {"n": [7, 8]},
    "batch": pa.record_batch({"n": [7, 8]}),
    "table": pa.table({"n": [7, 8]}),
    "a batch that was got": pa.record_batch({"tx": pa.nulls(2), "n": pa.array([7, 8])}),
}


@pytest.mark.parametrize("columns", WAYS.values(), ids=WAYS)
def test_columns_are_those_of_all_fields_but_the_first(collector, columns):
    collector.emit_batch(columns)

    expected = [({"tx": [None, None], "n": [7, 8]}, [-1, -1])]
    assert batches(collector) == {("default", 3): expected, ("default", 4): expected}
    assert sent(collector) == {}


def test_columns_that_do_not_fit_are_refused(collector):
    for columns, expected in (
        ([[1], [2]], "has 1 fields \\(n\\) but emit_batch got 2 columns"),
        ({"m": [1]}, "has the fields n, but emit_batch got columns m"),
        ({"tx": [3], "n": [1]}, "the attempt goes with each row by itself"),
        ({"tx": pa.array([3]), "n": [1]}, "the attempt goes with each row by itself"),
        (["ab"], "a column is an array or a list"),
    ):
        with pytest.raises(EmitError, match=expected):
            collector.emit_batch(columns)
    with pytest.raises(EmitError, match="unknown stream 'x' of 'router'"):
        collector.emit_batch([[1]], stream="x")
    with pytest.raises(EmitError, match="is direct: use emit_direct"):
        collector.emit_batch([[1]], stream="to")
    assert batches(collector) == {}


def test_a_stream_of_nothing_but_the_attempt_has_no_columns():
    collector = BatchCollector(Port("x", {"default": Outlet("default", ("tx",), nobody)}), ATTEMPT)

    with pytest.raises(EmitError, match=r"no field besides 'tx'.*use emit\(\[attempt\]\)"):
        collector.emit_batch([])


@pytest.mark.parametrize("columns", WAYS.values(), ids=WAYS)
def test_what_was_taken_by_column_is_emitted_under_the_real_attempt(collector, columns):
    taken = TakenTuples(TransactionAttempt(3, 0))
    taken.emit_batch(columns)
    taken.emit([TransactionAttempt(3, 0), 9])

    TakenTuples.emit_packed(taken.packed(), ATTEMPT, collector)

    assert taken.count == 3
    assert batches(collector)["default", 3] == [({"tx": [None, None], "n": [7, 8]}, [-1, -1])]
    assert sent(collector)["default", 3] == [(ATTEMPT, 9)]


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
