"""Windows against a slow model of their rules, over batches of any size, lost attempts included."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trident.windows_support import Driven, Ids, Listed, Spans, counted, lists, timed
from waterspout._arrow import arrow_type
from waterspout.errors import DamagedStoreError, TopologyError
from waterspout.state.sqlite import SQLiteState
from waterspout.topology import Seconds, Tuples
from waterspout.trident.windowing import buffer, chunks
from waterspout.trident.windowing.buffer import KEYS, VALUES
from waterspout.trident.windowing.config import (
    SlidingCountWindow,
    SlidingDurationWindow,
    TumblingCountWindow,
    TumblingDurationWindow,
    sliding,
    tumbling,
)


@pytest.fixture(autouse=True, params=[3, 1024], ids=["small-chunks", "real-chunks"])
def _chunk_size(request, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_TUPLES", request.param)
    monkeypatch.setattr(buffer, "CHUNK_TUPLES", request.param)


def test_a_tumbling_window_is_as_long_as_its_slide():
    assert (TumblingCountWindow.of(5).span, TumblingCountWindow.of(5).step) == (5, 5)
    hour = TumblingDurationWindow.of(dt.timedelta(hours=1))
    assert (hour.span, hour.step) == (3_600_000, 3_600_000)


def test_counts_and_durations_are_told_apart():
    assert tumbling(5) == TumblingCountWindow.of(5)
    assert tumbling(Tuples(5)) == TumblingCountWindow.of(5)
    assert tumbling(dt.timedelta(seconds=5)) == TumblingDurationWindow.of(Seconds(5))
    assert sliding(6, 2) == SlidingCountWindow.of(6, 2)
    assert sliding(Seconds(6), dt.timedelta(seconds=2)) == SlidingDurationWindow.of(
        Seconds(6), Seconds(2)
    )


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "5", None])
def test_a_length_that_is_no_positive_number_of_tuples_is_refused(bad):
    with pytest.raises(TopologyError, match="positive number of tuples"):
        tumbling(bad)
    with pytest.raises(TopologyError, match="positive number of tuples"):
        TumblingCountWindow(bad)
    with pytest.raises(TopologyError, match="positive number of tuples"):
        SlidingCountWindow(5, bad)


@pytest.mark.parametrize("bad", [dt.timedelta(0), dt.timedelta(seconds=-1), Seconds])
def test_a_duration_that_is_none_is_refused(bad):
    with pytest.raises(TopologyError, match=r"at least a millisecond|given as"):
        TumblingDurationWindow.of(bad)


@pytest.mark.parametrize("pair", [(5, 6), (dt.timedelta(seconds=1), dt.timedelta(seconds=2))])
def test_a_slide_that_is_more_than_the_length_is_refused(pair):
    with pytest.raises(TopologyError, match="slide of a window is more than its length"):
        sliding(*pair)


@pytest.mark.parametrize("pair", [(5, dt.timedelta(seconds=1)), (Seconds(5), 1)])
def test_count_and_time_cannot_be_mixed(pair):
    with pytest.raises(TopologyError, match="by count or by time"):
        sliding(*pair)


def test_the_documented_example_by_count():
    driven = Driven(SlidingCountWindow.of(4, 2))

    assert driven.commit([0, 1, 2]) == [([0, 1],)]
    assert driven.commit([3]) == [([0, 1, 2, 3],)]
    assert driven.commit([4, 5, 6, 7]) == [([2, 3, 4, 5],), ([4, 5, 6, 7],)]


def test_the_documented_example_by_time():
    driven = Driven(TumblingDurationWindow.of(Seconds(10)))

    assert driven.commit([0, 1], at=1003.0) == []
    assert driven.commit([2], at=1009.999) == []
    assert driven.commit([3], at=1010.0) == [([0, 1, 2],)]
    assert driven.commit([], at=1055.0) == [([3],)]
    assert driven.commit([], at=1065.0) == []


def test_a_time_in_which_nothing_came_gives_no_window_and_is_skipped():
    driven = Driven(SlidingDurationWindow.of(Seconds(2), Seconds(1)))
    driven.commit(["a"], at=0.5)

    century = 3_000_000_000.0

    assert lists(driven.commit(["b"], at=century)) == [["a"], ["a"]]
    assert lists(driven.commit([], at=2 * century)) == [["b"], ["b"]]


sizes = st.lists(st.integers(0, 9), min_size=1, max_size=12)
counts = st.tuples(st.integers(1, 12), st.integers(1, 12)).map(
    lambda pair: SlidingCountWindow.of(max(pair), min(pair))
)


def numbered(sizes):
    numbers = iter(range(10_000))
    return [[next(numbers) for _ in range(size)] for size in sizes]


@given(config=counts, sizes=sizes)
def test_windows_by_count_are_those_of_the_model(config, sizes):
    batches = numbered(sizes)
    driven = Driven(config)

    made = [lists(driven.commit(rows)) for rows in batches]

    assert made == counted(config, batches)


times = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 4)), min_size=1, max_size=12)
durations = st.tuples(st.integers(1, 9), st.integers(1, 9)).map(
    lambda pair: SlidingDurationWindow.of(Seconds(max(pair) / 1000), Seconds(min(pair) / 1000))
)


def at_times(times, start=100):
    batches, now = [], start
    rows = iter(numbered([size for _, size in times]))
    for pause, _ in times:
        now += pause
        batches.append((now, next(rows)))
    return batches


@given(config=durations, times=times)
def test_windows_by_time_are_those_of_the_model(config, times):
    batches = at_times(times)
    driven = Driven(config)

    made = [lists(driven.commit(rows, at=now / 1000)) for now, rows in batches]

    assert made == timed(config, batches)


lost = st.lists(st.lists(st.integers(0, 9), max_size=2), min_size=12, max_size=12)


@given(config=counts, sizes=sizes, lost=lost)
def test_lost_attempts_with_other_tuples_leave_no_trace_by_count(config, sizes, lost):
    batches = numbered(sizes)
    driven = Driven(config)

    made = []
    for rows, sizes_lost in zip(batches, lost, strict=False):
        for number, size in enumerate(sizes_lost):
            driven.attempt([f"lost {i}" for i in range(size)], number)
        made.append(lists(driven.commit(rows, number=len(sizes_lost))))

    assert made == counted(config, batches)


@given(config=durations, times=times, lost=lost)
def test_lost_attempts_with_other_tuples_leave_no_trace_by_time(config, times, lost):
    batches = at_times(times)
    driven = Driven(config)

    made = []
    for (now, rows), sizes_lost in zip(batches, lost, strict=False):
        for number, size in enumerate(sizes_lost):
            driven.attempt([f"lost {i}" for i in range(size)], number, at=now / 1000)
        made.append(lists(driven.commit(rows, at=now / 1000, number=len(sizes_lost))))

    assert made == timed(config, batches)


def test_the_replay_of_a_batch_that_had_closed_a_window_closes_it_again():
    driven = Driven(TumblingCountWindow.of(3))
    driven.commit([0, 1])

    assert driven.attempt([2, 3]) == [([0, 1, 2],)]
    assert driven.attempt([4], number=1) == [([0, 1, 4],)]
    assert driven.commit([2, 3], number=2) == [([0, 1, 2],)]
    assert driven.commit([4, 5]) == [([3, 4, 5],)]


@pytest.mark.parametrize("aggregator", [Listed(), Ids()], ids=["reducer", "combiner"])
def test_each_kind_of_aggregator_folds_the_window(aggregator):
    driven = Driven(TumblingCountWindow.of(2), aggregator)

    assert driven.commit([1, 2, 3]) == [([1, 2],)]


def test_an_aggregator_may_emit_any_number_of_rows_and_is_told_the_window_by_count():
    driven = Driven(SlidingCountWindow.of(3, 2), Spans(), partition=4)

    made = lists(driven.commit(["a", "b", "c", "d"]))

    assert made == [
        *("WindowSpan(partition=4, start=0, end=2)", "['a', 'b']"),
        *("WindowSpan(partition=4, start=1, end=4)", "['b', 'c', 'd']"),
    ]


def test_an_aggregator_is_told_the_window_by_time():
    driven = Driven(TumblingDurationWindow.of(Seconds(60)), Spans())
    driven.commit(["a"], at=59.0)

    span, held = lists(driven.commit([], at=60.0))

    assert held == "['a']"
    assert "start=datetime.datetime(1970, 1, 1, 0, 0, tz" in span
    assert "end=datetime.datetime(1970, 1, 1, 0, 1, tz" in span


def test_only_a_window_by_time_counts_as_deterministic():
    assert Driven(TumblingDurationWindow.of(Seconds(1))).updater.deterministic
    assert not Driven(TumblingCountWindow.of(1)).updater.deterministic

    moody = Listed()
    moody.deterministic = False
    assert not Driven(TumblingDurationWindow.of(Seconds(1)), moody).updater.deterministic


NOON = dt.datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=dt.UTC)
TYPES = {
    "string": ["日本 🐄", "", "\ud800", 'q"\\\n\x00'],
    "bigint": [-(2**63), 2**63 - 1],
    "double": [1e300, -0.0, math.inf, math.nan, 0.1],
    "boolean": [True, False],
    "binary": [b"\x00\xff", b""],
    "date": [dt.date(1600, 2, 29)],
    "timestamp": [NOON],
    "timestamp_ntz": [NOON.replace(tzinfo=None)],
    "decimal(20,4)": [Decimal("1234567890123456.7891"), Decimal("0.5000")],
    "array<bigint>": [[1, None, 3], []],
    "array<struct<a:int,b:string>>": [[{"a": 1, "b": "x"}, {"a": None, "b": None}]],
    "struct<a:bigint,b:array<string>>": [{"a": 1, "b": ["x", None]}],
    "map<string,bigint>": [[("a", 1), ("b", None)]],
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("where", ["memory", "sqlite"])
def test_every_value_comes_back_from_the_store_as_it_was(kind, where, tmp_path):
    given = [*TYPES[kind], None]
    if "\ud800" not in given:
        # As Spark's rows come to an updater.
        given = pa.array(given, arrow_type(kind)).to_pylist()
    factory = None
    if where == "sqlite":
        factory = SQLiteState.opaque(tmp_path / "w.db", table="w").bind(KEYS, VALUES)
    driven = Driven(TumblingCountWindow.of(len(given) + 1), factory=factory, fields=f"x {kind}")
    driven.commit([(value,) for value in given])

    ((held,),) = driven.commit([(None,)])

    assert [repr(value) for value in held] == [repr(value) for value in [*given, None]]
    assert [type(value) for value in held[:-1]] == [type(value) for value in given]
    if factory is not None:
        driven.state.close()


def test_a_thousand_batches_use_no_more_slots_than_a_few():
    driven = Driven(SlidingCountWindow.of(50, 10))
    most = []

    for batch in range(1000):
        driven.commit(range(batch % 13))
        most.append(len(driven.slots()))

    assert max(most[100:]) <= max(most[:100])
    assert max(most) <= 50


def test_a_batch_of_one_tuple_rewrites_little_though_the_window_is_long(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_TUPLES", 1024)
    monkeypatch.setattr(buffer, "CHUNK_TUPLES", 1024)
    driven = Driven(TumblingCountWindow.of(100_000))
    written = []
    put = driven.state.multi_put
    driven.state.multi_put = lambda keys, values: (
        written.append(sum(map(len, values))),
        put(keys, values),
    )

    for number in range(2000):
        driven.commit([number])

    text = sum(len(f"{number},[]") for number in range(2000))
    tuples = driven.slots()
    contents = len(tuples.pop(-1))
    assert sum(written) - 2000 * contents < 12 * text
    assert len(tuples) <= 2000 / (chunks.CHUNK_TUPLES / 2) + 12


def test_tuples_that_no_later_window_can_hold_are_not_stored():
    driven = Driven(TumblingCountWindow.of(10))

    driven.commit(range(5000))

    assert list(driven.slots()) == [-1]


def test_old_tuples_do_not_stay_because_new_ones_came_to_their_chunk():
    driven = Driven(TumblingDurationWindow.of(Seconds(1)))

    for second in range(100):
        driven.commit([second], at=float(second))
        stored = driven.slots()
        stored.pop(-1)
        assert len(stored) == 1
        assert f"[[{second}]]" in "".join(stored.values())
        assert f"[{second - 1}]" not in stored[next(iter(stored))].split("\n")[1]


def test_a_large_tuple_is_stored_in_a_chunk_of_its_own(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_CHARS", 100)
    monkeypatch.setattr(buffer, "CHUNK_CHARS", 100)
    driven = Driven(TumblingCountWindow.of(7), fields="x string")
    large = ["a", "b" * 500, "c", "d" * 40, "e" * 40, "f"]
    driven.commit(large)
    texts = driven.slots()
    texts.pop(-1)

    made = driven.commit(["g"])

    assert made == [([*large, "g"],)]
    assert sorted(len(text) > 200 for text in texts.values())[-2:] == [False, True]


def test_a_batch_without_tuples_that_closes_nothing_writes_nothing():
    driven = Driven(TumblingDurationWindow.of(Seconds(10)))
    driven.commit([1], at=1.0)
    driven.state.multi_put = lambda keys, values: pytest.fail("written")

    assert driven.commit([], at=9.0) == []


def test_partitions_share_a_store_without_meeting():
    left = Driven(TumblingCountWindow.of(2), partition=0)
    right = Driven(TumblingCountWindow.of(2), factory=left.factory, partition=1)

    left.commit(["a"])
    right.commit(["b"])

    assert left.commit(["c"]) == [(["a", "c"],)]
    assert right.commit(["d"]) == [(["b", "d"],)]


def test_a_store_with_tuples_of_other_fields_is_refused():
    old = Driven(TumblingCountWindow.of(3), fields="x bigint")
    old.commit([1])
    new = Driven(TumblingCountWindow.of(3), factory=old.factory, fields="y bigint")
    new.txid = 2

    with pytest.raises(TopologyError, match=r"tuples of \(x\) by count, .* of \(y\) by count"):
        new.commit([1])


def test_a_window_that_was_made_longer_goes_on_with_what_is_kept():
    old = Driven(TumblingCountWindow.of(3))
    old.commit([0, 1, 2, 3])
    new = Driven(TumblingCountWindow.of(5), factory=old.factory)
    new.txid = 2

    assert new.commit([4]) == [([3, 4],)]


@pytest.mark.parametrize(
    ("slot", "text"),
    [(-1, "{"), (-1, '{"format":1}'), (0, "nonsense"), (0, "[]\n[[1]]"), (0, None), (-1, "[]")],
)
def test_a_damaged_store_is_an_error_and_never_an_empty_window(slot, text):
    driven = Driven(TumblingCountWindow.of(3))
    driven.commit([1, 2])
    driven.state.begin_commit(driven.txid)
    driven.state.multi_put([(0, slot)], [text])
    driven.state.commit(driven.txid)
    driven.txid += 1

    with pytest.raises(DamagedStoreError, match="window"):
        driven.commit([3])


def test_a_store_of_a_newer_format_is_refused():
    driven = Driven(TumblingCountWindow.of(3))
    driven.commit([1, 2])
    contents = driven.slots()[-1]
    driven.state.begin_commit(driven.txid)
    driven.state.multi_put([(0, -1)], [contents.replace('"format":1', '"format":2')])
    driven.state.commit(driven.txid)
    driven.txid += 1

    with pytest.raises(DamagedStoreError, match="format 2"):
        driven.commit([3])
