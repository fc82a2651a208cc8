"""SQLite states: tables that anyone can read, typed columns, one recipe."""

# ruff: noqa: DTZ001 (naive timestamps are a type of their own)

from __future__ import annotations

import math
import pickle
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state_support import Add, Batches, committed, examples, pairs_of
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.errors import SerdeError, StaleBatchError, TopologyError
from waterspout.state._base import StateKind
from waterspout.state._kinds import (
    NonTransactionalMap,
    OpaqueMap,
    OpaqueValue,
    TransactionalMap,
    TransactionalValue,
)
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Max, Min, Sum


def test_select_word_count_from_word_counts_just_works(make_state, select):
    Batches(make_state()).commit({"the": 3, "cow": 1})

    rows = select("SELECT word, count FROM word_counts ORDER BY word")

    assert rows == [("cow", 1), ("the", 3)]


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        (StateKind.OPAQUE, ["word", "count", "_nulls", "_txid", "_attempt", "_prev_count"]),
        (StateKind.TRANSACTIONAL, ["word", "count", "_nulls", "_txid", "_attempt"]),
        (StateKind.NON_TRANSACTIONAL, ["word", "count", "_nulls"]),
    ],
)
def test_a_table_has_the_users_columns_first_and_then_what_its_kind_needs(
    make_state, select, kind, columns
):
    Batches(make_state(kind=kind)).commit({"a": 1})

    assert [row[1] for row in select("PRAGMA table_info(word_counts)")] == columns


def test_every_write_is_on_disk_before_it_is_answered(make_state, monkeypatch):
    opened = []
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *a, **k: opened.append(connect(*a, **k)) or opened[-1]
    )

    Batches(make_state()).commit({"a": 1})

    settings = [db.execute("PRAGMA synchronous").fetchone()[0] for db in opened]
    full = 2  # with less, a commit may be lost with the machine, and the mark of its batch not
    assert settings
    assert set(settings) == {full}


def test_a_global_state_is_a_table_of_one_row(make_state, select):
    batches = Batches(make_state(keys="", values="total bigint"))

    batches.commit({(): 3})
    batches.commit({(): 4})

    assert select("SELECT total, _prev_total FROM word_counts") == [(7, 3)]
    assert batches.values(()) == [7]


def test_several_key_and_value_columns(make_state, select):
    state = make_state("country string, year int", "n bigint, mean double")
    state.begin_commit(1)
    state.multi_put([("fr", 2024), ("fr", 2025)], [(3, 1.5), (4, None)])
    state.commit(1)

    assert select("SELECT country, year, n, mean FROM word_counts ORDER BY year") == [
        ("fr", 2024, 3, 1.5),
        ("fr", 2025, 4, None),
    ]
    assert state.multi_get([("fr", 2025), ("fr", 2024), ("de", 2024)]) == [
        (4, None),
        (3, 1.5),
        None,
    ]


def test_without_a_schema_key_and_value_are_json_text(make_state, select):
    state = make_state(keys=None)
    state.begin_commit(1)
    state.multi_put([("a", 1), (None,)], [{"n": [1, 2]}, Decimal("1.50")])
    state.commit(1)

    assert select('SELECT "key", value FROM word_counts ORDER BY "key"') == [
        ('["a",1]', '{"n":[1,2]}'),
        ("[null]", '{"$":["decimal","1.50"]}'),
    ]
    assert state.multi_get([("a", 1), (None,)]) == [{"n": [1, 2]}, Decimal("1.50")]


def test_scan_gives_every_key_and_record(make_state):
    state = make_state("word string, n double")
    Batches(state).commit({("a", 1.0): 1, (None, math.inf): 2})

    rows = dict(pairs_of(state._backing))

    assert rows == {("a", 1.0): OpaqueValue(1, 0, 1), (None, math.inf): OpaqueValue(1, 0, 2)}


def test_reading_a_file_that_is_not_there_finds_nothing_and_makes_no_file(make_state, db):
    state = make_state()

    assert state.multi_get([("a",)]) == [None]
    assert pairs_of(state._backing) == []
    assert state.read_head() is None
    assert not db.exists()


PLUS_TWO = timezone(timedelta(hours=2))
TYPES = [
    ("string", ["", "a", "naïve ☃ 𝄞", "a\0b", "'; DROP TABLE word_counts; --"]),
    ("bigint", [0, -1, 2**63 - 1, -(2**63)]),
    ("int", [0, 2**31 - 1, -(2**31)]),
    ("smallint", [-1, 7]),
    ("tinyint", [-1, 7]),
    ("double", [0.0, -0.0, 1.5, 5e-324, 1.7e308, math.inf, -math.inf, math.nan]),
    ("float", [0.5, math.nan]),
    ("boolean", [True, False]),
    ("binary", [b"", b"\x00\xff"]),
    ("date", [date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31)]),
    ("timestamp", [datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC)]),
    ("timestamp_ntz", [datetime(2024, 2, 29, 12, 30, 1, 5)]),
    ("decimal(38,2)", [Decimal("1.50"), Decimal("-0.01"), Decimal(10) ** 35]),
    ("array<int>", [[], [1, None, 2]]),
    ("map<string,int>", [{}, {"a": 1}]),
    ("struct<a:int,b:string>", [{"a": 1, "b": "x"}]),
]
KINDS = list(StateKind)


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=[kind for kind, _ in TYPES])
def test_values_of_every_type_come_back_as_they_were(make_state, kind, values):
    state = make_state("k bigint", f"v {kind}")
    keys = [(n,) for n in range(len(values))]

    for txid in (1, 2):
        state.begin_commit(txid)
        state.multi_put([*keys, (-1,)], [*values, None])
        state.commit(txid)

    assert repr(state.multi_get([*keys, (-1,)])) == repr([*values, None])
    assert repr([r.prev for r in state._backing.multi_get(keys)]) == repr(values)


KEY_TYPES = [row for row in TYPES if not row[0].startswith(("map", "struct"))]


@pytest.mark.parametrize(("kind", "values"), KEY_TYPES, ids=[kind for kind, _ in KEY_TYPES])
def test_keys_of_every_type_are_told_apart_and_from_null(make_state, kind, values):
    state = make_state(f"k {kind}", "v string")
    keys = [(value,) for value in values if repr(value) != "-0.0"] + [(None,)]

    state.begin_commit(1)
    state.multi_put(keys, [repr(key) for key in keys])
    state.commit(1)

    assert state.multi_get(keys) == [repr(key) for key in keys]
    assert len(pairs_of(state._backing)) == len(keys)


def test_null_nan_empty_and_zero_are_four_keys(make_state, select):
    state = make_state("a string, b double")
    keys = [(None, math.nan), (None, None), ("", math.nan), (None, 0.0), ("", None), ("", 0.0)]

    for _ in range(2):
        state.begin_commit(1)
        state.multi_update(keys, [Add(n) for n in range(6)])
        state.commit(1)

    assert state.multi_get(keys) == [0, 1, 2, 3, 4, 5]
    assert select("SELECT count(*) FROM word_counts") == [(6,)]


def test_minus_zero_is_the_key_zero_but_the_value_minus_zero(make_state):
    state = make_state("k double", "v double")
    state.begin_commit(1)

    state.multi_put([(-0.0,)], [-0.0])
    state.commit(1)

    assert repr(state.multi_get([(0.0,)])) == "[-0.0]"


def test_an_aware_timestamp_comes_back_as_the_same_moment_in_utc(make_state, select):
    state = make_state("k string", "at timestamp")
    state.begin_commit(1)

    state.multi_put([("a",)], [datetime(2024, 1, 1, 2, tzinfo=PLUS_TWO)])
    state.commit(1)

    assert state.multi_get([("a",)]) == [datetime(2024, 1, 1, tzinfo=UTC)]
    assert select("SELECT at FROM word_counts") == [("2024-01-01 00:00:00+00:00",)]


@pytest.mark.parametrize(
    ("values", "value"),
    [
        ("v bigint", "1"),
        ("v bigint", True),
        ("v string", 1),
        ("v boolean", 1),
        ("v date", datetime(2024, 1, 1, 12)),
        ("v array<int>", object()),
        ("v bigint", 2**63),
        ("v string", "\ud800"),
        ("v bigint, w bigint", (1,)),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_refused_and_nothing_stored(
    make_state, select, values, value
):
    state = make_state("k string", values)
    fitting = (1, 1) if "," in values else None
    state.multi_put([("before",)], [fitting])
    state.begin_commit(1)

    state.multi_put([("a",), ("b",)], [None, value])
    with pytest.raises(SerdeError):
        state.commit(1)

    assert select("SELECT k FROM word_counts") == [("before",)]
    assert committed(state, 1, {}) == []


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        (StateKind.OPAQUE, OpaqueValue(7, 2, 10, 4)),
        (StateKind.TRANSACTIONAL, TransactionalValue(7, 2, 10)),
        (StateKind.NON_TRANSACTIONAL, 10),
    ],
)
def test_a_record_of_each_kind_comes_back_whole(make_state, kind, record):
    backing = make_state(kind=kind)._backing

    backing.multi_put([("a",)], [record])

    assert backing.multi_get([("a",)]) == [record]


def test_a_put_over_a_later_batch_is_refused_and_names_both_txids(make_state):
    backing = make_state()._backing
    backing.multi_put([("a",), ("b",)], [OpaqueValue(9, 0, 1), OpaqueValue(1, 0, 1)])

    with pytest.raises(StaleBatchError, match=r"batch 3 .*\('a',\).* batch 9"):
        backing.multi_put([("b",), ("a",)], [OpaqueValue(3, 0, 2), OpaqueValue(3, 0, 2)])

    assert backing.multi_get([("a",), ("b",)]) == [OpaqueValue(9, 0, 1), OpaqueValue(1, 0, 1)]


def test_a_put_of_records_of_several_batches_is_refused_if_one_of_them_is_stale(make_state):
    backing = make_state()._backing
    backing.multi_put([("a",), ("b",)], [OpaqueValue(3, 0, 1), OpaqueValue(1, 0, 1)])

    with pytest.raises(StaleBatchError, match=r"batch 2 .*\('a',\).* batch 3"):
        backing.multi_put([("a",), ("b",)], [OpaqueValue(2, 0, 2), OpaqueValue(9, 0, 2)])

    assert backing.multi_get([("a",), ("b",)]) == [OpaqueValue(3, 0, 1), OpaqueValue(1, 0, 1)]


@pytest.mark.parametrize("value", [0, 7, None])
def test_a_plain_value_is_compared_before_it_is_put_even_if_it_is_zero_or_none(make_state, value):
    backing = make_state(kind=StateKind.NON_TRANSACTIONAL)._backing
    backing.multi_put([("a",)], [value])

    assert backing.multi_compare_and_put([("a",)], [1], [2]) == [False]
    assert backing.multi_compare_and_put([("a",)], [value], [2]) == [True]

    assert backing.multi_get([("a",)]) == [2]


@pytest.mark.parametrize(
    ("make", "kind", "made"),
    [
        (SQLiteState.opaque, StateKind.OPAQUE, OpaqueMap),
        (SQLiteState.transactional, StateKind.TRANSACTIONAL, TransactionalMap),
        (SQLiteState.non_transactional, StateKind.NON_TRANSACTIONAL, NonTransactionalMap),
    ],
)
def test_a_recipe_makes_a_map_of_its_kind(db, make, kind, made):
    factory = make(db, table="word_counts")

    assert (factory.kind, factory.driver_only, factory.volatile) == (kind, True, False)
    assert type(factory.make_state(Config(), 0, 1)) is made
    assert not make(db, table="word_counts", driver_only=False).driver_only


def test_a_pickled_recipe_makes_the_same_state(db, make_state):
    Batches(make_state()).commit({"a": 1})
    factory = SQLiteState.opaque(db, "word_counts").bind(
        Schema.parse("word string"), Schema.parse("count bigint")
    )

    copy = pickle.loads(pickle.dumps(factory))
    state = copy.make_state(Config(), 0, 1)

    assert copy == factory
    assert state.multi_get([("a",)]) == [1]
    state.close()


def test_the_identity_names_table_kind_and_columns_but_not_the_path(db):
    factory = SQLiteState.opaque(db, "Words").bind(
        Schema.parse("word string"), Schema.parse("count bigint")
    )

    assert factory.identity() == {
        "backend": "sqlite",
        "kind": "opaque",
        "table": "Words",
        "layout": "word string -> count bigint",
    }
    assert factory.location() == f"sqlite:{db}#words"


def test_a_recipe_touches_nothing_until_a_state_writes(db):
    factory = SQLiteState.opaque(db, "words")
    factory.check()
    factory.make_state(Config(), 0, 1).close()

    assert not db.exists()


@pytest.mark.parametrize(
    "table",
    [
        "",
        " ",
        "1st",
        "a b",
        "a-b",
        "a.b",
        "a;b",
        'a"b',
        "a'b",
        "a`b",
        "[a]",
        "a\0b",
        "a\n",
        "naïve",
        "a" * 64,
        "sqlite_master",
        "SQLITE_x",
        "_waterspout_heads",
        "_Waterspout_x",
        'x"; DROP TABLE y; --',
    ],
)
def test_a_name_that_is_no_plain_identifier_is_refused(db, table):
    with pytest.raises(TopologyError, match="cannot be a table name"):
        SQLiteState.opaque(db, table)


@pytest.mark.parametrize(
    "table", ["t", "_", "_wanted", "select", "table", "Group", "w", "temp", "a" * 63]
)
def test_a_plain_identifier_is_a_table_even_if_sql_uses_the_word(make_state, table):
    batches = Batches(make_state(table=table))

    batches.commit({"a": 1})
    batches.lose({"a": 1})
    batches.commit({"a": 1})

    assert batches.values("a") == [2]


@examples(200)
@given(st.text(max_size=12) | st.text("ab_1;\"' -.()", max_size=12))
def test_no_name_reaches_sql_but_letters_digits_and_underscores(name):
    try:
        SQLiteState.opaque("unused.db", name)
    except TopologyError:
        return
    assert name.isidentifier()
    assert name.isascii()


def test_two_states_of_a_file_do_not_disturb_each_other(make_state, select):
    one, other = Batches(make_state(table="one")), Batches(make_state(table="other"))

    one.commit({"a": 1})
    other.lose({"a": 100})
    one.commit({"a": 1})
    other.commit({"a": 5})

    assert (one.values("a"), other.values("a")) == ([2], [5])
    assert select("SELECT name FROM _waterspout_heads") == [("one",), ("other",)]


def test_threads_share_one_map_and_no_write_is_lost(make_state):
    backing = make_state(kind=StateKind.NON_TRANSACTIONAL)._backing
    errors = []

    def work(thread):
        try:
            for n in range(20):
                key = (f"{thread}-{n}",)
                backing.multi_put([key], [n])
                assert backing.multi_get([key]) == [n]
        except BaseException as error:
            errors.append(error)

    run_all([threading.Thread(target=work, args=(thread,)) for thread in range(4)])

    assert errors == []
    expected = [((f"{t}-{n}",), n) for t in range(4) for n in range(20)]
    assert sorted(pairs_of(backing)) == sorted(expected)


def test_maps_that_open_a_new_file_at_the_same_moment_all_get_to_write(make_state):
    backings = [make_state(table=f"t{n}")._backing for n in range(4)]
    barrier = threading.Barrier(4)
    errors = []

    def work(backing):
        barrier.wait()
        try:
            backing.multi_put([("a",)], [OpaqueValue(1, 0, 1)])
        except BaseException as error:
            errors.append(error)

    run_all([threading.Thread(target=work, args=(backing,)) for backing in backings])

    assert errors == []
    assert [b.multi_get([("a",)]) for b in backings] == [[OpaqueValue(1, 0, 1)]] * 4


def test_a_reader_on_another_connection_sees_only_committed_values_in_order(make_state):
    """Lost attempts add a million; committed ones add one to every key."""
    batches, reader = Batches(make_state()), make_state()
    keys = [(f"w{n}",) for n in range(20)]
    done, seen, errors = threading.Event(), [], []

    def read():
        try:
            while not (seen and done.is_set()):
                seen.append(reader.multi_get(keys))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(15):
        batches.lose(dict.fromkeys(keys, 1_000_000))
        batches.commit(dict.fromkeys(keys, 1))
    done.set()
    thread.join()

    assert errors == []
    assert all(value is None or 1 <= value <= 15 for values in seen for value in values)
    for earlier, later in pairwise(seen):
        assert all((a or 0) <= (b or 0) for a, b in zip(earlier, later, strict=True))
    assert batches.values(*keys) == [15] * 20


def test_a_select_during_a_write_sees_the_table_before_it(make_state, db, select):
    batches = Batches(make_state())
    batches.commit({"a": 1})
    with closing(sqlite3.connect(db, isolation_level=None)) as outside:
        outside.execute("BEGIN")
        before = outside.execute("SELECT word, count FROM word_counts").fetchall()
        batches.commit({"a": 1, "b": 1})

        assert outside.execute("SELECT word, count FROM word_counts").fetchall() == before

    assert select("SELECT word, count FROM word_counts") == [("a", 2), ("b", 1)]


def run_all(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


ANOTHER_PROCESS = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("SELECT count(*) FROM _waterspout_heads").fetchall()
db.close()
"""


def test_two_states_in_one_file_leave_each_other_their_locks(db):
    # Whoever closes a file that it has opened beside SQLite takes SQLite's locks away. The next
    # process to leave would think that it is the last one, and remove the log of changes.
    first = SQLiteState.opaque(db, table="first").make_state(Config(), 0, 1)
    Batches(first).commit({"a": 1})
    log = db.with_name(f"{db.name}-wal")
    before = log.stat().st_ino
    second = SQLiteState.opaque(db, table="second").backing()
    second.multi_put([("a",)], [OpaqueValue(1, 0, 1)])

    subprocess.run([sys.executable, "-c", ANOTHER_PROCESS, str(db)], check=True)

    assert log.exists()
    assert log.stat().st_ino == before
    first.close()
    second.close()


def test_texts_that_json_would_cut_off_are_keys_of_their_own(make_state):
    batches = Batches(make_state(), combine=Sum())
    words = ["a", "a\0b", "a\0c", '"', "\\", "\n", "naïve ☃ 𝄞", "", "\x7f"]
    for some in (words, words[:1] + words[3:], words):  # with a NUL among them, and without
        batches.commit(dict.fromkeys(some, 1))

    assert batches.values(*words) == [3, 2, 2, 3, 3, 3, 3, 3, 3]


@pytest.mark.parametrize("combine", [Sum(), Min(), Max()], ids=["sum", "min", "max"])
def test_numbers_that_json_might_round_are_exact(make_state, combine):
    batches = Batches(make_state(), combine=combine)
    edges = [2**53 - 1, 2**53, 2**53 + 1, 2**62, -(2**53) - 1, -(2**63), 2**63 - 1]
    words = {f"w{n}": edge for n, edge in enumerate(edges)}
    batches.commit(words)
    batches.commit({"w0": 1, "w4": -1})

    first, fifth = combine.combine(edges[0], 1), combine.combine(edges[4], -1)
    assert batches.values(*words) == [first, *edges[1:4], fifth, *edges[5:]]
