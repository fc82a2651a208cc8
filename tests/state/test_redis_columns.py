"""Records of Redis by column, beside the same one by one: no server takes part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state_support import examples
from waterspout.errors import DamagedStoreError, StaleBatchError
from waterspout.state._base import StateKind, Unclear
from waterspout.state._batched import CombinerValueUpdater
from waterspout.state._head import Stamp, Writer
from waterspout.state._kinds import OpaqueValue, TransactionalValue
from waterspout.state._records import encode_record
from waterspout.state.redis._columns import ColumnTexts
from waterspout.state.redis._combining import combined
from waterspout.state.redis._wire import as_column, command, commands, framed
from waterspout.trident import Max, Min, Sum

OPAQUE, TRANSACTIONAL, PLAIN = (
    StateKind.OPAQUE,
    StateKind.TRANSACTIONAL,
    StateKind.NON_TRANSACTIONAL,
)
EVERY = Unclear(0)
BATCH = Stamp(Writer("words", 1), 7, 2)
EDGES = [2**53, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**30]
numbers = st.none() | st.integers(-9, 9) | st.sampled_from(EDGES)
anything = numbers | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=3)
MERGES = {"sum": Sum(), "min": Min(), "max": Max()}


def records(kind, values):
    txid, attempt = st.integers(0, 7), st.integers(0, 3)
    if kind is OPAQUE:
        return st.builds(OpaqueValue, txid, attempt, values, values)
    if kind is TRANSACTIONAL:
        return st.builds(TransactionalValue, txid, attempt, values)
    return values.filter(lambda value: value is not None)


def texts_of(kind, found):
    return [None if r is None else encode_record(kind, r).encode() for r in found]


def names_of(found):
    return [f'["{n}"]' for n in range(len(found))]


@pytest.mark.parametrize("kind", list(StateKind))
@pytest.mark.parametrize("values", [numbers, anything], ids=["numbers", "anything"])
@examples(30)
@given(data=st.data())
def test_columns_hold_what_the_records_hold(kind, values, data):
    found = data.draw(st.lists(st.none() | records(kind, values), max_size=5))

    columns = ColumnTexts(kind, "it").columns(names_of(found), texts_of(kind, found), EVERY)

    if kind is PLAIN:
        assert list(map(repr, columns.values)) == list(map(repr, found))
        return
    nothing = OpaqueValue(0, 0, None) if kind is OPAQUE else TransactionalValue(0, 0, None)
    parts = [columns.txids, columns.attempts, columns.values]
    parts += [columns.prevs] if kind is OPAQUE else []
    made = [type(nothing)(*row) for row in zip(*parts, strict=True)]
    assert list(map(repr, made)) == [repr(nothing if r is None else r) for r in found]


@pytest.mark.parametrize("kind", list(StateKind))
@examples(30)
@given(pairs=st.lists(st.tuples(anything, anything), max_size=5))
def test_columns_have_the_texts_of_their_records(kind, pairs):
    values, prevs = [value for value, _ in pairs], [prev for _, prev in pairs]
    wanted = {
        OPAQUE: [OpaqueValue(7, 2, value, prev) for value, prev in pairs],
        TRANSACTIONAL: [TransactionalValue(7, 2, value) for value in values],
        PLAIN: values,
    }[kind]

    texts = ColumnTexts(kind, "it").of_columns(7, 2, values, prevs)

    assert texts == [encode_record(kind, record) for record in wanted]


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("kind", list(StateKind))
@examples(30)
@given(data=st.data())
def test_a_column_is_combined_as_each_of_its_records_would_be_or_not_at_all(kind, merge, data):
    found = data.draw(st.lists(st.none() | records(kind, anything), min_size=1, max_size=5))
    amounts = data.draw(st.lists(numbers, min_size=len(found), max_size=len(found)))
    resolved = data.draw(st.dictionaries(st.integers(1, 6), st.integers(0, 3), max_size=3))

    made = combined(
        *(kind, texts_of(kind, found), amounts, merge),
        stamp=BATCH,
        resolved=resolved,
        keys=[(n,) for n in range(len(found))],
    )

    known = (int, type(None), OpaqueValue, TransactionalValue)
    inner = [getattr(r, part, r) for r in found for part in ("value", "prev")]
    odd = [v for v in (*inner, *amounts) if type(v) not in known]
    if made is None:
        beyond = any(type(v) is int and abs(v) > 2**60 for v in (*inner, *amounts))
        own = kind is TRANSACTIONAL and any(r is not None and r.txid == 7 for r in found)
        assert odd or beyond or own or None in amounts
        return
    wanted = []
    for record, amount in zip(found, amounts, strict=True):
        start = record
        if kind is OPAQUE and record is not None:
            start = record.before(7, resolved)
        elif kind is TRANSACTIONAL and record is not None:
            assert record.txid < 7
            start = record.value
        new = CombinerValueUpdater(MERGES[merge], amount).update(start)
        after = {OPAQUE: OpaqueValue(7, 2, new, start), PLAIN: new}
        wanted.append(after.get(kind, TransactionalValue(7, 2, new)))
    assert made.to_pylist() == [encode_record(kind, record) for record in wanted]


@pytest.mark.parametrize(
    ("record", "start"),
    [(b"[7,0,50,4]", 4), (b"[7,2,50,4]", 4), (b"[6,0,50,4]", 4), (b"[6,1,50,4]", 50)],
    ids=["another attempt", "the same attempt", "a lost attempt", "the attempt that counts"],
)
def test_a_record_is_judged_before_it_is_combined_into(record, start):
    made = combined(
        *(OPAQUE, [b"[5,0,3,2]", record], [10, 10], "sum"),
        stamp=BATCH,
        resolved={6: 1},
        keys=[("a",), ("b",)],
    )

    assert made.to_pylist() == ["[7,2,13,3]", f"[7,2,{start + 10},{start}]"]


def test_only_values_are_given_where_no_record_has_to_be_judged():
    texts, names = [b"[5,0,50,4]", None, b"[6,1,7,null]"], ['["0"]', '["1"]', '["2"]']

    clear = ColumnTexts(OPAQUE, "it").columns(names, texts, Unclear(7, {4}))
    unclear = [
        ColumnTexts(OPAQUE, "it").columns(names, texts, u) for u in (Unclear(6), Unclear(7, {5}))
    ]

    assert (list(clear.values), len(clear.txids)) == ([50, None, 7], 0)
    assert [list(columns.txids) for columns in unclear] == [[5, 0, 6], [5, 0, 6]]


@pytest.mark.parametrize("kind", [OPAQUE, TRANSACTIONAL])
def test_a_record_of_a_later_batch_stops_the_column(kind):
    later = {OPAQUE: b"[8,0,1,1]", TRANSACTIONAL: b"[8,0,1]"}[kind]

    with pytest.raises(StaleBatchError) as caught:
        combined(
            *(kind, [None, later], [1, 1], "sum"), stamp=BATCH, resolved={}, keys=[("a",), ("b",)]
        )

    assert (caught.value.txid, caught.value.stored, caught.value.key) == (7, 8, ("b",))


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"x", b"[1,0", b"[1,0,5]", b"[1,0,5,", b"[1,0,5,]", b"[1,0,,5]", b"[1,0,0x5,3]"),
        *(b"[1,0,5,4][1,0,5,4]", b"[1,0,5,4]\n[1,0,5,4]", b"[null,0,1,1]", b"[1,null,1,1]"),
        *(b"[1,0,nul,1]", b"[1,0,5-,1]", b"[1,0,5,4],", b"[[1,0,5,4]", b"[1,0,5,4,3]"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_damaged_text_is_never_taken_for_numbers(text, first):
    texts = [text, b"[6,0,5,4]"] if first else [b"[6,0,5,4]", text]
    keys = [("a",), ("b",)]

    assert combined(OPAQUE, texts, [1, 1], "sum", stamp=BATCH, resolved={}, keys=keys) is None
    with pytest.raises(DamagedStoreError, match=r'\["0"\]' if first else r'\["1"\]'):
        ColumnTexts(OPAQUE, "it").columns(['["0"]', '["1"]'], texts, EVERY)


@pytest.mark.parametrize(
    "texts", [[b"[6,0,5", b"4]"], [b"[6,0,5,4", b"][6,0,5,4]"], [b"[6,0,5,4][", b"6,0,5,4]"]]
)
def test_two_halves_of_records_do_not_make_whole_ones(texts):
    keys = [("a",), ("b",)]

    assert combined(OPAQUE, texts, [1, 1], "sum", stamp=BATCH, resolved={}, keys=keys) is None


def test_commands_are_the_bytes_that_a_server_expects():
    names, texts = framed(as_column(["a", "bbb"]), "k:"), framed(as_column(["xy", "0123456789"]))

    assert b"".join(command(["MSET"], names, texts)) == (
        b"*5\r\n$4\r\nMSET\r\n$3\r\nk:a\r\n$2\r\nxy\r\n$5\r\nk:bbb\r\n$10\r\n0123456789\r\n"
    )
    assert b"".join(commands(["SET"], [names, texts], ["PX", "10"])) == (
        b"*5\r\n$3\r\nSET\r\n$3\r\nk:a\r\n$2\r\nxy\r\n$2\r\nPX\r\n$2\r\n10\r\n"
        b"*5\r\n$3\r\nSET\r\n$5\r\nk:bbb\r\n$10\r\n0123456789\r\n$2\r\nPX\r\n$2\r\n10\r\n"
    )
    assert b"".join(command(["EXEC"])) == b"*1\r\n$4\r\nEXEC\r\n"
