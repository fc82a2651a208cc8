"""Records as text: the short way and the long way agree, and damage is found."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state_support import examples
from waterspout._serde import decode_bare_list, decode_value, encode_value
from waterspout.errors import SerdeError
from waterspout.state import OpaqueValue, StateKind, TransactionalValue
from waterspout.state._records import decode_record, encode_record

values = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
values = st.recursive(values, lambda v: st.lists(v, max_size=3) | st.lists(v).map(tuple))


@examples(200)
@given(st.integers(0, 10**6), st.integers(0, 99), values, values)
def test_a_record_comes_back_as_it_was(txid, attempt, value, prev):
    for kind, record in [
        (StateKind.OPAQUE, OpaqueValue(txid, attempt, value, prev)),
        (StateKind.TRANSACTIONAL, TransactionalValue(txid, attempt, value)),
        (StateKind.NON_TRANSACTIONAL, value),
    ]:
        text = encode_record(kind, record)
        assert repr(decode_record(kind, text)) == repr(record)
        json.loads(text)  # readable with any client


@pytest.mark.parametrize(
    ("value", "text"),
    [(7, "[3,0,7,5]"), (2**70, f"[3,0,{2**70},5]"), (True, "[3,0,true,5]"), ("a", '[3,0,"a",5]')],
)
def test_the_text_is_the_documented_one(value, text):
    assert encode_record(StateKind.OPAQUE, OpaqueValue(3, 0, value, 5)) == text


@pytest.mark.parametrize("cut", range(len("[3,0,77,5]")))
def test_a_text_that_was_cut_off_is_found_out(cut):
    with pytest.raises(SerdeError):
        decode_record(StateKind.OPAQUE, "[3,0,77,5]"[:cut])


@pytest.mark.parametrize(
    "text", ["[3,0,77]", "[3,0,77,5,6]", '["3",0,77,5]', "[3,0,1e999,5]", "{}", "[true,0,7,5]"]
)
def test_what_is_no_record_of_this_kind_is_refused(text):
    with pytest.raises(SerdeError):
        decode_record(StateKind.OPAQUE, text)


@examples(200)
@given(st.lists(values) | values | st.just(math.nan))
def test_the_short_way_gives_what_the_long_way_gives_or_nothing(value):
    text = encode_value(value)
    short = decode_bare_list(text)

    assert short is None or repr(short) == repr(decode_value(text))
