"""Combiners are what they claim: any order and grouping of the tuples gives the same result."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waterspout._arrow import arrow_type
from waterspout._serde import decode_value, encode_value
from waterspout._tuples import field_index
from waterspout.state._columns import Layout
from waterspout.trident import (
    Average,
    CollectSet,
    Columns,
    Count,
    CountDistinct,
    Max,
    Min,
    Sum,
    TopN,
    TridentTuple,
)

INDEX = field_index(["k", "n", "d"])
ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, "", "a", "b", "日本", "\x00"]),
        st.none() | st.integers(-5, 5) | st.integers(-(2**40), 2**40),
        st.none() | st.decimals(-1000, 1000, places=2),
    ),
    max_size=30,
)


def known(values):
    return [value for value in values if value is not None]


def top_three(rows):
    rows = sorted(
        (row for row in rows if row[1] is not None), key=lambda r: (r[0] or "", r[0] is not None)
    )
    rows = sorted(rows, key=lambda row: row[1], reverse=True)
    return [{"k": k, "n": n} for k, n in rows[:3]]


# Each: the fields that it reads, their types, and its result by other means.
COMBINERS = {
    "Count": (Count(), "k", ["string"], len),
    "Sum": (Sum(), "n", ["bigint"], lambda ns: sum(known(ns))),
    "Sum of decimals": (Sum(), "d", ["decimal(10,2)"], lambda ds: sum(known(ds))),
    "Min": (Min(), "n", ["bigint"], lambda ns: min(known(ns), default=None)),
    "Max": (Max(), "k", ["string"], lambda ks: max(known(ks), default=None)),
    "Average": (
        Average(),
        "n",
        ["bigint"],
        lambda ns: float(sum(known(ns))) / len(known(ns)) if known(ns) else None,
    ),
    "Average of decimals": (
        Average(),
        "d",
        ["decimal(10,2)"],
        lambda ds: float(sum(known(ds))) / len(known(ds)) if known(ds) else None,
    ),
    "CollectSet": (CollectSet(), "k", ["string"], lambda ks: sorted(set(known(ks)))),
    "CountDistinct": (CountDistinct(), "n", ["bigint"], lambda ns: len(set(known(ns)))),
    "CountDistinct of texts": (CountDistinct(8), "k", ["string"], lambda ks: len(set(known(ks)))),
    "TopN": (TopN(3, ["k", "n"], by="n"), "k n", ["string", "bigint"], top_three),
    "Columns": (
        Columns(n=Count(), mean=("n", Average()), keys=("k", CountDistinct())),
        "n k",
        ["bigint", "string"],
        lambda rows: (
            len(rows),
            float(sum(known(n for n, _ in rows))) / len(known(n for n, _ in rows))
            if known(n for n, _ in rows)
            else None,
            len(set(known(k for _, k in rows))),
        ),
    ),
}
every_combiner = pytest.mark.parametrize("name", COMBINERS)


def inputs_of(name, rows):
    fields = COMBINERS[name][1].split()
    index = field_index(fields)
    return [TridentTuple(tuple(row[INDEX[f]] for f in fields), index) for row in rows]


def directly(name, tuples):
    expected = COMBINERS[name][3]
    wide = len(COMBINERS[name][1].split()) > 1
    return expected([t.values if wide else t.values[0] for t in tuples])


def folded(aggregator, tuples):
    value = aggregator.zero()
    for one in tuples:
        value = aggregator.combine(value, aggregator.init(one))
    return value


@every_combiner
@given(rows=ROWS)
def test_what_is_combined_and_finished_is_the_direct_result(name, rows):
    aggregator, tuples = COMBINERS[name][0], inputs_of(name, rows)

    assert aggregator.finish(folded(aggregator, tuples)) == directly(name, tuples)


@every_combiner
@given(rows=ROWS, data=st.data())
def test_any_order_and_grouping_gives_the_same(name, rows, data):
    aggregator, tuples = COMBINERS[name][0], inputs_of(name, rows)
    parts = [aggregator.init(t) for t in data.draw(st.permutations(tuples))]
    parts += [aggregator.zero()] * data.draw(st.integers(0, 2))
    while len(parts) > 1:
        at = data.draw(st.integers(0, len(parts) - 2))
        left, right = parts[at : at + 2]
        swapped = data.draw(st.booleans())
        parts[at : at + 2] = [
            aggregator.combine(right, left) if swapped else aggregator.combine(left, right)
        ]
    value = parts[0] if parts else aggregator.zero()

    assert aggregator.finish(value) == aggregator.finish(folded(aggregator, tuples))


@every_combiner
@settings(max_examples=30, deadline=None)
@given(rows=ROWS)
def test_combining_and_finishing_change_no_value(name, rows):
    aggregator, tuples = COMBINERS[name][0], inputs_of(name, rows)
    left, right = folded(aggregator, tuples), folded(aggregator, tuples[:5])
    before = repr((left, right))
    aggregator.combine(left, right)
    aggregator.finish(left)

    assert repr((left, right)) == before


@every_combiner
@settings(max_examples=30, deadline=None)
@given(rows=ROWS)
def test_a_value_comes_back_from_every_way_to_keep_it(name, rows):
    aggregator, tuples = COMBINERS[name][0], inputs_of(name, rows)
    value = folded(aggregator, tuples)
    types = aggregator.value_types(COMBINERS[name][2])
    columns = value if getattr(aggregator, "is_wide", False) else (value,)
    for kind, column in zip(types, columns, strict=True):
        through_arrow = pa.array([column], arrow_type(kind)).to_pylist()[0]
        assert through_arrow == column
        assert decode_value(encode_value(through_arrow)) == column
        codec = Layout.codecs.of(kind)
        assert codec.to_python(codec.to_sql(through_arrow, "c")) == column


def test_a_nan_is_counted_once_and_kept():
    values = [float("nan"), math.nan, 1.0]
    aggregator = CollectSet()
    value = folded(aggregator, [TridentTuple((v,), field_index(["x"])) for v in values])

    again = decode_value(encode_value(value))

    assert len(again) == 2
    assert math.isnan(again[1])
