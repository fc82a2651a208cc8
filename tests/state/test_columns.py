"""Layouts: typed columns out of keys and values, and back."""

# ruff: noqa: DTZ001 (naive timestamps are a type of their own)

from __future__ import annotations

import math
import pickle
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state_support import examples
from waterspout._schema import Schema
from waterspout._serde import encode_key
from waterspout.errors import SerdeError, TopologyError
from waterspout.state._columns import Layout

ANY = Schema((("value", None),))


def encode_keys(columns: Layout, keys: list) -> list[tuple]:
    return list(zip(*columns.key_columns(keys), strict=True))


def layout(keys: str | None, values: str = "total bigint") -> Layout:
    return Layout(None if keys is None else Schema.parse(keys), Schema.parse(values))


def test_a_plain_key_stands_in_its_columns_as_it_is():
    assert encode_keys(layout("word string, n bigint"), [("a", 1)]) == [("a", 1, "")]


def test_null_and_nan_are_a_placeholder_and_a_mark():
    encoded = encode_keys(
        layout("a string, b double"), [(None, 1.5), ("", math.nan), (None, None), ("", 0.0)]
    )

    assert encoded == [
        ("", 1.5, "n-"),
        ("", 0.0, "-x"),
        ("", 0.0, "nn"),
        ("", 0.0, ""),
    ]


def test_null_and_nan_come_back_from_their_marks():
    columns = layout("a string, b double")

    assert columns.decode_key(("", 1.5, "n-")) == (None, 1.5)
    assert columns.decode_key(("", 0.0, "")) == ("", 0.0)
    assert math.isnan(columns.decode_key(("", 0.0, "-x"))[1])


def test_without_key_fields_there_is_one_key():
    assert encode_keys(layout(""), [(), ()]) == [("",), ("",)]
    assert layout("").decode_key(("",)) == ()


def test_without_a_schema_a_key_is_its_canonical_text():
    columns = Layout(None, ANY)

    assert encode_keys(columns, [(1, "a", None)]) == [('[1,"a",null]', "")]
    assert columns.decode_key(('[1,"a",null]', "")) == (1, "a", None)


@pytest.mark.parametrize("key", [(), ("a",), ("a", 1, 2)])
def test_a_key_of_another_length_is_refused(key):
    with pytest.raises(SerdeError, match=rf"has {len(key)} values; this state has word, n"):
        encode_keys(layout("word string, n bigint"), [key])


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("string", 1),
        ("string", b"a"),
        ("bigint", "1"),
        ("bigint", 1.0),
        ("bigint", True),
        ("int", math.nan),
        ("double", "1.0"),
        ("double", 1),
        ("boolean", 1),
        ("binary", "a"),
        ("date", "2024-01-01"),
        ("date", datetime(2024, 1, 1)),
        ("timestamp", date(2024, 1, 1)),
        ("decimal(10,2)", 1.5),
    ],
)
def test_a_key_of_another_type_is_refused_and_the_column_named(kind, key):
    with pytest.raises(SerdeError, match=r"column 'k' holds \w+"):
        encode_keys(layout(f"k {kind}"), [(key,)])


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("decimal(10,2)", Decimal("1.5"), Decimal("1.50")),
        ("decimal(10,2)", Decimal("10"), Decimal("1E+1")),
        ("decimal(10,2)", Decimal("-0.0"), Decimal(0)),
        ("double", 0.0, -0.0),
        ("binary", b"a", bytearray(b"a")),
        (
            "timestamp",
            datetime(2024, 1, 1, 12, tzinfo=UTC),
            datetime(2024, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))),
        ),
        ("array<int>", [1, 2], (1, 2)),
    ],
)
def test_what_is_one_key_to_serde_is_one_row(kind, one, other):
    encoded = encode_keys(layout(f"k {kind}"), [(one,), (other,)])

    assert encode_key((one,)) == encode_key((other,))
    assert encoded[0] == encoded[1]


KEYS = {
    "string": st.text(st.characters(codec="utf-8")),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(),
    "boolean": st.booleans(),
    "binary": st.binary(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
    # Of numbers with more than 28 digits before the point there are other tests: they are refused.
    "decimal(38,10)": st.decimals(-(10**28) + 1, 10**28 - 1, places=10),
    "array<int>": st.lists(st.integers(), max_size=3),
}


@examples()
@given(st.data(), st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=3))
def test_two_keys_share_a_row_exactly_if_they_are_one_key(data, kinds):
    columns = layout(", ".join(f"k{i} {kind}" for i, kind in enumerate(kinds)))
    one, other = (
        tuple(data.draw(st.none() | KEYS[kind]) for kind in kinds),
        tuple(data.draw(st.none() | KEYS[kind]) for kind in kinds),
    )

    encoded = encode_keys(columns, [one, other])

    assert (encoded[0] == encoded[1]) is (encode_key(one) == encode_key(other))
    assert [encode_key(columns.decode_key(e)) for e in encoded] == [
        encode_key(one),
        encode_key(other),
    ]


def test_a_timestamp_that_has_no_utc_is_refused():
    early = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2)))

    with pytest.raises(SerdeError, match="column 'k' cannot hold"):
        encode_keys(layout("k timestamp"), [(early,)])


def test_one_value_column_holds_the_value_itself():
    columns = layout("k string", "n bigint")

    assert columns.encode_values(7) == (7,)
    assert columns.encode_values(None) == (None,)
    assert [columns.decode_values((7,)), columns.decode_values((None,))] == [7, None]


def test_several_value_columns_hold_the_parts_of_a_tuple():
    columns = layout("k string", "n bigint, mean double")

    assert columns.encode_values((1, 2.5)) == (1, 2.5)
    assert columns.encode_values([1, None]) == (1, None)
    assert columns.encode_values(None) == (None, None)
    assert columns.decode_values((1, None)) == (1, None)
    assert columns.decode_values((None, None)) is None


@pytest.mark.parametrize("value", [1, "ab", (1,), (1, 2.0, 3)])
def test_a_value_that_does_not_fill_the_columns_is_refused(value):
    with pytest.raises(SerdeError, match="not one value for each of n, mean"):
        layout("k string", "n bigint, mean double").encode_values(value)


def test_an_int_is_a_fine_double_but_a_true_is_not():
    columns = layout("k string", "x double")

    assert repr(columns.encode_values(1)) == "(1.0,)"
    with pytest.raises(SerdeError, match="column 'x' holds float or int, not True"):
        columns.encode_values(True)


def test_an_int_too_large_for_a_double_is_refused():
    with pytest.raises(SerdeError, match="column 'x' cannot hold"):
        layout("k string", "x double").encode_values(10**400)


@pytest.mark.parametrize(
    "kind", ["array<int>", "map<string,int>", "struct<a:int>", "variant", None]
)
def test_a_type_without_a_column_type_of_its_own_is_json(kind):
    assert Layout.codecs.of(kind).to_sql({"a": [1]}, "c") == '{"a":[1]}'


def test_columns_of_many_values_are_those_of_each():
    columns = layout("k string", "n bigint, x double")
    values = [(1, 2.5), (None, 1), (3, math.nan)]

    whole = columns.value_columns(values)

    assert list(zip(*whole, strict=True)) == [columns.encode_values(v) for v in values]
    assert layout("k string").value_columns([1, 2]) == [[1, 2]]
    with pytest.raises(SerdeError, match="not one value for each of n, x"):
        columns.value_columns([(1, 2.5), (1,)])


@pytest.mark.parametrize(
    ("kind", "column", "takes"),
    [
        ("string", ["a", "b"], True),
        ("string", ["a", None], False),
        ("bigint", [1, True], False),
        ("double", [1.0], False),
        ("boolean", [True], False),
    ],
)
def test_a_column_that_needs_no_encoding_is_known_at_once(kind, column, takes):
    assert Layout.codecs.of(kind).takes(column) is takes


@pytest.mark.parametrize("name", ["_txid", "_TXID", "_attempt", "_nulls", "_prev_n", "_Prev_n"])
def test_a_reserved_name_is_refused_for_keys_and_for_values(name):
    for keys, values in ((name, "n bigint"), ("k string", f"{name} bigint")):
        with pytest.raises(TopologyError, match=f"field '{name}' cannot be a column"):
            layout(keys, values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ("word bigint", "two columns of one table"),
        ("WORD bigint", "two columns of one table"),
        ("a bigint, A bigint", "duplicate field 'A' in a, A"),
    ],
)
def test_two_columns_of_one_name_are_refused_whatever_the_case(values, says):
    with pytest.raises(TopologyError, match=says):
        layout("word string", values)


def test_a_layout_describes_itself_with_names_and_types():
    assert layout("word string", "n bigint").describe() == "word string -> n bigint"
    assert layout("", "n bigint").describe() == " -> n bigint"
    assert Layout(None, ANY).describe() == "(any key) -> value"


def test_a_layout_travels_by_its_schemas():
    columns = layout("word string, tags array<string>", "n bigint")
    encode_keys(columns, [("a", [])])

    assert pickle.loads(pickle.dumps(columns)) == columns
