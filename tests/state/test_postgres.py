"""PostgreSQL states: tables that anyone can read, typed columns, combining, whose table it is."""

# ruff: noqa: DTZ001 (naive timestamps are a type of their own)

from __future__ import annotations

import logging
import math
import pickle
import sys
from collections import Counter
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import count

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state.columns_support import PerColumn
from tests.state.postgres_support import Database
from tests.state_support import Add, Batches, committed, examples, pairs_of
from waterspout.errors import (
    ConfigError,
    DamagedStoreError,
    FencedError,
    ForeignStoreError,
    MissingDependencyError,
    NewerFormatError,
    NumberTooLargeError,
    SerdeError,
    StaleBatchError,
    StateMismatchError,
    StoreError,
    TopologyError,
)
from waterspout.state._base import StateKind
from waterspout.state._head import Claim
from waterspout.state._kinds import make_map
from waterspout.state._memory import MemoryMap
from waterspout.state.postgres import PostgresState, _map
from waterspout.state.postgres._columns import PostgresLayout, array_of
from waterspout.state.postgres._connections import close_idle
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident import Max, Min, Sum

OPAQUE, TRANSACTIONAL, PLAIN = (
    StateKind.OPAQUE,
    StateKind.TRANSACTIONAL,
    StateKind.NON_TRANSACTIONAL,
)
each_kind = pytest.mark.parametrize("kind", list(StateKind), ids=lambda kind: kind.value)
any_path = pytest.mark.parametrize("combine", [None, Sum()], ids=["folded", "combined"])
unused = count()


@pytest.fixture(scope="module")
def lasting(postgres_server):
    """A database for tests that take a table of their own each time."""
    yield Database(postgres_server.fresh_database())
    close_idle()


@pytest.fixture(scope="module")
def emptied(postgres_server):
    return Database(postgres_server.fresh_database())


@pytest.fixture
def database(emptied):
    """A database with nothing in it."""
    yield emptied
    close_idle()
    emptied.change("DROP SCHEMA IF EXISTS public, stream CASCADE")
    emptied.change("CREATE SCHEMA public")


def test_select_word_count_from_counts_just_works(database):
    Batches(database.state()).commit({"the": 3, "cow": 1})

    assert database.select("SELECT word, count FROM word_counts ORDER BY word") == [
        ("cow", 1),
        ("the", 3),
    ]


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (OPAQUE, ["_txid", "_attempt", "_prev_count"]),
        (TRANSACTIONAL, ["_txid", "_attempt"]),
        (PLAIN, []),
    ],
)
def test_a_table_has_the_users_columns_first_and_then_what_its_kind_needs(database, kind, more):
    Batches(database.state(kind=kind)).commit({"a": 1})

    found = database.select(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'word_counts'::regclass "
        "AND attnum > 0 ORDER BY attnum"
    )
    assert [name for (name,) in found] == ["word", "count", "_nulls", "_long", *more]


def test_a_table_may_be_in_a_schema_of_its_own(database):
    database.change("CREATE SCHEMA stream")
    batches = Batches(database.state(schema="stream"))

    batches.commit({"a": 1})

    assert database.select("SELECT word, count FROM stream.word_counts") == [("a", 1)]
    assert database.select("SELECT name FROM stream._waterspout_heads") == [("word_counts",)]


def test_a_global_state_is_a_table_of_one_row(database):
    batches = Batches(database.state(keys="", values="total bigint"), combine=Sum())

    batches.commit({(): 3})
    batches.commit({(): 4})

    assert database.select("SELECT total, _prev_total FROM word_counts") == [(7, 3)]
    assert batches.values(()) == [7]


def test_reading_what_is_not_there_finds_nothing_and_makes_nothing(database):
    state = database.state()

    assert state.multi_get([("a",)]) == [None]
    assert pairs_of(state._backing) == []
    assert state.read_head() is None
    assert database.select("SELECT relname FROM pg_class WHERE relname ~ 'word|waterspout'") == []


PLUS_TWO = timezone(timedelta(hours=2))
TYPES = [
    ("string", "text", ["", "a", "naïve ☃ 𝄞", '"\\{}', "NULL", "a\0b", "\ud800", '\x01"a"']),
    ("bigint", "bigint", [0, -1, 2**63 - 1, -(2**63)]),
    ("int", "integer", [0, 2**31 - 1, -(2**31)]),
    ("smallint", "smallint", [-1, 7, 2**15 - 1]),
    ("tinyint", "smallint", [-1, 7]),
    ("double", "double precision", [0.0, -0.0, 1.5, 5e-324, 1.7e308, math.inf, math.nan]),
    ("float", "real", [0.5, 0.10000000149011612, math.inf, math.nan]),
    ("boolean", "boolean", [True, False]),
    ("binary", "bytea", [b"", b"\x00\xff\\"]),
    ("date", "date", [date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31)]),
    (
        "timestamp",
        "timestamp with time zone",
        [datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)],
    ),
    (
        "timestamp_ntz",
        "timestamp without time zone",
        [datetime(2024, 2, 29, 12, 30, 1, 5), datetime(9999, 12, 31)],
    ),
    ("decimal(38,2)", "numeric", [Decimal("1.50"), Decimal("-0.01"), Decimal("1" + "0" * 35)]),
    ("array<int>", "text", [[], [1, None, 2]]),
    ("map<string,int>", "text", [{}, {"a\0": 1}]),
    ("struct<a:int,b:string>", "text", [{"a": 1, "b": "x"}]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "sql", "values"), TYPES, ids=[kind for kind, *_ in TYPES])
def test_values_of_every_type_come_back_as_they_were(database, kind, sql, values):
    state = database.state("k bigint", f"v {kind}")
    keys = [(n,) for n in range(len(values))]

    for txid in (1, 2):
        state.begin_commit(txid)
        state.multi_put([*keys, (-1,)], [*values, None])
        state.commit(txid)

    assert repr(state.multi_get([*keys, (-1,)])) == repr([*values, None])
    assert repr([record.prev for record in state._backing.multi_get(keys)]) == repr(values)
    assert database.select("SELECT DISTINCT pg_typeof(v)::text FROM word_counts") == [(sql,)]


KEY_TYPES = [row for row in TYPES if not row[0].startswith(("map", "struct"))]


@pytest.mark.parametrize(("kind", "sql", "values"), KEY_TYPES, ids=[kind for kind, *_ in KEY_TYPES])
def test_keys_of_every_type_are_told_apart_and_from_null(database, kind, sql, values):
    state = database.state(f"k {kind}", "v string")
    keys = [(value,) for value in values if repr(value) != "-0.0"] + [(None,)]

    state.begin_commit(1)
    state.multi_put(keys, [repr(key) for key in keys])
    state.commit(1)

    assert state.multi_get(keys) == [repr(key) for key in keys]
    listed = {repr(key): record.value for key, record in pairs_of(state._backing)}
    assert sorted(listed.values()) == sorted(repr(key) for key in keys)
    assert database.select("SELECT count(*) FROM word_counts") == [(len(keys),)]


def test_odd_strings_are_escaped_and_all_others_are_as_they_are(database):
    state = database.state("k string", "v string")
    state.multi_put([("a\0b",), ("\x01",), ("a\\b",)], ["\0", "\x01", "'\""])

    assert sorted(database.select("SELECT k, v FROM word_counts")) == [
        ('\x01"\\u0001"', '\x01"\\u0001"'),
        ('\x01"a\\u0000b"', '\x01"\\u0000"'),
        ("a\\b", "'\""),
    ]


LONG = ["x" * 1_000_000, "x" * 1_000_000 + "y", "é" * 601, "\0" * 700, "x" * 600]


@pytest.mark.parametrize("keys", ["k string", "k binary", "a string, b binary", None])
def test_keys_too_long_for_an_index_are_keys_like_others(database, keys):
    state = database.state(keys, "n bigint", table="long")
    names = {
        "k binary": [(text.encode(),) for text in LONG],
        "a string, b binary": [(a, b.encode()) for a in ("", *LONG[2:]) for b in ("", *LONG[2:])],
    }.get(keys, [(text,) for text in LONG])
    batches = Batches(state)

    for _ in range(2):
        batches.commit({name: n for n, name in enumerate(names)})

    assert batches.values(*names) == [2 * n for n in range(len(names))]
    assert {key: r.value for key, r in pairs_of(state._backing)} == {
        name: 2 * n for n, name in enumerate(names)
    }


def test_null_nan_empty_and_zero_are_different_keys(database):
    batches = Batches(database.state("a string, b double"), combine=Sum())
    keys = [(None, math.nan), (None, None), ("", math.nan), (None, 0.0), ("", None), ("", 0.0)]

    for _ in range(2):
        batches.commit({key: n for n, key in enumerate(keys, 1)})

    assert batches.values(*keys) == [2, 4, 6, 8, 10, 12]
    assert batches.values(("", -0.0)) == [12]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bigint", 2**63),
        ("int", 2**31),
        ("smallint", -(2**15) - 1),
        ("float", 1e300),
        ("timestamp", datetime(2024, 1, 1)),
        ("timestamp_ntz", datetime(2024, 1, 1, tzinfo=UTC)),
        ("decimal(10,2)", Decimal(1).scaleb(-20_000)),
    ],
)
def test_what_a_column_cannot_hold_is_refused_before_anything_is_written(database, kind, value):
    state = database.state("k string", f"v {kind}")

    with pytest.raises(SerdeError, match="column 'v' cannot hold"):
        state.multi_put([("a",), ("b",)], [None, value])

    assert state.multi_get([("a",)]) == [None]


def test_a_float_is_rounded_as_a_value_and_refused_as_a_key_if_it_is_no_float(database):
    state = database.state("k float", "v float")
    state.multi_put([(0.5,)], [0.1])

    assert state.multi_get([(0.5,)]) == [0.10000000149011612]
    with pytest.raises(SerdeError, match=r"column 'k' cannot hold 0\.1"):
        state.multi_put([(0.1,)], [0.5])


def test_an_aware_timestamp_comes_back_as_the_same_moment_in_utc(database):
    state = database.state("k string", "at timestamp")

    state.multi_put([("a",)], [datetime(2024, 1, 1, 2, tzinfo=PLUS_TWO)])

    assert repr(state.multi_get([("a",)])) == repr([datetime(2024, 1, 1, tzinfo=UTC)])


@pytest.mark.parametrize(
    ("column", "array"),
    [
        ([], "{}"),
        ([None, None], "{}"),
        ([1, -2], "{1,-2}"),
        ([1, None], "{1,NULL}"),
        ([1.5, math.inf], "{1.5,inf}"),
        ([1.5, "NaN"], '{1.5,"NaN"}'),
        (["a", ""], '{"a",""}'),
        (["NULL", None], '{"NULL",NULL}'),
        (['a"b', "c\\d"], '{"a\\"b","c\\\\d"}'),
    ],
)
def test_a_column_becomes_the_text_of_an_array(column, array):
    assert array_of(column) == array
    assert array_of(column, pa.array(range(len(column)), pa.int64())) == array


@examples(50)
@given(
    column=st.lists(st.text('ab,"\\{} \u2603', max_size=3))
    | st.lists(st.none() | st.integers())
    | st.lists(st.floats(allow_nan=False)),
    data=st.data(),
)
def test_some_rows_of_a_column_are_an_array_of_them(column, data):
    order = data.draw(st.lists(st.sampled_from(range(len(column))), unique=True)) if column else []

    array = array_of(column, pa.array(order, pa.int64()))

    elements = [array_of([column[i]])[1:-1] or "NULL" for i in order]
    assert array == ("{}" if set(column) <= {None} else f"{{{','.join(elements)}}}")


@pytest.fixture(params=["few keys", "many of a small table", "many of a large table"])
def any_read(request, monkeypatch):
    """Let keys be read in each of the ways that there are."""
    if request.param != "few keys":
        monkeypatch.setattr(_map, "_MANY", 1)
        monkeypatch.setattr(_map, "_BYTES_A_KEY", 10**8 if "small" in request.param else 0)


def test_an_updater_finds_old_values_and_new_keys_whatever_their_order(database, any_read):
    batches = Batches(database.state())
    batches.commit({"d": 4, "b": 2})

    batches.commit({"e": 50, "d": 40, "a": 10, "b": 20, "c": 30})

    assert database.counts() == {"a": 10, "b": 22, "c": 30, "d": 44, "e": 50}


@pytest.mark.parametrize("kind", list(StateKind), ids=lambda kind: kind.value)
def test_an_updater_finds_as_many_keys_as_there_are_in_each_kind(database, any_read, kind):
    words = {f"word {i * 7919 % 5_003}": i for i in range(5_000)} | {'"\\{},NULL': 1, "☃": 2}
    batches, sums = Batches(database.state(kind=kind)), Counter()

    for step in (1, 2, 3, 1, 4):  # so that the rows do not stand in the order of their keys
        some = {word: n for word, n in words.items() if n % step == 0}
        batches.commit(some)
        sums.update(some)

    assert database.counts() == sums


@pytest.mark.parametrize("resolved", [{2: 1}, {}])
def test_what_a_lost_attempt_has_left_is_not_updated(database, any_read, resolved):
    """It is taken back by whoever claims next; if it is there all the same, it is judged."""
    state = database.state()
    batches = Batches(state)
    batches.commit({"x": 1, "y": 1})
    batches.commit({"x": 6, "y": 6})
    batches.claim()
    if not resolved:
        database.change("UPDATE word_counts SET _txid = 3, _prev_count = count, count = 99")

    state.begin_commit(batches.txid, batches.attempt, resolved)
    state.multi_update([("y",), ("x",)], [Add(20), Add(10)])
    state.commit(batches.txid)

    before = 1 if resolved else 7
    assert database.counts() == {"x": before + 10, "y": before + 20}


@any_path
def test_a_table_shows_committed_batches_and_the_one_being_committed_and_nothing_else(
    database, combine
):
    batches = Batches(database.state(), combine=combine)
    shown = []

    def look():
        shown.append(database.counts())

    batches.commit({"x": 1, "y": 1})
    look()
    batches.lose({"x": 100, "new": 100})
    look()
    batches.claim()
    look()
    batches.write({"y": 1})
    look()
    batches.mark()
    batches.settle()
    look()
    batches.commit({"x": 1, "new": 1})
    look()

    assert shown == [
        {"x": 1, "y": 1},
        {"x": 101, "y": 1, "new": 100},
        {"x": 1, "y": 1},
        {"x": 1, "y": 2},
        {"x": 1, "y": 2},
        {"x": 2, "y": 2, "new": 1},
    ]


@any_path
def test_a_zombie_that_wakes_at_any_moment_never_changes_what_select_shows(database, combine):
    batches = Batches(database.state(), combine=combine)
    batches.commit({"both": 1, "zombies": 1})
    batches.claim()
    zombie = Batches(database.state(), 1, combine, batches.ledger, batches.attempt)

    def wake():
        before = database.select("SELECT * FROM word_counts ORDER BY word")
        with pytest.raises((FencedError, StaleBatchError), match="batch 2"):
            zombie.write({"both": 100, "zombies": 100, "new": 100})
        assert database.select("SELECT * FROM word_counts ORDER BY word") == before

    batches.claim()
    wake()
    batches.write({"both": 1})
    wake()
    batches.mark()
    wake()
    batches.settle()
    wake()
    batches.commit({"zombies": 1})
    wake()

    assert database.counts() == {"both": 2, "zombies": 2}


@pytest.mark.soak
def test_a_hundred_thousand_keys_are_one_batch(database):
    batches = Batches(database.state(), combine=Sum())
    keys = {f"word {n}": n for n in range(100_000)}

    batches.commit(keys)
    batches.lose(dict.fromkeys(keys, 7))
    batches.commit(keys)

    assert database.select("SELECT count(*), sum(count), sum(_prev_count) FROM word_counts") == [
        (100_000, 2 * sum(keys.values()), sum(keys.values()))
    ]


@pytest.mark.parametrize(
    ("values", "combiner", "can"),
    [
        ("v bigint", Sum(), True),
        ("v smallint", Sum(), False),
        ("v double", Sum(), True),
        ("v date", Max(), True),
        ("v float", Sum(), False),
        ("v double", Min(), False),
        ("v string", Max(), False),
        ("v decimal(10,2)", Sum(), False),
        ("v bigint, w bigint", Sum(), False),
        ("v bigint, w date", PerColumn(("sum", "max")), True),
        ("v bigint, w date", PerColumn(("sum", "sum")), False),
    ],
)
def test_only_what_postgres_computes_as_python_does_is_left_to_it(database, values, combiner, can):
    assert database.state("k string", values)._backing.can_combine(combiner) is can


@each_kind
@pytest.mark.parametrize(
    ("first", "second", "total"),
    [
        (math.inf, -math.inf, math.nan),
        (math.nan, 1.0, math.nan),
        (1.0, math.nan, math.nan),
        (-math.inf, 1.0, -math.inf),
        (1e308, 1e308, math.inf),
        (-1e308, -1e308, -math.inf),
        (sys.float_info.max, 1e291, sys.float_info.max),
        (sys.float_info.max, 2.0**970, math.inf),
        (sys.float_info.max, math.nextafter(2.0**970, 0), sys.float_info.max),
        (1e308, 5e-324, 1e308),
        (5e-324, 5e-324, 1e-323),
        (1e308, -1e308, 0.0),
        (-0.0, -0.0, -0.0),
        (1, 2, 3.0),
    ],
)
def test_doubles_without_end_add_up_as_they_do_in_python(lasting, kind, first, second, total):
    state = lasting.state("word string", "s double", kind=kind, table=f"t{next(unused)}")
    batches = Batches(state, combine=Sum())

    batches.commit({"a": first})
    batches.commit({"a": second})

    assert repr(batches.values("a")) == repr([total])
    assert repr(float(first + second)) == repr(total)


parts = st.tuples(
    st.none() | st.integers(-20, 20), st.none() | st.integers(-20, 20), st.none() | st.dates()
)
attempts = st.lists(
    st.dictionaries(st.sampled_from("abc"), parts, max_size=3), min_size=1, max_size=3
)


@each_kind
@examples(15)
@given(st.lists(attempts, min_size=1, max_size=4))
def test_several_columns_are_combined_in_the_store_as_they_are_in_python(lasting, kind, history):
    combiner = PerColumn(("sum", "max", "min"))
    in_store = lasting.state(
        "word string", "n bigint, top int, since date", kind=kind, table=f"t{next(unused)}"
    )
    assert in_store._backing.can_combine(combiner)
    in_python = make_map(kind, MemoryMap(), name="the model")
    for state in (in_store, in_python):
        batches = Batches(state, combine=combiner)
        for lost_and_last in history:
            for n, updates in enumerate(lost_and_last):
                whole = lost_and_last[-1]
                if kind is TRANSACTIONAL:  # comes back the same, perhaps in part
                    updates = {k: v for k, v in whole.items() if k in updates}
                batches.claim()
                batches.write(updates)
                if n == len(lost_and_last) - 1:
                    batches.mark()
                    batches.settle()

    def nothing(value):
        return None if value == (None, None, None) else value

    keys = [("a",), ("b",), ("c",)]
    found, model = in_store.multi_get(keys), in_python.multi_get(keys)
    assert found == [nothing(value) for value in model]


@each_kind
@pytest.mark.parametrize(("start", "more"), [(2**63 - 1, 1), (-(2**63), -1)])
@any_path
def test_a_sum_beyond_64_bits_is_refused_and_nothing_changes(database, kind, start, more, combine):
    batches = Batches(database.state(kind=kind), combine=combine)
    batches.commit({"a": start, "b": 1})
    batches.claim()

    with pytest.raises(NumberTooLargeError, match=r"key \('a',\): column 'count' cannot hold"):
        batches.write({"b": 1, "a": more})

    assert database.counts() == {"a": start, "b": 1}


def test_combining_a_batch_behind_a_row_is_refused_and_names_both_txids(database):
    batches = Batches(database.state(kind=TRANSACTIONAL), combine=Sum())
    batches.commit({"a": 1, "b": 1})
    committed(database.state(kind=TRANSACTIONAL), 9, {"b": 1})
    batches.claim()

    with pytest.raises(StaleBatchError, match=r"batch 2 .*\('b',\).* batch 9"):
        batches.write({"a": 1, "b": 1})

    assert database.counts() == {"a": 1, "b": 2}


def assert_refused(database, error, words, **recipe):
    """See that nothing gets through: no check, no reading, no claim, no write."""
    state = database.state(**recipe)
    batches = Batches(state)
    for attempt in (
        database.recipe(**recipe).check,
        state.read_head,
        batches.claim,
        lambda: state.multi_get([("a",)]),
        lambda: state.multi_put([("a",)], [1]),
        lambda: pairs_of(state._backing),
    ):
        with pytest.raises(error, match=words):
            attempt()


def test_a_table_that_was_there_before_is_left_alone(database):
    database.change("CREATE TABLE word_counts (word text, count bigint)")
    database.change("INSERT INTO word_counts VALUES ('theirs', 1)")

    assert_refused(database, ForeignStoreError, "waterspout did not make it")
    assert database.select("SELECT * FROM word_counts") == [("theirs", 1)]


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"values": "count int"}, "-> count bigint; this topology wants .* -> count int"),
        ({"keys": "letter string"}, "word string -> .* wants .* letter string"),
        ({"kind": TRANSACTIONAL}, "is an opaque state .* wants a transactional state"),
    ],
)
def test_a_table_of_another_layout_or_kind_is_refused(database, recipe, words):
    Batches(database.state()).commit({"a": 1})

    assert_refused(database, ForeignStoreError, words, **recipe)
    assert database.counts() == {"a": 1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("ALTER COLUMN count TYPE text", "column 'count' is text and should be bigint"),
        ("DROP COLUMN _attempt", "column '_attempt' is missing and should be bigint"),
    ],
)
def test_a_column_that_was_changed_is_named(database, change, words):
    Batches(database.state()).commit({"a": 1})
    database.change(f"ALTER TABLE word_counts {change}")

    with pytest.raises(ForeignStoreError, match=words):
        database.recipe().check()
    with pytest.raises(ForeignStoreError, match=words):
        database.state().multi_put([("a",)], [1])
    with pytest.raises(ForeignStoreError, match=words):
        pairs_of(database.state()._backing)


def test_a_column_or_an_index_of_their_own_does_no_harm(database):
    batches = Batches(database.state(), combine=Sum())
    batches.commit({"a": 1})
    database.change("ALTER TABLE word_counts ADD note text")
    database.change("CREATE INDEX ON word_counts (count)")

    database.recipe().check()
    batches.commit({"a": 1})

    assert database.counts() == {"a": 2}


@pytest.mark.parametrize("column", ["head", "layout", "checksum"])
def test_a_head_that_was_changed_by_any_other_hand_stops_everything(database, column):
    Batches(database.state()).commit({"a": 1})
    ((text,),) = database.select(f"SELECT {column} FROM _waterspout_heads")
    flipped = text[:-3] + chr(ord(text[-3]) ^ 1) + text[-2:]
    database.change(f"UPDATE _waterspout_heads SET {column} = %s", flipped)

    assert_refused(database, DamagedStoreError, "head of table .* does not match its checksum")


def test_a_table_of_a_newer_format_is_refused(database):
    Batches(database.state()).commit({"a": 1})
    database.change("UPDATE _waterspout_heads SET format = 2")

    assert_refused(database, NewerFormatError, r"newer waterspout \(format 2, this one knows 1\)")


def test_a_table_that_is_gone_while_its_head_is_there_stops_everything(database):
    batches = Batches(database.state())
    batches.commit({"a": 1})
    database.change("DROP TABLE word_counts")

    with pytest.raises(StoreError, match="is gone, but its head is still in"):
        batches.state.multi_get([("a",)])
    with pytest.raises(StoreError, match="is gone, but its head is still in"):
        batches.claim()


def test_a_wiped_store_is_found_out(database):
    batches = Batches(database.state())
    batches.commit({"a": 1})
    database.change("DROP TABLE word_counts, _waterspout_heads")

    with pytest.raises(StateMismatchError, match="is empty, but 1 batches were committed"):
        batches.claim()


def test_two_topologies_cannot_have_one_table(database):
    batches = Batches(database.state())
    batches.commit({"a": 1})
    head = batches.state.read_head()
    other = database.state()
    other.enroll(type(head.stamp.writer)("another", 1))

    with pytest.raises(ForeignStoreError, match="belongs to topology 'word-count'"):
        other.claim(Claim(TransactionAttempt(1, 0)))


def test_json_that_cannot_be_read_names_its_key(database):
    state = database.state(keys=None)
    committed(state, 1, {("a", 1): 1, "b": 2})
    database.change("""UPDATE word_counts SET value = '{"$":[' WHERE key = '["a",1]'""")

    with pytest.raises(DamagedStoreError, match=r"under key \('a', 1\)"):
        state.multi_get([("b",), ("a", 1)])
    with pytest.raises(DamagedStoreError, match=r"under key \('a', 1\)"):
        pairs_of(state._backing)
    assert state.multi_get([("b",)]) == [2]


def test_a_date_beyond_pythons_is_damage_never_none(database):
    state = database.state("k string", "v date")
    state.multi_put([("a",)], [date(2024, 1, 1)])
    database.change("UPDATE word_counts SET v = 'infinity'")

    with pytest.raises(DamagedStoreError, match="holds a row that cannot be read"):
        state.multi_get([("a",)])


def test_a_schema_that_is_not_there_is_named(database):
    with pytest.raises(StoreError, match=r"no schema 'nowhere' .* CREATE SCHEMA nowhere"):
        database.recipe(schema="nowhere").check()
    with pytest.raises(StoreError, match='schema "nowhere" does not exist'):
        database.state(schema="nowhere").multi_put([("a",)], [1])


def test_rights_that_are_missing_are_named(database):
    database.change("CREATE ROLE reader LOGIN")
    reader = Database(psycopg.conninfo.make_conninfo(database.dsn, user="reader"))

    try:
        with pytest.raises(StoreError, match="the right to USAGE on schema public"):
            reader.recipe().check()
        database.change("GRANT USAGE ON SCHEMA public TO reader")
        with pytest.raises(StoreError, match="the right to CREATE on schema public"):
            reader.recipe().check()
        Batches(database.state()).commit({"a": 1})
        database.change("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        with pytest.raises(StoreError, match="the right to SELECT, INSERT, UPDATE, DELETE on"):
            reader.recipe().check()
    finally:
        close_idle()
        database.change("DROP OWNED BY reader")
        database.change("DROP ROLE reader")


def test_a_database_that_cannot_hold_every_string_is_refused(postgres_server, database):
    name = f"latin{next(unused)}"
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
        )

    with pytest.raises(StoreError, match="has the encoding LATIN1"):
        Database(postgres_server.dsn_of(name)).recipe().check()
    close_idle()


def test_synchronous_commit_off_is_warned_of_and_turned_on_for_us(database, caplog):
    name = psycopg.conninfo.conninfo_to_dict(database.dsn)["dbname"]
    database.change(f"ALTER DATABASE {name} SET synchronous_commit = off")
    recipe = database.recipe()

    with caplog.at_level(logging.WARNING, "waterspout"):
        recipe.check()

    assert "synchronous_commit is off" in caplog.text
    with recipe.backing()._client.lent() as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    database.change(f"ALTER DATABASE {name} RESET synchronous_commit")


def test_a_server_that_is_not_there_is_named_without_its_secrets(postgres_server):
    recipe = PostgresState("postgresql://me:hunter2@127.0.0.1:1/app", "word_counts")

    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1/app") as caught:
        recipe.check()

    assert "hunter2" not in str(caught.value)


DSN = "postgresql://me:hunter2@db.example:5433/app"


@pytest.mark.parametrize(
    "dsn", [DSN, "host=db.example port=5433 dbname=app user=me password=hunter2"]
)
def test_secrets_are_never_shown(dsn):
    recipe = PostgresState.opaque(dsn, table="counts")

    shown = [repr(recipe), recipe.title, recipe.location(), recipe.identity(), recipe.within()]

    assert "hunter2" not in str(shown)
    assert recipe.location() == "postgres:db.example:5433/app#public.counts"
    assert recipe.title == "table public.counts in PostgreSQL at db.example:5433/app"


@pytest.mark.parametrize("dsn", ["password=hunter 2", "postgresql://me:hunter2@db:port:x/a%zz"])
def test_a_dsn_that_cannot_be_read_is_not_quoted(dsn):
    with pytest.raises(ConfigError, match="DSN cannot be read") as caught:
        PostgresState.opaque(dsn, table="counts")

    assert caught.value.__cause__ is None
    assert "hunter" not in str(caught.value)


def test_a_dsn_takes_its_secrets_from_the_environment(database, monkeypatch):
    recipe = PostgresState("${COUNTS_DSN}", "word_counts")
    with pytest.raises(ConfigError, match="COUNTS_DSN, which is not set"):
        recipe.check()
    assert recipe.location() == "postgres:${COUNTS_DSN}#public.word_counts"

    monkeypatch.setenv("COUNTS_DSN", database.dsn)

    recipe.check()
    assert recipe.location().startswith("postgres:127.0.0.1:")
    assert "COUNTS_DSN" in str(vars(pickle.loads(pickle.dumps(recipe))))


def test_libpqs_own_environment_is_used(database, monkeypatch):
    parts = psycopg.conninfo.conninfo_to_dict(database.dsn)
    for name in ("host", "port", "dbname", "user"):
        variable = {"dbname": "PGDATABASE"}.get(name, f"PG{name.upper()}")
        monkeypatch.setenv(variable, str(parts[name]))
    recipe = PostgresState("", "word_counts")

    recipe.check()

    assert recipe.location() == f"postgres:{parts['host']}:{parts['port']}/{parts['dbname']}" + (
        "#public.word_counts"
    )


@pytest.mark.parametrize("name", ["", "a b", 'a"; DROP TABLE x; --', "1a", "pg_x", "_waterspout_x"])
def test_a_name_that_needs_care_is_refused(name):
    with pytest.raises(TopologyError, match="cannot be a table name"):
        PostgresState.opaque(DSN, table=name)
    if not name.startswith("_"):
        with pytest.raises(TopologyError, match="cannot be a schema name"):
            PostgresState.opaque(DSN, table="t", schema=name)


@pytest.mark.parametrize("option", ["connect", "statement", "lock"])
@pytest.mark.parametrize("value", [0, -1, True, "1", math.nan])
def test_a_time_out_that_is_none_is_refused(option, value):
    with pytest.raises(ConfigError, match=f"{option}_timeout_secs is a number of seconds"):
        PostgresState.opaque(DSN, table="t", **{f"{option}_timeout_secs": value})


@pytest.mark.parametrize("name", ["_long", "ctid", "XMIN", "x" * 58, "_nulls", "_prev_x"])
def test_a_field_that_cannot_be_a_column_is_refused_when_the_topology_is_built(name):
    with pytest.raises(TopologyError, match="cannot be a column"):
        Database(DSN).recipe("k string", f"{name} bigint")


def test_without_psycopg_the_recipe_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(MissingDependencyError, match=r"pip install 'waterspout\[postgres\]'"):
        PostgresState.opaque(DSN, table="t")


def test_a_recipe_and_its_layout_travel():
    recipe = Database(DSN).recipe()

    assert pickle.loads(pickle.dumps(recipe)) == recipe
    layout = pickle.loads(pickle.dumps(recipe.columns))
    assert layout == recipe.columns
    assert type(layout) is PostgresLayout
