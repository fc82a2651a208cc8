"""Keys have one text each, values come back as they went, and nothing else is believed."""

# ruff: noqa: DTZ001 (naive datetimes are part of what is tested)

from __future__ import annotations

import base64
import collections
import contextlib
import enum
import json
import math
import pickle
import string
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waterspout import _serde as serde
from waterspout._serde import (
    MAX_DEPTH,
    MAX_SIZE,
    checksum,
    decode_key,
    decode_value,
    encode_key,
    encode_keys,
    encode_value,
    normalize_key,
)
from waterspout.errors import SerdeError

NAN, INF = float("nan"), float("inf")
PARIS = ZoneInfo("Europe/Paris")
PLUS_TWO = timezone(timedelta(hours=2))
SOME_UUID = UUID("12345678-1234-5678-1234-567812345678")
FOLDED = datetime(2024, 10, 27, 2, 30, tzinfo=PARIS)  # an hour that Paris had twice

# No two of these are one key, however alike they look.
DISTINCT = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2**64,
    0.0,
    1.0,
    1e16,
    10**16,
    NAN,
    INF,
    -INF,
    "",
    "1",
    "1.0",
    "true",
    "null",
    "nan",
    "\0",
    "\0\0",
    "é",
    "e\u0301",
    "\U0001f600",
    "\ud83d\ude00",  # the same, as two lone surrogates: JSON alone would not tell
    "\ud83d",
    "\ude00",
    '["a"]',
    '{"$":["bytes","MQ=="]}',
    "$",
    b"",
    b"1",
    b"\0",
    Decimal(0),
    Decimal(1),
    Decimal("1.5"),
    Decimal("NaN"),
    Decimal("Infinity"),
    Decimal("-Infinity"),
    Decimal("1E+400"),
    Decimal("12345678901234567890123456789.1"),
    Decimal("12345678901234567890123456789.2"),  # differs past the 28 digits of the context
    date(2024, 1, 1),
    "2024-01-01",
    datetime(2024, 1, 1),
    datetime(2024, 1, 1, tzinfo=UTC),
    datetime(2024, 1, 1, tzinfo=PLUS_TWO),
    datetime(2024, 1, 1, microsecond=1),
    FOLDED,
    FOLDED.replace(fold=1),
    time(),
    time(12, 30),
    timedelta(),
    timedelta(days=1),
    timedelta(microseconds=-1),
    SOME_UUID,
    str(SOME_UUID),
    SOME_UUID.bytes,
    (),
    ((),),
    ("1",),
    (1,),
    (1, 1),
    ((1,), 1),
    (1, (1,)),
    (None,),
    ("$", "bytes"),
]

# In each row, all are one key.
SAME = [
    [0.0, -0.0],
    [NAN, -NAN, float("nan"), INF - INF],
    [Decimal("1"), Decimal("1.0"), Decimal("1.00"), Decimal("10E-1")],
    [Decimal("100"), Decimal("1E+2"), Decimal("100.000")],
    [Decimal("0"), Decimal("-0"), Decimal("0.000"), Decimal("0E+9")],
    [Decimal("NaN"), Decimal("-NaN"), Decimal("sNaN"), Decimal("NaN123")],
    [
        datetime(2024, 6, 1, 12, tzinfo=UTC),
        datetime(2024, 6, 1, 14, tzinfo=PLUS_TWO),
        datetime(2024, 6, 1, 14, tzinfo=PARIS),
    ],
    [datetime(2024, 6, 1), datetime(2024, 6, 1, fold=1)],
    [time(1), time(1, fold=1), time(1, tzinfo=PARIS)],
    [(1, (2,)), [1, [2]], (1, [2]), [1, (2,)]],
    [timedelta(seconds=90), timedelta(minutes=1, seconds=30)],
]
SAME_CONVERTED = [
    [NAN, np.float64("nan")],
    [b"a", bytearray(b"a"), memoryview(b"a"), np.bytes_(b"a")],
    [1, np.int64(1), np.uint8(1)],
    [0.5, np.float32(0.5), np.float64(0.5)],
    ["a", np.str_("a")],
    [True, np.bool_(True)],
    [timedelta(seconds=90), np.timedelta64(90, "s")],
]


def is_nan(number):
    return number.is_nan() if isinstance(number, Decimal) else math.isnan(number)


def is_same_key(left, right):
    """Type-aware equality of key parts, by Python's own rules rather than by any text."""
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(is_same_key, left, right))
    if type(left) is not type(right):
        return False
    if isinstance(left, float | Decimal) and (is_nan(left) or is_nan(right)):
        return is_nan(left) and is_nan(right)
    if isinstance(left, datetime):
        if (left.tzinfo is None) != (right.tzinfo is None):
            return False
        start = datetime(1970, 1, 1, tzinfo=None if left.tzinfo is None else UTC)
        return left - start == right - start
    return left == right


def is_identical(left, right):
    """Equal in type and value all the way down; -0.0, NaN, zeros, zones and folds count."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        both_nan = left != left and right != right
        return both_nan or (left, math.copysign(1, left)) == (right, math.copysign(1, right))
    if isinstance(left, Decimal):
        return left.as_tuple() == right.as_tuple()
    if isinstance(left, datetime | time):
        return (left.replace(tzinfo=None), left.tzinfo, left.fold) == (
            right.replace(tzinfo=None),
            right.tzinfo,
            right.fold,
        )
    if isinstance(left, dict):
        return is_identical(list(left.items()), list(right.items()))
    if isinstance(left, set | frozenset):
        found = [any(is_identical(item, other) for other in right) for item in left]
        return len(left) == len(right) and all(found)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(is_identical, left, right))
    return left == right


def texts():
    return st.text(st.characters(exclude_categories=())) | st.sampled_from(
        ["", "\0", "$", "\ud83d\ude00", "\U0001f600", "\ud800"]
    )


def zones():
    minutes = st.integers(-1439, 1439)
    return (
        minutes.map(lambda m: timezone(timedelta(minutes=m)))
        | st.integers(-86_399, 86_399).map(lambda s: timezone(timedelta(seconds=s)))
        | st.sampled_from([UTC, PARIS, ZoneInfo("UTC"), ZoneInfo("America/New_York")])
    )


def datetimes():
    # A day from the ends of the calendar, so that every instant has a UTC form.
    low, high = datetime(1, 1, 2), datetime(9999, 12, 30)
    drawn = st.datetimes(low, high, timezones=st.none() | zones())
    return st.tuples(drawn, st.integers(0, 1)).map(lambda pair: pair[0].replace(fold=pair[1]))


def scalars(times):
    return (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | texts()
        | st.binary()
        | st.decimals()
        | st.dates()
        | datetimes()
        | times
        | st.timedeltas()
        | st.uuids()
    )


def naive_times():
    return st.tuples(st.times(), st.integers(0, 1)).map(lambda t: t[0].replace(fold=t[1]))


def key_parts():
    leaves = scalars(naive_times()) | st.sampled_from([part for row in SAME for part in row])
    return st.recursive(
        leaves, lambda part: st.lists(part, max_size=3) | st.lists(part, max_size=3).map(tuple)
    )


def keys():
    return st.lists(key_parts(), max_size=4) | st.lists(key_parts(), max_size=4).map(tuple)


def likely_equal_parts():
    """Parts from a pool small enough that two draws are often one key."""
    pool = [0, 0.0, -0.0, False, "", "0", b"", None, NAN, Decimal("0.0"), Decimal(0), (), []]
    pool += [datetime(2024, 6, 1, 12, tzinfo=UTC), datetime(2024, 6, 1, 14, tzinfo=PLUS_TWO)]
    return st.recursive(
        st.sampled_from(pool), lambda part: st.lists(part, max_size=2), max_leaves=4
    )


# Deferred, because hypothesis spells nested strategies out in full where it names them.
SCALARS = st.deferred(lambda: scalars(st.times(timezones=st.none() | zones())))
HASHABLE = st.deferred(
    # sNaN, alone among our scalars, cannot be hashed.
    lambda: SCALARS.filter(lambda v: not (isinstance(v, Decimal) and v.is_snan()))
)
FROZEN = st.deferred(
    lambda: (
        HASHABLE
        | st.lists(HASHABLE, max_size=3).map(tuple)
        | st.frozensets(HASHABLE | st.tuples(HASHABLE), max_size=3)
    )
)


def values():
    return st.recursive(
        SCALARS | FROZEN,
        lambda v: (
            st.lists(v, max_size=4)
            | st.lists(v, max_size=4).map(tuple)
            | st.dictionaries(texts(), v, max_size=4)
            | st.dictionaries(FROZEN, v, max_size=3)
            | st.sets(FROZEN, max_size=3)
        ),
        max_leaves=8,
    )


def nested(depth, wrap=lambda inner: [inner], core=None):
    for _ in range(depth):
        core = wrap(core)
    return core


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ((), "[]"),
        (("the",), '["the"]'),
        (["the", 1], '["the",1]'),
        ((1, "1", 1.0, True, None), '[1,"1",1.0,true,null]'),
        ((-0.0, 1e22, 0.1), "[0.0,1e+22,0.1]"),
        ((NAN, INF, -INF), '[{"$":["float","nan"]},{"$":["float","inf"]},{"$":["float","-inf"]}]'),
        (("a\n\0é",), '["a\\n\\u0000\\u00e9"]'),
        (("\ud800",), '[{"$":["str","7aCA"]}]'),
        ((b"hi",), '[{"$":["bytes","aGk="]}]'),
        ((Decimal("1.50"),), '[{"$":["decimal","1.5"]}]'),
        ((date(2024, 2, 29),), '[{"$":["date","2024-02-29"]}]'),
        ((datetime(2024, 1, 2, 3),), '[{"$":["datetime","2024-01-02T03:00:00"]}]'),
        (
            (datetime(2024, 1, 2, 3, tzinfo=PLUS_TWO),),
            '[{"$":["datetime","2024-01-02T01:00:00+00:00"]}]',
        ),
        ((time(1, 2, 3, 4),), '[{"$":["time","01:02:03.000004"]}]'),
        ((timedelta(-1, 2, 3),), '[{"$":["timedelta","-1,2,3"]}]'),
        ((SOME_UUID,), '[{"$":["uuid","12345678-1234-5678-1234-567812345678"]}]'),
        (("a", ("b", ["c"])), '["a",["b",["c"]]]'),
    ],
)
def test_the_text_of_a_key_never_changes(key, text):
    assert encode_key(key) == text


def test_different_keys_have_different_texts():
    assert len({encode_key([part]) for part in DISTINCT}) == len(DISTINCT)


@pytest.mark.parametrize("row", SAME + SAME_CONVERTED)
def test_equal_keys_have_one_text(row):
    assert len({encode_key([part]) for part in row}) == 1


@pytest.mark.parametrize("part", DISTINCT)
def test_a_key_comes_back_in_normal_form(part):
    key = decode_key(encode_key([part]))

    assert is_identical(key, normalize_key([part]))


@given(keys())
def test_any_key_comes_back_in_normal_form(key):
    assert is_identical(decode_key(encode_key(key)), normalize_key(key))


@given(keys())
def test_normal_form_is_the_same_key(key):
    assert is_same_key(normalize_key(key), key)


@given(keys())
def test_normal_form_is_final(key):
    assert is_identical(normalize_key(normalize_key(key)), normalize_key(key))


@given(keys(), keys())
def test_two_texts_are_equal_exactly_when_the_keys_are(left, right):
    assert (encode_key(left) == encode_key(right)) is is_same_key(left, right)


@settings(max_examples=8 * settings().max_examples)
@given(st.lists(likely_equal_parts(), max_size=2), st.lists(likely_equal_parts(), max_size=2))
def test_two_texts_are_equal_exactly_when_alike_keys_are(left, right):
    assert (encode_key(left) == encode_key(right)) is is_same_key(left, right)


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(0, 40))
def test_trailing_zeros_never_change_a_decimal_key(number, zeros):
    sign, digits, exponent = number.as_tuple()
    longer = Decimal((sign, digits + (0,) * zeros, exponent - zeros))

    assert encode_key([longer]) == encode_key([number])


@given(datetimes().filter(lambda d: d.tzinfo is not None), zones())
def test_the_zone_never_changes_an_instant_key(moment, zone):
    assert encode_key([moment.astimezone(zone)]) == encode_key([moment])


@given(keys())
def test_every_truncation_of_a_key_is_refused(key):
    text = encode_key(key)

    for end in range(len(text)):
        with pytest.raises(SerdeError):
            decode_key(text[:end])


def test_nan_is_found_again_in_a_dict_of_normal_keys():
    counts = {normalize_key((float("nan"), Decimal("NaN"))): 1}

    assert counts[normalize_key((float("nan"), Decimal("sNaN")))] == 1


def test_a_row_is_a_key():
    row = collections.namedtuple("Row", "word n")("the", 1)

    assert encode_key(row) == '["the",1]'


@pytest.mark.parametrize("character", ["a", "é", "\0", "\U0001f600", "\ud800"])
def test_a_key_of_a_megabyte_comes_back(character):
    key = (character * 2**20,)

    assert decode_key(encode_key(key)) == key


@pytest.mark.parametrize(
    "part",
    [{}, {"a": 1}, set(), frozenset({1}), collections.Counter("a"), ({"a": 1},)],
)
def test_what_has_no_order_is_refused_in_a_key(part):
    with pytest.raises(SerdeError, match="cannot be in a key"):
        encode_key([part])


@pytest.mark.parametrize("key", ["word", b"word", 1, None, {"a": 1}, {1}, range(3), iter([])])
def test_a_key_that_is_no_tuple_or_list_is_refused(key):
    with pytest.raises(SerdeError, match="a key is a tuple or a list, not "):
        encode_key(key)


def test_a_time_with_an_offset_is_refused_in_a_key():
    with pytest.raises(SerdeError, match="a time with an offset is no key"):
        encode_key([time(1, tzinfo=UTC)])


def test_an_instant_without_a_utc_form_is_refused_in_a_key():
    with pytest.raises(SerdeError, match="outside the years 1 to 9999"):
        encode_key([datetime(1, 1, 1, tzinfo=PLUS_TWO)])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "1",
        '"the"',
        "{}",
        '{"the":1}',
        '["the"] ',
        ' ["the"]',
        '["the", 1]',
        '["the"]x',
        '["the"]["the"]',
        '["\\u0061"]',
        '["é"]',
        '["\\ud800"]',
        "[-0.0]",
        "[1.50]",
        "[1E2]",
        "[NaN]",
        "[Infinity]",
        "[1e999]",
        "[01]",
        '[{"a":1}]',
        "[{}]",
        '[{"$":["tuple",[1]]}]',
        '[{"$":["set",[1]]}]',
        '[{"$":["dict",[[1,2]]]}]',
        '[{"$":["number",1]}]',
        '{"$":["tuple",["the"]]}',
        '[{"$":["decimal","1.50"]}]',
        '[{"$":["decimal","-NaN"]}]',
        '[{"$":["datetime","2024-01-02T03:00:00+02:00"]}]',
        '[{"$":["datetime","2024-01-02T03:00:00[Europe/Paris]"]}]',
        '[{"$":["str","YQ=="]}]',
    ],
)
def test_any_other_spelling_of_a_key_is_refused(text):
    with pytest.raises(SerdeError):
        decode_key(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (5, '{"$":["number",5]}'),
        (2.5, '{"$":["number",2.5]}'),
        ("the", '"the"'),
        ("\U0001f600", '"\\ud83d\\ude00"'),
        ("\ud83d\ude00", '{"$":["str","7aC97biA"]}'),
        (NAN, '{"$":["float","nan"]}'),
        (b"hi", '{"$":["bytes","aGk="]}'),
        (Decimal("1.50"), '{"$":["decimal","1.50"]}'),
        (date(2024, 2, 29), '{"$":["date","2024-02-29"]}'),
        (FOLDED.replace(fold=1), '{"$":["datetime","2024-10-27T02:30:00[Europe/Paris][_fold=1]"]}'),
        (datetime(2024, 1, 2, tzinfo=UTC), '{"$":["datetime","2024-01-02T00:00:00+00:00"]}'),
        (time(1, tzinfo=PLUS_TWO), '{"$":["time","01:00:00+02:00"]}'),
        (timedelta(1, 2, 3), '{"$":["timedelta","1,2,3"]}'),
        (SOME_UUID, '{"$":["uuid","12345678-1234-5678-1234-567812345678"]}'),
        ([1, 2.0, [None]], "[1,2.0,[null]]"),
        ((1, (2,)), '{"$":["tuple",[1,{"$":["tuple",[2]]}]]}'),
        ({3, 1, 2}, '{"$":["set",[1,2,3]]}'),
        (frozenset({"b", "a"}), '{"$":["frozenset",["a","b"]]}'),
        ({"b": 1, "a": 2}, '{"b":1,"a":2}'),
        ({}, "{}"),
        ({1: "a"}, '{"$":["dict",[[1,"a"]]]}'),
        ({"$": 1, "a": 2}, '{"$":["dict",[["$",1],["a",2]]]}'),
        ({"\ud800": 1}, '{"$":["dict",[[{"$":["str","7aCA"]},1]]]}'),
    ],
)
def test_the_text_of_a_value_never_changes(value, text):
    assert encode_value(value) == text


@pytest.mark.parametrize("value", [*DISTINCT, *SAME])
def test_a_value_comes_back_exactly(value):
    assert is_identical(decode_value(encode_value(value)), value)


@given(values())
def test_any_value_comes_back_exactly(value):
    assert is_identical(decode_value(encode_value(value)), value)


@given(values())
def test_the_text_of_a_value_is_ascii_json_on_one_line(value):
    text = encode_value(value)

    assert text.isascii()
    assert "\n" not in text
    assert json.dumps(json.loads(text), separators=(",", ":")) == text


@settings(deadline=None)
@given(values())
def test_every_truncation_of_a_value_is_refused(value):
    text = encode_value(value)

    for end in range(len(text)):
        with pytest.raises(SerdeError):
            decode_value(text[:end])


@pytest.mark.parametrize("junk", ["x", "]", "}", "null", " 1", ",", "\0"])
@pytest.mark.parametrize("value", [None, 1, "a", [1], {"a": 1}, (1,), b"a"])
def test_trailing_junk_is_refused(value, junk):
    with pytest.raises(SerdeError):
        decode_value(encode_value(value) + junk)


@given(values(), st.data())
def test_a_changed_character_gives_a_value_or_a_serde_error(value, data):
    text = encode_value(value)
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.sampled_from(string.printable)) + text[at + 1 :]

    with contextlib.suppress(SerdeError):
        decode_value(changed)


@given(st.text(st.sampled_from('[]{}",:$0123456789.-+eE ntrufalsNI\\') | st.characters()))
def test_any_text_gives_a_value_or_a_serde_error(text):
    for decode in (decode_key, decode_value):
        with contextlib.suppress(SerdeError):
            decode(text)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (bytearray(b"a"), b"a"),
        (memoryview(b"abcd")[::2], b"ac"),
        (np.int64(3), 3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float32(0.5), 0.5),
        (np.float64(-0.0), -0.0),
        (np.float64("inf"), INF),
        (np.bool_(False), False),
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        (np.datetime64("2024-01-02"), date(2024, 1, 2)),
        (np.datetime64("2024-01-02T03:04:05", "us"), datetime(2024, 1, 2, 3, 4, 5)),
        (np.timedelta64(5, "s"), timedelta(seconds=5)),
        ([np.int64(1), {np.str_("k"): np.float64(2)}], [1, {"k": 2.0}]),
    ],
)
def test_buffers_and_numpy_scalars_become_built_in_values(value, plain):
    assert is_identical(decode_value(encode_value(value)), plain)


class Colour(enum.IntEnum):
    RED = 1


class Zone(tzinfo):
    def utcoffset(self, when):
        return timedelta(hours=1)


class Word(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "^object has no safe encoding; convert it to built-in types"),
        (1j, "^complex has no safe encoding"),
        (len, "^builtin_function_or_method has no safe encoding"),
        (range(3), "^range has no safe encoding"),
        (Colour.RED, "Colour has no safe encoding; convert it to a plain int$"),
        (Word("a"), "Word has no safe encoding; convert it to a plain str$"),
        (collections.OrderedDict(), "OrderedDict has no safe encoding; convert it to a plain dict"),
        (collections.namedtuple("Row", "a")(1), "Row has no safe encoding; .* a plain tuple$"),
        (np.array([1, 2]), r"a numpy array has no safe encoding; use its tolist\(\)"),
        (np.array(1), r"a numpy array has no safe encoding; use its tolist\(\)"),
        (np.ma.masked, "a numpy array"),
        (np.complex128(1), r"numpy\.complex128 has no safe encoding"),
        (np.longdouble(1), r"numpy\.longdouble has no safe encoding"),
        (np.datetime64("2024-01-01", "ns"), r"numpy\.datetime64 has no safe encoding"),
        (np.datetime64("NaT", "s"), r"numpy\.datetime64 has no safe encoding"),
        (datetime(2024, 1, 1, tzinfo=Zone()), "Zone has no safe encoding; use a named zoneinfo"),
        (
            datetime(2024, 1, 1, tzinfo=timezone(timedelta(microseconds=1))),
            "a datetime.timezone of whole seconds",
        ),
    ],
)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: {"a": (v,)}])
def test_any_other_type_is_refused_by_name(value, message, wrap):
    with pytest.raises(SerdeError, match=message):
        encode_value(wrap(value))


def test_a_zone_without_a_name_is_refused():
    with open(f"/usr/share/zoneinfo/{PARIS.key}", "rb") as file:
        nameless = ZoneInfo.from_file(file)

    with pytest.raises(SerdeError, match="use a named zoneinfo"):
        encode_value(datetime(2024, 1, 1, tzinfo=nameless))


@pytest.mark.parametrize("sign", [1, -1])
def test_an_int_of_too_many_digits_is_refused_both_ways(sign):
    huge = sign * 10 ** sys.get_int_max_str_digits()

    for encode in (lambda: encode_value(huge), lambda: encode_value([huge])):
        with pytest.raises(SerdeError, match="too many digits"):
            encode()
    with pytest.raises(SerdeError, match="too many digits"):
        encode_key((huge,))
    with pytest.raises(SerdeError):
        decode_value("[" + "9" * (sys.get_int_max_str_digits() + 1) + "]")


def test_the_longest_int_comes_back():
    longest = 10 ** sys.get_int_max_str_digits() - 1

    assert decode_value(encode_value(longest)) == longest


WRAPS = {
    "list": lambda v: [v],
    "tuple": lambda v: (v,),
    "frozenset": lambda v: frozenset({v}),
    "dict": lambda v: {"a": v},
    "tagged dict": lambda v: {1: v},
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_the_deepest_value_comes_back(wrap):
    deepest = nested(MAX_DEPTH, wrap)

    assert decode_value(encode_value(deepest)) == deepest


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_a_value_one_level_deeper_is_refused(wrap):
    with pytest.raises(SerdeError, match="more than 64 containers"):
        encode_value(nested(MAX_DEPTH + 1, wrap))


TEXT_WRAPS = {
    "list": "[{}]",
    "tuple": '{{"$":["tuple",[{}]]}}',
    "frozenset": '{{"$":["frozenset",[{}]]}}',
    "dict": '{{"a":{}}}',
    "tagged dict": '{{"$":["dict",[[1,{}]]]}}',
}


@pytest.mark.parametrize("wrap", TEXT_WRAPS.values(), ids=TEXT_WRAPS)
def test_a_text_one_level_deeper_is_refused(wrap):
    with pytest.raises(SerdeError, match="more than 64 containers"):
        decode_value(nested(MAX_DEPTH + 1, wrap.format, "null"))


def test_the_deepest_key_comes_back_and_a_deeper_one_is_refused():
    deepest = nested(MAX_DEPTH, lambda v: (v,), "a")

    assert decode_key(encode_key(deepest)) == deepest
    with pytest.raises(SerdeError, match="more than 64 containers"):
        encode_key((deepest,))
    with pytest.raises(SerdeError, match="more than 64 containers"):
        decode_key(f"[{encode_key(deepest)}]")


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"$":["tuple",['])
def test_a_text_of_endless_depth_is_refused(opening):
    with pytest.raises(SerdeError):
        decode_value(opening * 100_000)


def test_a_value_that_contains_itself_is_refused():
    loop = []
    loop.append(loop)

    with pytest.raises(SerdeError, match="more than 64 containers"):
        encode_value(loop)
    with pytest.raises(SerdeError, match="more than 64 containers"):
        encode_key(loop)


def test_a_document_of_the_full_size_comes_back_and_a_larger_one_is_refused():
    full = "a" * (MAX_SIZE - 2)

    assert decode_value(encode_value(full)) == full
    with pytest.raises(SerdeError, match="larger than 67108864 characters"):
        encode_value(full + "a")
    with pytest.raises(SerdeError, match="larger than 67108864 characters"):
        decode_value(f'"{full}a"')


@pytest.mark.parametrize(
    "value",
    [
        ["a" * 100] * 100,
        [b"a" * 100] * 100,
        {"a" * 5000: 1},
        nested(20, lambda v: [v, v]),
        nested(20, lambda v: {"a": v, "b": v}),
        "é" * 1000,
        10**4000,
    ],
    ids=["strings", "bytes", "names", "shared lists", "shared dicts", "escapes", "digits"],
)
def test_a_value_too_large_is_refused_before_it_is_written(monkeypatch, value):
    monkeypatch.setattr(serde, "MAX_SIZE", 3000)

    with pytest.raises(SerdeError, match="larger than"):
        encode_value(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1",
        "12",
        "-1",
        "1.5",
        "NaN",
        "[NaN]",
        "[-Infinity]",
        "[1e999]",
        '{"$":["number",1e999]}',
        '{"$":["number","1"]}',
        '{"$":["number",true]}',
        '{"$":["number",[1]]}',
        '[{"$":["number",1]}]',
        '{"$":["tuple",[{"$":["number",1]}]]}',
        '{"a":1,"a":2}',
        '[{"a":1,"a":1}]',
        '{"$":["bytes","YQ=="],"$":["bytes","YQ=="]}',
        '{"$":["bytes","YQ=="],"a":1}',
        '{"$":1}',
        '{"$":null}',
        '{"$":"bytes"}',
        '{"$":[]}',
        '{"$":["bytes"]}',
        '{"$":["bytes","YQ==",1]}',
        '{"$":[1,"YQ=="]}',
        '{"$":["pickle","gASVAAAAAA=="]}',
        '{"$":["object","os.system"]}',
        '{"$":["list",[1]]}',
        '{"$":["bytes","YQ"]}',
        '{"$":["bytes","YR=="]}',
        '{"$":["bytes","Y Q=="]}',
        '{"$":["bytes","é"]}',
        '{"$":["bytes",1]}',
        '{"$":["bytes",["YQ=="]]}',
        '{"$":["str","YQ=="]}',
        '{"$":["str","/w=="]}',
        '{"$":["float","1.5"]}',
        '{"$":["float","NaN"]}',
        '{"$":["float","infinity"]}',
        '{"$":["decimal","x"]}',
        '{"$":["decimal"," 1"]}',
        '{"$":["decimal","1_0"]}',
        '{"$":["decimal","1e5"]}',
        '{"$":["decimal",1]}',
        '{"$":["date","20240101"]}',
        '{"$":["date","2024-13-01"]}',
        '{"$":["date","2024-01-01T00:00:00"]}',
        '{"$":["datetime","2024-01-01"]}',
        '{"$":["datetime","2024-01-01 00:00:00"]}',
        '{"$":["datetime","2024-01-01T00:00:00Z"]}',
        '{"$":["datetime","2024-01-01T00:00:00[Nowhere/Land]"]}',
        '{"$":["datetime","2024-01-01T00:00:00[../../../etc/passwd]"]}',
        '{"$":["datetime","2024-01-01T00:00:00[/etc/passwd]"]}',
        '{"$":["datetime","2024-01-01T00:00:00[Europe]"]}',
        '{"$":["datetime","2024-01-01T00:00:00[\\u0000]"]}',
        '{"$":["datetime","2024-01-01T00:00:00[]"]}',
        '{"$":["datetime","2024-01-01T00:00:00+01:00[Europe/Paris]"]}',
        '{"$":["datetime","2024-01-01T00:00:00[_fold=1][Europe/Paris]"]}',
        '{"$":["datetime","2024-01-01T00:00:00[_fold=0]"]}',
        '{"$":["time","1:00"]}',
        '{"$":["time","25:00:00"]}',
        '{"$":["timedelta","1,2"]}',
        '{"$":["timedelta","1,2,3,4"]}',
        '{"$":["timedelta","1,2,3,4,5,6,7,8"]}',
        '{"$":["timedelta","0,86400,0"]}',
        '{"$":["timedelta","9999999999,0,0"]}',
        '{"$":["timedelta","+1,0,0"]}',
        '{"$":["uuid","12345678123456781234567812345678"]}',
        '{"$":["uuid","{12345678-1234-5678-1234-567812345678}"]}',
        '{"$":["uuid","x"]}',
        '{"$":["tuple",1]}',
        '{"$":["tuple","ab"]}',
        '{"$":["tuple",{"a":1}]}',
        '{"$":["set",[1,1]]}',
        '{"$":["set",[1,1.0]]}',
        '{"$":["set",[1,true]]}',
        '{"$":["set",[[1]]]}',
        '{"$":["set",[{"$":["decimal","sNaN"]}]]}',
        '{"$":["frozenset",[{}]]}',
        '{"$":["dict",[[1,2],[1,3]]]}',
        '{"$":["dict",[[1,2,3]]]}',
        '{"$":["dict",[[1]]]}',
        '{"$":["dict",["ab"]]}',
        '{"$":["dict",[{"a":1,"b":2}]]}',
        '{"$":["dict",[{"$":["tuple",[1,2]]}]]}',
        '{"$":["dict",[[[],1]]]}',
        '{"$":["dict",{"a":1}]}',
        '"a\nb"',
        "'a'",
        "[1,]",
        "\ufeff1",
    ],
)
def test_a_text_that_is_not_ours_is_refused(text):
    with pytest.raises(SerdeError):
        decode_value(text)


@pytest.mark.parametrize("text", [None, b'"a"', 1, ["a"]])
@pytest.mark.parametrize("decode", [decode_key, decode_value])
def test_what_is_no_text_is_refused(decode, text):
    with pytest.raises(SerdeError, match="expected text"):
        decode(text)


def test_an_error_does_not_show_what_was_stored():
    with pytest.raises(SerdeError) as caught:
        decode_value('{"password":"hunter2"')

    assert "hunter2" not in str(caught.value)


class Planted:
    """Unpickling this creates the file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize(
    "tag",
    [*serde._BY_TAG, *serde._GROUP_BY_TAG, "number", "pickle", "object", "py/object"],
)
def test_nothing_is_ever_unpickled(tmp_path, tag):
    path = tmp_path / "planted"
    payload = base64.b64encode(pickle.dumps(Planted(path), protocol=0)).decode()

    for text in (f'{{"$":["{tag}","{payload}"]}}', f'{{"$":["{tag}",["{payload}"]]}}'):
        with contextlib.suppress(SerdeError):
            decode_value(text)

    assert not path.exists()


def test_a_set_has_one_text_whatever_the_hash_seed():
    program = "from waterspout._serde import encode_value; print(encode_value(set('waterspout')))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert texts == {'{"$":["set",["a","e","o","p","r","s","t","u","w"]]}\n'}


def test_a_checksum_is_sixteen_bytes_of_blake2b():
    assert checksum("") == "cae66941d9efbd404e4d88758ea67670"


@given(texts(), texts())
def test_different_texts_have_different_checksums(left, right):
    assert (checksum(left) == checksum(right)) is (left == right)


@given(st.lists(st.tuples(st.text(max_size=4) | st.integers()) | st.tuples(st.text('a"\\\x7f\n'))))
def test_many_keys_have_the_texts_that_each_of_them_has(keys):
    assert encode_keys(keys) == [encode_key(key) for key in keys]


@pytest.mark.parametrize("keys", [[], [()], [["a"]], [("a",), ("b", "c")], [("",)], [("a",), (1,)]])
def test_keys_of_any_shape_may_be_encoded_together(keys):
    assert encode_keys(keys) == [encode_key(key) for key in keys]
