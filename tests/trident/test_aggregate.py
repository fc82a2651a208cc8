"""Aggregators over the tuples of a partition: whole batches, groups, partial results."""

from __future__ import annotations

import math
import random
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest

from waterspout import Config
from waterspout._schema import Schema
from waterspout.trident import (
    Aggregator,
    Columns,
    CombinerAggregator,
    Count,
    Max,
    Min,
    ReducerAggregator,
    Sum,
)
from waterspout.trident.operations.contracts import OperationContext
from waterspout.trident.plan.nodes import Aggregate, Aggregation
from waterspout.trident.runtime.aggregate import combine_partials, run_aggregate

HERE = OperationContext(0, 1)


class Longest(CombinerAggregator[str]):
    def init(self, tuple):
        return tuple[0]

    def combine(self, left, right):
        return max(left, right, key=lambda word: (len(word), word))

    def zero(self):
        return ""


class Joined(ReducerAggregator[str]):
    def init(self):
        return "<"

    def reduce(self, value, tuple):
        return value + tuple[0]


class TopTwo(Aggregator[Counter]):
    def init(self, batch_id, collector):
        self.batch_id = batch_id
        return Counter()

    def aggregate(self, value, tuple, collector):
        value[tuple[0]] += 1

    def complete(self, value, collector):
        for word, count in sorted(value.items(), key=lambda item: (-item[1], item[0]))[:2]:
            collector.emit((word, count, self.batch_id))


def step(aggregator, out, *, group=None, fields=("word",), keys="word string"):
    prefix = Schema.parse(keys).fields if group else ()
    schema = Schema((*prefix, *Schema.parse(out).fields))
    inputs = Schema(tuple((f, "string") for f in fields))
    part = Aggregation(inputs, aggregator, Schema.parse(out))
    return Aggregate(
        number=1, name="aggregate(it)", schema=schema, group=group, aggregations=(part,)
    )


def rows(batches):
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def run(step, *batches, partial=False):
    return rows(run_aggregate(step, batches, Config(), HERE, 7, partial=partial))


def words(*values):
    return pa.record_batch({"word": pa.array(values, pa.string())})


def test_a_combiner_combines_all_tuples():
    assert run(step(Longest(), "w string"), words("a", "abc"), words("ab")) == [("abc",)]


def test_a_reducer_folds_the_tuples_in_order():
    assert run(step(Joined(), "w string"), words("a", "b"), words("c")) == [("<abc",)]


def test_an_aggregator_emits_what_it_likes_and_knows_the_batch():
    top = step(TopTwo(), "w string, n bigint, batch bigint")

    assert run(top, words("b", "a", "b", "c")) == [("b", 2, 7), ("a", 1, 7)]


@pytest.mark.parametrize(
    ("aggregator", "out", "made"),
    [
        (Count(), "n bigint", [(0,)]),
        (Sum(), "n bigint", [(0,)]),
        (Longest(), "w string", [("",)]),
        (Joined(), "w string", [("<",)]),
        (TopTwo(), "w string, n bigint, batch bigint", []),
    ],
)
def test_an_empty_batch_gives_what_no_tuples_add_up_to(aggregator, out, made):
    assert run(step(aggregator, out)) == made
    assert run(step(aggregator, out), words()) == made


@pytest.mark.parametrize(
    ("aggregator", "out"), [(Count(), "n bigint"), (Longest(), "w string"), (Joined(), "w string")]
)
def test_an_empty_batch_has_no_groups(aggregator, out):
    assert run(step(aggregator, out, group=("word",)), words()) == []


def test_an_empty_partition_has_no_partial_result():
    assert run(step(Longest(), "w string"), words(), partial=True) == []


def test_each_group_has_its_own_fold():
    counted = run(step(Count(), "n bigint", group=("word",)), words("a", "b", "a", None, None))

    assert counted == [("a", 2), ("b", 1), (None, 2)]


def test_partial_results_of_partitions_combine_to_the_result_of_the_whole():
    dice = random.Random(5)
    values = ["".join(dice.choices("abc", k=dice.randint(0, 4))) for _ in range(200)]
    whole = step(Longest(), "w string")
    grouped = step(Count(), "n bigint", group=("word",))

    for aggregate in (whole, grouped):
        cut = sorted(dice.sample(range(200), 5))
        parts = [values[i:j] for i, j in zip([0, *cut], [*cut, 200], strict=True)]
        partials = [
            batch
            for part in parts
            for batch in run_aggregate(aggregate, [words(*part)], Config(), HERE, 7, partial=True)
        ]
        combined = rows(combine_partials(aggregate, partials, Config(), HERE))

        assert sorted(combined) == sorted(run(aggregate, words(*values)))


def test_combining_nothing_gives_zero_for_the_batch_and_no_group():
    whole, grouped = step(Count(), "n bigint"), step(Count(), "n bigint", group=("word",))

    assert rows(combine_partials(whole, [], Config(), HERE)) == [(0,)]
    assert rows(combine_partials(grouped, [], Config(), HERE)) == []


@pytest.mark.parametrize(
    ("kind", "keys", "groups"),
    [
        (pa.float64(), [math.nan, 1.0, math.nan, -0.0, 0.0, None], [1, 2, 2, 1]),
        (pa.string(), ["", None, "", "é"], [2, 1, 1]),
        (pa.bool_(), [True, False, None, True], [2, 1, 1]),
        (pa.decimal128(5, 2), [Decimal("1.50"), Decimal("1.5"), None], [2, 1]),
    ],
    ids=str,
)
def test_equal_keys_are_one_group_nulls_and_nans_included(kind, keys, groups):
    ddl = {"double": "double", "string": "string", "bool": "boolean"}.get(str(kind), "decimal(5,2)")
    batch = pa.record_batch({"k": pa.array(keys, kind)})
    counted = run(step(Count(), "n bigint", group=("k",), fields=("k",), keys=f"k {ddl}"), batch)

    assert sorted(n for _, n in counted) == sorted(groups)


def test_keys_of_several_fields_are_told_apart():
    batch = pa.record_batch({"a": ["x", "x", "xy"], "b": ["yz", "yz", "z"]})
    counted = run(
        step(Count(), "n bigint", group=("a", "b"), fields=("a",), keys="a string, b string"), batch
    )

    assert counted == [("x", "yz", 2), ("xy", "z", 1)]


def test_sum_takes_nulls_as_nothing_and_keeps_the_kind_of_number():
    floats = pa.record_batch({"x": [1.5, None, 2.0]})
    decimals = pa.record_batch({"x": [Decimal("0.10"), Decimal("0.20"), None]})

    assert run(step(Sum(), "s double", fields=("x",)), floats) == [(3.5,)]
    assert run(step(Sum(), "s decimal(38,2)", fields=("x",)), decimals) == [(Decimal("0.30"),)]
    assert run(step(Sum(), "s decimal(38,2)", fields=("x",))) == [(Decimal("0.00"),)]


def test_an_error_names_the_aggregation_and_the_field():
    with pytest.raises(TypeError, match=r"aggregate\(it\) gave 'abc' for field 'n'"):
        run(step(Longest(), "n bigint"), words("abc"))


class Tracked(Longest):
    def __init__(self):
        self.calls = []

    def prepare(self, conf, context):
        self.calls.append("prepare")

    def cleanup(self):
        self.calls.append("cleanup")

    def init(self, tuple):
        if tuple[0] is None:
            raise RuntimeError("no")
        return tuple[0]


def test_an_aggregator_is_prepared_and_cleaned_up_once():
    whole, partials = Tracked(), Tracked()

    run(step(whole, "w string"), words("a"), words("b"))
    list(combine_partials(step(partials, "w string"), [], Config(), HERE))

    assert whole.calls == partials.calls == ["prepare", "cleanup"]


def test_an_aggregator_is_cleaned_up_after_an_error():
    tracked = Tracked()

    with pytest.raises(RuntimeError, match="no"):
        run(step(tracked, "w string"), words("a", None))

    assert tracked.calls == ["prepare", "cleanup"]


SALES = Schema.parse("city string, amount double, day bigint")
COLUMNS = Columns(n=Count(), total=("amount", Sum()), last=("day", Max()), first=("day", Min()))
OUT = Schema.parse("city string, n bigint, total double, last bigint, first bigint")


def sales(*rows):
    arrow = pa.schema([("city", pa.string()), ("amount", pa.float64()), ("day", pa.int64())])
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    arrays = [pa.array(column, f.type) for column, f in zip(columns, arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def test_several_columns_are_folded_together_and_combine_from_partial_results():
    inputs = SALES.select(COLUMNS.input_fields, where="sales")
    part = Aggregation(inputs, COLUMNS, Schema(OUT.fields[1:]))
    step = Aggregate(number=1, name="sales", schema=OUT, group=("city",), aggregations=(part,))
    first = sales(("paris", 1.5, 7), ("paris", 2.0, 3), ("rome", None, None))
    second = sales(("paris", 0.5, 5), ("rome", 1.0, 9))

    parts = [
        part
        for batch in (first, second)
        for part in run_aggregate(step, [batch], Config(), HERE, 1, partial=True)
    ]
    (made,) = combine_partials(step, parts, Config(), HERE)

    assert made.to_pylist() == [
        {"city": "paris", "n": 3, "total": 4.0, "last": 7, "first": 3},
        {"city": "rome", "n": 2, "total": 1.0, "last": 9, "first": 9},
    ]


def test_one_column_is_a_bare_value():
    one = Columns(n=Count())

    assert (one.zero(), one.combine(2, 3), one.merges) == (0, 5, ("sum",))


@pytest.mark.parametrize(
    ("aggregator", "left", "right", "both"),
    [
        (Min(), 3, 2, 2),
        (Max(), 3, 2, 3),
        (Min(), None, 2, 2),
        (Max(), 3, None, 3),
        (Min(), None, None, None),
        (Min(), math.nan, 2.0, 2.0),
        (Min(), "b", "a", "a"),
        (Max(), Decimal("1.5"), Decimal("1.50"), Decimal("1.5")),
    ],
)
def test_least_and_greatest(aggregator, left, right, both):
    assert aggregator.combine(left, right) == both


def test_a_nan_is_the_greatest_as_for_spark():
    assert math.isnan(Max().combine(math.nan, 2.0))
    assert math.isnan(Max().combine(2.0, math.nan))
