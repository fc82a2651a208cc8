"""Operations that come with Trident: what each gives, at the edges too."""

from __future__ import annotations

import builtins
import datetime as dt
import itertools
import math
import pickle
import sys
from decimal import Decimal

import pytest

from waterspout._schema import Schema
from waterspout._tuples import field_index
from waterspout.errors import MissingDependencyError, SerdeError, TopologyError
from waterspout.state import MemoryMapState, State
from waterspout.trident import (
    Average,
    CollectSet,
    Columns,
    CombinerAggregator,
    Count,
    CountDistinct,
    FirstN,
    Max,
    MaxBy,
    Min,
    MinBy,
    StringLength,
    Sum,
    TopN,
    TridentCollector,
    TridentTuple,
    TrueFilter,
    TupleCollectionGet,
    nondeterministic,
)
from waterspout.trident.operations.collecting import _datasketches
from waterspout.trident.operations.native_forms import has_native_form

NAN = math.nan


def tuples(fields, rows):
    index = field_index(fields.split())
    return [TridentTuple(row if isinstance(row, tuple) else (row,), index) for row in rows]


def value_of(aggregator, rows):
    value = aggregator.zero()
    for row in rows:
        value = aggregator.combine(value, aggregator.init(row))
    return value


def result_of(aggregator, rows):
    return aggregator.finish(value_of(aggregator, rows))


def emitted(aggregator, rows):
    collector = TridentCollector()
    value = aggregator.init(1, collector)
    for row in rows:
        aggregator.aggregate(value, row, collector)
    aggregator.complete(value, collector)
    return collector.rows


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, None, 4], 7 / 3),
        ([], None),
        ([None], None),
        ([2**62, 2**62 - 2], float(2**63 - 2) / 2),
        ([Decimal("0.10"), Decimal("0.20")], 0.15),
        ([1.5, -1.5], 0.0),
        ([math.inf, 1.0], math.inf),
    ],
)
def test_an_average_leaves_nulls_out_and_is_null_for_nothing(values, expected):
    assert result_of(Average(), tuples("x", values)) == expected


def test_an_average_keeps_the_exact_sum():
    value = value_of(Average(), tuples("x", [2**60 + 1, 2**60 + 1]))

    assert value == {"sum": 2**61 + 2, "count": 2}


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("int", "struct<sum:bigint,count:bigint>"),
        ("float", "struct<sum:double,count:bigint>"),
        ("decimal(10,2)", "struct<sum:decimal(38,2),count:bigint>"),
    ],
)
def test_an_average_is_a_double_whose_parts_are_as_exact_as_the_field(kind, kept):
    assert Average().output_types([kind]) == ["double"]
    assert Average().value_types([kind]) == [kept]


@pytest.mark.parametrize("inputs", [["string"], [], ["int", "int"], [None]], ids=repr)
def test_an_average_of_no_number_is_refused(inputs):
    with pytest.raises(TopologyError, match="Average"):
        Average().output_types(inputs)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["b", "a", None, "b"], ["a", "b"]),
        ([], []),
        ([2, 10, 1, 2], [1, 2, 10]),
        ([True, False, True], [False, True]),
        (["\U0001f404", "\uffff"], ["\uffff", "\U0001f404"]),
        ([[2, None], [1], [2, None]], [[1], [2, None]]),
        ([{"a": 2, "b": "x"}, {"a": 1, "b": "y"}], [{"a": 1, "b": "y"}, {"a": 2, "b": "x"}]),
        ([dt.date(2026, 2, 1), dt.date(2026, 1, 2)], [dt.date(2026, 1, 2), dt.date(2026, 2, 1)]),
        ([b"b", b"a"], [b"a", b"b"]),
    ],
)
def test_a_collected_set_is_sorted_and_has_no_nulls(values, expected):
    assert value_of(CollectSet(), tuples("x", values)) == expected


def test_a_set_of_doubles_has_one_nan_which_is_last_and_one_zero():
    found = value_of(CollectSet(), tuples("x", [NAN, 1.0, -0.0, float("nan"), 0.0]))

    assert len(found) == 3
    assert found[:2] == [0.0, 1.0]
    assert math.isnan(found[2])


def test_a_set_has_the_type_of_its_field():
    assert CollectSet().output_types(["decimal(5,1)"]) == ["array<decimal(5,1)>"]
    for bad in (["map<string,int>"], ["array<map<int,int>>"], ["variant"], [], ["int", "int"]):
        with pytest.raises(TopologyError, match="CollectSet"):
            CollectSet().output_types(bad)


SCORES = tuples("user score", [("a", 3), ("b", 7), ("c", None), ("d", 3), ("e", 9), ("b", 7)])


def names(top):
    return [row["user"] for row in top]


def test_the_greatest_rows_come_first_and_equal_ones_by_their_other_fields():
    assert names(value_of(TopN(4, ["user", "score"], by="score"), SCORES)) == ["e", "b", "b", "a"]


def test_reversed_the_least_rows_come_first():
    top = TopN(3, ["user", "score"], by="score", reverse=True)

    assert names(value_of(top, SCORES)) == ["a", "d", "b"]


def test_fewer_rows_than_asked_for_are_all_there_are():
    assert value_of(TopN(3, ["user", "score"], by="score"), SCORES[:1]) == [
        {"user": "a", "score": 3}
    ]
    assert value_of(TopN(3, ["user", "score"], by="score"), []) == []


def test_a_nan_is_the_greatest():
    rows = tuples("user score", [("a", 1.0), ("b", NAN), ("c", math.inf)])

    assert names(value_of(TopN(2, ["user", "score"], by="score"), rows)) == ["b", "c"]


def test_every_order_of_the_tuples_gives_the_same_rows():
    top = TopN(2, ["user", "score"], by="score")

    found = {repr(value_of(top, order)) for order in itertools.permutations(SCORES)}

    assert len(found) == 1


def test_rows_are_structs_of_the_fields_it_reads():
    top = TopN(2, ["user", "score"], by=["score", "user"])

    assert top.input_fields == ("user", "score")
    assert top.output_types(["string", "double"]) == ["array<struct<user:string,score:double>>"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopN(0, "x", by="x"),
        lambda: TopN(True, "x", by="x"),
        lambda: TopN(1.5, "x", by="x"),
        lambda: TopN(3, ["user"], by="score"),
        lambda: TopN(3, ["user"], by=[]),
        lambda: TopN(3, ["a", "b"], by="a").output_types(["int"]),
        lambda: TopN(3, ["a"], by="a").output_types(["map<int,int>"]),
    ],
)
def test_a_top_n_that_makes_no_sense_is_refused(make):
    with pytest.raises(TopologyError, match="TopN"):
        make()


@pytest.mark.parametrize("n", [0, 1, 2, 100, 350])
def test_small_sets_are_counted_exactly(n):
    rows = tuples("x", [f"value {i}" for i in range(n)] * 2)

    assert result_of(CountDistinct(), rows) == n


def test_large_sets_are_counted_nearly_in_bounded_room():
    value = value_of(CountDistinct(), tuples("x", range(30_000)))

    assert abs(CountDistinct().finish(value) - 30_000) < 30_000 * 0.05
    assert len(value) < 5_000


def test_the_estimate_does_not_depend_on_the_order_or_the_partitions():
    count, rows = CountDistinct(), tuples("x", range(5_000))
    one_by_one = value_of(count, rows)
    backwards = value_of(count, rows[::-1])
    parts = [value_of(count, rows[i::7]) for i in range(7)]
    merged = parts[0]
    for part in parts[1:]:
        merged = count.combine(part, merged)

    assert count.finish(one_by_one) == count.finish(backwards) == count.finish(merged)


@pytest.mark.parametrize(
    ("fields", "rows", "expected"),
    [
        ("x", ["", "", "a"], 2),
        ("x", [None, 1, 1], 1),
        ("x", [True, False, True], 2),
        ("x", [1.0, 1.5, -0.0, 0.0, NAN, float("nan")], 4),
        ("x", [Decimal("1.0"), Decimal("1.00"), Decimal("2")], 2),
        ("x", [b"", b"a", b"a"], 2),
        ("x", [dt.date(2026, 1, 1), dt.date(2026, 1, 2)], 2),
        ("x", [[1, 2], [1, 2], [2, 1]], 2),
        ("x", [{"a": 1}, {"a": 2}, {"a": 1}], 2),
        ("x y", [("a", "bc"), ("ab", "c"), ("a", "bc"), ("a", None)], 2),
    ],
)
def test_values_of_every_type_are_told_apart(fields, rows, expected):
    assert result_of(CountDistinct(), tuples(fields, rows)) == expected


def test_a_sketch_is_kept_as_bytes_and_read_as_a_long():
    assert CountDistinct().value_types(["string"]) == ["binary"]
    assert CountDistinct().output_types(["string"]) == ["bigint"]
    assert CountDistinct().finishes


@pytest.mark.parametrize("bad", [b"", b"abc", b"\x02\x01\x07\x0c\x03\x08\x00\xff" * 3], ids=len)
def test_bytes_that_are_no_sketch_are_an_error_and_not_a_guess(bad):
    with pytest.raises(SerdeError, match="no sketch"):
        CountDistinct().combine(CountDistinct().zero(), bad)


def test_sketches_of_two_sizes_can_be_combined():
    small, large = CountDistinct(8), CountDistinct(12)
    value = large.combine(value_of(small, tuples("x", "abc")), value_of(large, tuples("x", "cd")))

    assert large.finish(value) == 4


@pytest.mark.parametrize("lg_k", [3, 22, "12", True, 12.0], ids=repr)
def test_a_size_that_a_sketch_cannot_have_is_refused(lg_k):
    with pytest.raises(TopologyError, match="lg_k from 4 to 21"):
        CountDistinct(lg_k)


def test_what_cannot_be_told_apart_cannot_be_counted():
    for bad in (["map<string,int>"], []):
        with pytest.raises(TopologyError, match="CountDistinct"):
            CountDistinct().output_types(bad)


def test_a_missing_package_is_an_error_with_the_line_to_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketches", None)
    _datasketches.cache_clear()
    try:
        with pytest.raises(MissingDependencyError, match=r"pip install 'waterspout\[sketches\]'"):
            CountDistinct()
    finally:
        _datasketches.cache_clear()


def test_trident_is_imported_without_the_package():
    assert "datasketches" not in vars(sys.modules["waterspout.trident.operations.collecting"])
    assert builtins.len(pickle.dumps(CountDistinct(10))) < 300


def test_columns_finish_one_by_one():
    columns = Columns(n=Count(), mean=("x", Average()), users=("u", CountDistinct()))
    rows = tuples("x u", [(1, "a"), (4, "a"), (None, "b")])
    value = value_of(columns, rows)

    assert columns.finishes
    assert columns.finish(value) == (3, 2.5, 2)
    assert columns.output_types(["int", "string"]) == ["bigint", "double", "bigint"]
    assert columns.value_types(["int", "string"]) == [
        "bigint",
        "struct<sum:bigint,count:bigint>",
        "binary",
    ]


def test_a_single_column_that_finishes_has_a_bare_value():
    columns = Columns(mean=("x", Average()))

    assert columns.finish(value_of(columns, tuples("x", [1, 2]))) == 1.5


def test_columns_without_a_value_stay_without_one():
    columns = Columns(n=Count(), mean=("x", Average()))

    assert columns.finish((2, None)) == (2, None)


def test_columns_that_only_combine_do_not_finish():
    assert not Columns(n=Count(), total=("x", Sum())).finishes


def test_a_column_may_know_its_fields_by_itself():
    columns = Columns(n=Count(), top=TopN(1, ["u", "x"], by="x"))

    assert columns.input_fields == ("u", "x")
    value = value_of(columns, tuples("u x", [("a", 1), ("b", 2)]))
    assert value == (2, [{"u": "b", "x": 2}])


def test_columns_prepare_and_clean_up_what_they_hold():
    calls = []

    class Noted(CombinerAggregator):
        def prepare(self, conf, context):
            calls.append("prepare")

        def cleanup(self):
            calls.append("cleanup")

        def init(self, tuple):
            return 1

        def combine(self, left, right):
            return left + right

        def zero(self):
            return 0

    columns = Columns(n=Noted())
    columns.prepare(None, None)
    columns.cleanup()

    assert calls == ["prepare", "cleanup"]


def test_columns_are_as_deterministic_as_their_parts():
    assert Columns(n=Count()).deterministic
    assert not Columns(n=nondeterministic(Count())).deterministic


DEVICES = tuples("id load", [("a", 3), ("b", None), ("c", 7), ("d", 3), ("e", 7)])


def test_the_later_of_equal_tuples_wins_and_nulls_take_no_part():
    assert emitted(MinBy("load"), DEVICES) == [("d", 3)]
    assert emitted(MaxBy("load"), DEVICES) == [("e", 7)]


def test_a_key_says_what_is_compared():
    assert emitted(MinBy("load", key=lambda load: -load), DEVICES) == [("e", 7)]
    assert emitted(MaxBy(None, key=lambda row: row["id"]), DEVICES) == [("e", 7)]
    assert emitted(MinBy(None, key=lambda row: row["load"]), DEVICES) == [("d", 3)]


def test_no_tuple_comes_of_none():
    assert emitted(MinBy("load"), []) == []
    assert emitted(MaxBy("load"), DEVICES[1:2]) == []


def test_a_nan_is_greater_than_every_number():
    rows = tuples("id load", [("a", NAN), ("b", math.inf), ("c", 1.0)])

    assert emitted(MinBy("load"), rows) == [("c", 1.0)]
    (winner,) = emitted(MaxBy("load"), rows)
    assert winner[0] == "a"


def test_whole_tuples_keep_their_types():
    assert MinBy("load").output_types(["string", "int"]) == ["string", "int"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: MinBy(None),
        lambda: MaxBy(["a", "b"]),
        lambda: MinBy("load", key=7),
        lambda: FirstN(0),
        lambda: FirstN("3"),
        lambda: FirstN(3, reverse=True),
        lambda: FirstN(3, ["a"]),
    ],
)
def test_extremes_of_nothing_in_particular_are_refused(make):
    with pytest.raises(TopologyError):
        make()


class Recorded:
    """A stream that only notes what is asked of it."""

    def __init__(self, schema, calls=()):
        self.schema, self.calls = schema, list(calls)
        self.fields = schema.names

    def aggregate_in_steps(self, method, aggregator):
        return Recorded(self.schema, [*self.calls, aggregator])


def first(assembly, partitions):
    """Run FirstN as a stream would: on each partition, then on what they gave."""
    (aggregator,) = assembly.apply(Recorded(Schema.parse("id string, load int"))).calls
    index = field_index(["id", "load"])
    some = [TridentTuple(row, index) for part in partitions for row in emitted(aggregator, part)]
    return emitted(aggregator, some)


def test_the_first_n_are_the_least_of_all_partitions():
    parts = [DEVICES[:2], DEVICES[2:]]

    assert first(FirstN(3, "load"), parts) == [("b", None), ("a", 3), ("d", 3)]
    assert first(FirstN(2, "load", reverse=True), parts) == [("c", 7), ("e", 7)]
    assert len(first(FirstN(2), parts)) == 2
    assert first(FirstN(9, "load"), [[], []]) == []


def test_the_first_of_many_are_chosen_in_little_room():
    rows = tuples("id load", [(str(i), (i * 7919) % 1000) for i in range(1000)])

    assert [load for _, load in first(FirstN(5, "load"), [rows])] == [0, 1, 2, 3, 4]


def test_a_sort_field_that_the_stream_has_not_is_refused():
    with pytest.raises(TopologyError, match=r"FirstN\(3\) asks for field 'heat'"):
        FirstN(3, "heat").apply(Recorded(Schema.parse("id string")))


def test_only_a_sorted_choice_is_the_same_in_a_replay():
    schema = Schema.parse("id string, load int")

    assert FirstN(3, "load").apply(Recorded(schema)).calls[0].deterministic
    assert not FirstN(3).apply(Recorded(schema)).calls[0].deterministic


class Listed(State):
    def get_tuples(self):
        return [["a", 1], ["b", 2]]


def answers(state, n=2):
    query, collector = TupleCollectionGet(), TridentCollector()
    rows = tuples("x", range(n))
    for row, answer in zip(rows, query.batch_retrieve(state, rows), strict=True):
        query.execute(row, answer, collector)
    return collector.rows


def test_every_tuple_of_a_state_answers_every_input_tuple():
    assert answers(Listed()) == [("a", 1), ("b", 2)] * 2
    assert answers(Listed(), n=0) == []


@pytest.mark.parametrize("value", [5, (5, "wide")], ids=["one column", "two columns"])
def test_a_map_answers_with_its_keys_and_values(value):
    state = MemoryMapState().make_state(None, 0, 1)
    state.multi_put([("a", 1), ("b", 2)], [value, value])
    wide = value if isinstance(value, tuple) else (value,)

    assert sorted(answers(state, n=1)) == [("a", 1, *wide), ("b", 2, *wide)]


def test_a_state_that_cannot_be_listed_says_so():
    with pytest.raises(TopologyError, match="State cannot list what it holds"):
        answers(State())


def test_string_length_and_true_filter():
    collector = TridentCollector()
    for row in tuples("s", ["", "日本", None]):
        StringLength().execute(row, collector)
        assert TrueFilter().is_keep(row)

    assert collector.rows == [(0,), (2,), (None,)]
    assert StringLength().output_types(["string"]) == ["int"]


class OtherCount(Count):
    """Counts something else: Spark's count is not its native form."""


@pytest.mark.parametrize(
    ("aggregator", "fields", "native"),
    [
        (Count(), "", True),
        (Sum(), "x int", True),
        (Min(), "x string", True),
        (Max(), "x date", True),
        (Average(), "x double", True),
        (CollectSet(), "x string", True),
        (CollectSet(), "x decimal(5,2)", True),
        (CollectSet(), "x double", False),
        (CollectSet(), "x array<int>", False),
        (CountDistinct(), "x smallint", True),
        (CountDistinct(), "x string", True),
        (CountDistinct(), "x binary", False),
        (CountDistinct(), "x string, y string", False),
        (TopN(1, "x", by="x"), "x int", False),
        (OtherCount(), "", False),
        (Columns(n=Count(), u=("x", CountDistinct())), "x string", True),
        (Columns(n=Count(), u=("x", CountDistinct())), "x double", False),
        (Columns(n=OtherCount()), "", False),
        (MinBy("x"), "x int", False),
    ],
)
def test_which_aggregators_spark_does_itself(aggregator, fields, native):
    assert has_native_form(aggregator, Schema.parse(fields)) is native
