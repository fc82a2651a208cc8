"""Bolts that take batches of columns: tracked row by row, with the results of single tuples."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.waves.driving import (
    COLLAPSED,
    SPREAD,
    Driven,
    ListLog,
    Pass,
    Record,
    forget_all,
    seen,
    seen_log,
)
from waterspout import FailedException
from waterspout.errors import BoltCrash, EmitError, TopologyError
from waterspout.testing import FeederSpout
from waterspout.topology import BasicBolt, Bolt, TopologyBuilder, Tuples, WindowedBolt
from waterspout.waves import columns

both_shapes = pytest.mark.parametrize("shape", [COLLAPSED, SPREAD])
GROUPINGS = ("shuffle", "fields", "all", "global", "none", "local_or_shuffle", "partial_key")


class Rows(BasicBolt):
    """Emits as many tuples as a key says, and fails where it says so."""

    output_fields = ("key", "path")

    def __init__(self, name: str) -> None:
        self._name = name

    def execute(self, tuple, collector):
        key, path = tuple.values
        seen("executed").append((self._name, key, path))
        if (key + len(path)) % 11 == 0:
            raise ValueError("as its values say")
        if len(path) < 4:
            for n in range(key % 3):
                collector.emit([key + n, path + self._name])


class Columns(Bolt):
    """The same, by column."""

    output_fields = ("key", "path")

    def __init__(self, name: str, *, raises: bool) -> None:
        self._name, self._raises = name, raises

    def execute_batch(self, batch, collector):
        assert set(batch.schema.metadata) == {b"component", b"stream"}
        keys, paths = (batch.column(i).to_pylist() for i in range(2))
        both = list(zip(keys, paths, strict=True))
        bad = [i for i, (key, path) in enumerate(both) if (key + len(path)) % 11 == 0]
        if bad and self._raises:
            if len(both) == 1:
                seen("executed").append((self._name, *both[0]))
            collector.emit_batch([keys, paths])  # is taken back
            raise ValueError("as its values say")
        collector.fail_rows(bad, ValueError("as its values say"))
        seen("executed").extend((self._name, key, path) for key, path in both)
        rows = [(i, key + n, path + self._name) for i, (key, path) in enumerate(both)
                if i not in bad and len(path) < 4 for n in range(key % 3)]  # fmt: skip
        parents, *made = zip(*rows, strict=True) if rows else ((), (), ())
        names = dict(zip(("key", "path"), (pa.array(made[0], pa.int64()), list(made[1])),
                         strict=True))  # fmt: skip
        collector.emit_batch(names, parents=np.array(parents, np.int64))


class Batched(ListLog):
    """A log that is read by column."""

    output_fields = ("key", "path")

    def read_batch(self, partition, start, end):
        found = list(self.read(partition, start, end))
        for begin in range(0, len(found), 3):
            part = found[begin : begin + 3]
            keys = [values[0] for _, values in part]
            yield [offset for offset, _ in part], {"key": keys, "path": [""] * len(part)}


@st.composite
def plans(draw) -> list[tuple[str, int, int, str]]:
    """Bolts in a row or a tree: form, tasks, input, grouping."""
    return [
        (
            draw(st.sampled_from(["rows", "columns", "raises"])),
            draw(st.integers(1, 3)),
            draw(st.integers(0, number)),
            draw(st.sampled_from(GROUPINGS)),
        )
        for number in range(draw(st.integers(1, 3)))
    ]


def run(plan: Any, keys: list[int], *, log: bool, by_row: bool, **options: Any) -> tuple[Any, ...]:
    forget_all()
    feeder = FeederSpout(["key", "path"])
    builder = TopologyBuilder()
    if log:
        seen_log("keys").update({0: list(keys[::2]), 1: list(keys[1::2])})
        builder.set_spout("b0", Batched("keys"), 2)
    else:
        builder.set_spout("b0", feeder)
    for number, (form, tasks, source, grouping) in enumerate(plan, 1):
        name = str(number)
        rows = by_row or form == "rows"
        bolt = Rows(name) if rows else Columns(name, raises=form == "raises")
        fields = ["key", "path"] if grouping in ("fields", "partial_key") else []
        declarer = builder.set_bolt(f"b{number}", bolt, tasks)
        getattr(declarer, f"{grouping}_grouping")(f"b{source}", *fields)
    driven = Driven(builder.create_topology("t"), max_replays=0, **options)
    for n, key in enumerate(keys):
        feeder.feed([key, ""], msg_id=n)
    driven.until_idle(tick=0.5)
    letters = Counter(letter.values for letter in driven.letters.all())
    counts = [(each.component, sum(i.executed for i in each.inputs.values()))
              for wave in driven.heard.waves for each in getattr(wave, "counts", ())]  # fmt: skip
    executed = Counter(seen("executed"))
    return executed, feeder.tracker.acks, feeder.tracker.fails, letters, counts


@settings(max_examples=settings().max_examples // 2)
@given(plan=plans(), keys=st.lists(st.integers(1, 30), max_size=25), log=st.booleans())
def test_by_column_and_by_row_have_the_same_results(plan, keys, log):
    by_row = run(plan, keys, log=log, by_row=True)

    for shape in (COLLAPSED, SPREAD, 6):
        found = run(plan, keys, log=log, by_row=False, wave_collapse_tuples=shape)
        assert found == by_row


def fed(bolt: Any, *, fields: str = "n", **options: Any) -> tuple[Driven, FeederSpout]:
    feeder = FeederSpout(fields, replay=True)
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("bolt", bolt, 1).shuffle_grouping("source")
    if bolt.output_fields:
        builder.set_bolt("out", Record("out"), 2).shuffle_grouping("bolt")
    return Driven(builder.create_topology("t"), **options), feeder


class Call(Bolt):
    """Calls a function with each batch."""

    output_fields = ("n",)

    def __init__(self, function: Any) -> None:
        self._function = function

    def execute_batch(self, batch, collector):
        self._function(batch, collector)


def out() -> list[Any]:
    return sorted(values[0] for _, values in seen("out"))


def double_but_three(batch, collector):
    numbers = batch.column("n").to_pylist()
    collector.emit_batch([[2 * n for n in numbers]])
    seen("sizes").append(len(numbers))
    if 3 in numbers:
        raise ValueError("not three")


@both_shapes
def test_a_row_that_makes_a_call_raise_fails_alone_and_nothing_is_emitted_twice(shape):
    driven, feeder = fed(Call(double_but_three), wave_collapse_tuples=shape, max_replays=1)
    for n in range(8):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    assert out() == [0, 2, 4, 8, 10, 12, 14]
    assert feeder.tracker.acks == dict.fromkeys(range(8), 1)
    assert feeder.tracker.fails == {3: 1}
    (letter,) = driven.letters.all()
    assert (letter.message_id, letter.failed_in, letter.failures) == ("3", "bolt", 2)
    assert letter.error.startswith("ValueError: not three")
    assert seen("sizes")[:7] == [8, 4, 2, 2, 1, 1, 4], "halves, until it is alone"


def fail_one_of_many(batch, collector):
    if batch.num_rows > 1:
        collector.fail_rows([0], "the first")
        raise ValueError("after a row was failed")
    collector.emit_batch(batch)


def test_rows_that_were_failed_by_a_call_that_raised_are_open_again():
    driven, feeder = fed(Call(fail_one_of_many), max_replays=0)
    for n in range(4):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    assert out() == [0, 1, 2, 3]
    assert driven.letters.all() == []


def test_in_later_calls_of_a_wave_rows_are_anchored_to_their_own_parents(monkeypatch):
    monkeypatch.setattr(columns, "_ROWS_MAX", 3)
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    bolt = Call(lambda b, c: c.emit_batch([b.column(0)], parents=range(b.num_rows)))
    builder.set_bolt("bolt", bolt).shuffle_grouping("source")
    builder.set_bolt("fails", FailsOdd()).shuffle_grouping("bolt")
    driven = Driven(builder.create_topology("t"), max_replays=0)
    for n in range(10):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    failed = sorted(letter.values for letter in driven.letters.all())
    assert failed == [(1,), (3,), (5,), (7,), (9,)]


class FailsOdd(BasicBolt):
    def execute(self, tuple, collector):
        if tuple["n"] % 2:
            raise ValueError("odd")


def refuse(batch, collector):
    seen("sizes").append(batch.num_rows)
    raise FailedException("the database is away")


def test_a_failed_exception_fails_all_rows_of_the_batch_at_once():
    driven, feeder = fed(Call(refuse), max_replays=0)
    for n in range(4):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    assert seen("sizes") == [4]
    assert len(driven.letters.all()) == 4
    assert driven.heard.errors == [], "it was said on purpose"


def test_with_crash_on_error_the_run_ends():
    driven, feeder = fed(Call(double_but_three), bolt_errors="crash")
    feeder.feed([3], msg_id=1)

    assert isinstance(driven.until_error(), BoltCrash)


def note_types(batch, collector):
    seen("types").append([str(kind) for kind in batch.schema.types])
    collector.emit_batch([batch.column(0)])


def test_values_that_are_no_columns_together_come_in_batches_of_their_own_and_odd_ones_fail():
    driven, feeder = fed(Call(note_types), max_replays=0)
    odd = {"a": 1 + 2j, "b": 1, "c": "x"}
    for name, value in odd.items():
        feeder.feed([value], msg_id=name)
    driven.until_idle()

    assert sorted(map(str, seen("types"))) == ["['int64']", "['string']"]
    (letter,) = driven.letters.all()
    assert letter.message_id == "'a'"
    assert "'source' emitted" in letter.error
    assert "execute_batch cannot get as columns" in letter.error


@pytest.mark.parametrize(
    ("emit", "error"),
    [
        (lambda c: c.emit_batch([[1]]), r"got 1 rows from a batch of 2; say which"),
        (lambda c: c.emit_batch([[1, 2]], parents=[0]), "2 rows and 1 parents"),
        (lambda c: c.emit_batch([[1]], parents=[2]), r"parents has 2, but .* rows 0 to 1"),
        (lambda c: c.emit_batch([[1]], parents=[-2]), "parents has -2"),
        (lambda c: c.emit_batch([[1]], parents=["x"]), "parents is a list of positions"),
        (lambda c: c.emit_batch([[1]], parents=pa.array([None], pa.int64())), "has nulls"),
        (lambda c: c.emit_batch({"m": [1, 2]}), "has the fields n, but emit_batch got columns m"),
        (lambda c: c.emit_batch([[1, 2], [3, 4]]), "1 fields .* but emit_batch got 2 columns"),
        (lambda c: c.emit_batch("ab"), "takes columns"),
        (lambda c: c.emit_batch([[1, "x"]]), "field 'n' of stream 'default' cannot be a column"),
        (lambda c: c.emit_batch(["ab"]), "a column is an array or a list"),
        (lambda c: c.emit_batch([[1, 2]], stream="other"), "unknown stream 'other'"),
        (lambda c: c.fail_rows([True, False]), "the rows to fail is a list of positions"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(emit, error):
    def execute(batch, collector):
        if batch.num_rows < 2:
            return
        with pytest.raises(EmitError, match=error) as found:
            emit(collector)
        seen("raised").append(str(found.value))

    driven, feeder = fed(Call(execute))
    feeder.feed([1], msg_id=1)
    feeder.feed([2], msg_id=2)
    driven.until_idle()

    assert len(seen("raised")) == 1
    assert feeder.tracker.acks == {1: 1, 2: 1}


def test_columns_of_all_forms_are_taken():
    def execute(batch, collector):
        collector.emit_batch(pa.table({"n": [1]}), parents=[0])
        collector.emit_batch(pa.record_batch({"n": [2]}), parents=pa.array([0]))
        collector.emit_batch({"n": np.array([3])}, parents=np.array([0], np.int32))
        collector.emit_batch([pa.chunked_array([[4], [5]])], parents=pa.chunked_array([[0], [0]]))
        collector.emit_batch([[6.5]], parents=[-1])

    driven, feeder = fed(Call(execute))
    feeder.feed([0], msg_id=0)
    driven.until_idle()

    assert out() == [1, 2, 3, 4, 5, 6.5]
    assert feeder.tracker.acks == {0: 1}


class HoldOne(Bolt):
    """Acks all but the first tuple that it ever gets."""

    def execute(self, tuple):
        if tuple[0] != 1:
            self.collector.ack(tuple)


def test_a_row_without_a_parent_is_in_no_tree_and_one_with_a_parent_holds_up_its_message():
    def execute(batch, collector):
        free = batch.column("n").to_pylist() == [0]
        collector.emit_batch([[1]], parents=[-1] if free else [0])

    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("bolt", Call(execute)).shuffle_grouping("source")
    builder.set_bolt("hold", HoldOne()).shuffle_grouping("bolt")
    driven = Driven(builder.create_topology("t"))
    feeder.feed([0], msg_id="free")
    driven.until(lambda: feeder.tracker.acks == {"free": 1})
    feeder.feed([5], msg_id="tied")
    driven.step(20)

    assert feeder.tracker.acks == {"free": 1}


@both_shapes
def test_a_message_of_several_trees_and_one_through_a_row_bolt_are_tracked(shape):
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("first", Pass("n"), 2).shuffle_grouping("source")
    builder.set_bolt("both", Pair(), 1).global_grouping("first")
    builder.set_bolt("bolt", Call(lambda b, c: c.emit_batch([b.column(0)])), 2).fields_grouping(
        "both", "n"
    )
    builder.set_bolt("out", Record("out"), 2).all_grouping("bolt")
    driven = Driven(builder.create_topology("t"), wave_collapse_tuples=shape)
    for n in range(6):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    assert len(out()) == 6, "three pairs, to two tasks each"
    assert feeder.tracker.acks == dict.fromkeys(range(6), 1)


class Pair(Bolt):
    """Emits two tuples as one, anchored to both."""

    output_fields = ("n",)

    def prepare(self, conf, context, collector):
        self.collector, self._held = collector, []

    def execute(self, tuple):
        self._held.append(tuple)
        if len(self._held) == 2:
            self.collector.emit([f"{[t[0] for t in self._held]}"], self._held)
            for held in self._held:
                self.collector.ack(held)
            self._held = []


def test_a_wave_out_of_time_leaves_the_rest_of_a_batch_for_the_next(monkeypatch):
    monkeypatch.setattr(columns, "_ROWS_MAX", 2)
    driven, feeder = fed(Call(note_sizes), wave_budget_secs=1e-9)
    for n in range(7):
        feeder.feed([n], msg_id=n)
    driven.until_idle()

    assert seen("sizes") == [2, 2, 2, 1]
    assert out() == list(range(7))
    assert feeder.tracker.acks == dict.fromkeys(range(7), 1)


def note_sizes(batch, collector):
    seen("sizes").append(batch.num_rows)
    collector.emit_batch(batch)


class Windowed(WindowedBolt):
    def execute(self, window):
        pass

    def execute_batch(self, batch, collector):
        pass


@pytest.mark.parametrize(
    ("bolt", "error"),
    [
        (type("Idle", (Bolt,), {})(), "Idle has neither execute"),
        (
            Windowed().with_tumbling_window(Tuples(2)),
            "Windowed has execute_batch, but it is a window",
        ),
        (
            type("Few", (Bolt,), {"execute_batch": lambda self, batch: None})(),
            r"execute_batch is called as execute_batch\(batch, collector\)",
        ),
    ],
)
def test_a_bolt_that_nobody_could_call_is_refused_when_it_is_set(bolt, error):
    with pytest.raises(TopologyError, match=error):
        TopologyBuilder().set_bolt("b", bolt)


class Odd(Batched):
    def read_batch(self, partition, start, end):
        yield [start], {"key": [1, 2], "path": ["", ""]}


def test_a_log_whose_offsets_are_not_one_for_each_message_is_told():
    seen_log("odd").update({0: [1, 2]})
    builder = TopologyBuilder()
    builder.set_spout("log", Odd("odd"))
    builder.set_bolt("out", Record("out")).shuffle_grouping("log")

    error = Driven(builder.create_topology("t")).until_error()

    assert "read_batch gave 1 offsets and 2 messages" in str(error)


def test_values_keep_their_types_on_the_way_to_a_bolt_that_takes_rows():
    value = [Decimal("1.50"), b"\x00", [1, 2], None, {"a": 1}]
    names = [f"f{i}" for i in range(len(value))]
    bolt = Call(lambda batch, collector: collector.emit_batch(batch))
    bolt.output_fields = names
    driven, feeder = fed(bolt, fields=names)
    feeder.feed(value, msg_id=1)
    driven.until_idle()

    ((_, found),) = seen("out")
    assert list(found) == value
