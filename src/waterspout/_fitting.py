"""Whether values and types fit a declared type as they are: nothing is cut, parsed or wrapped."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

__all__ = ["exact_array", "exact_cast", "widens"]

_NONE = type(None)
_WHOLE = {int, _NONE}
_MOMENTS = {dt.datetime, _NONE}
_DAYS = {dt.date, _NONE}
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}


def widens(given: pa.DataType, declared: pa.DataType) -> bool:
    """Whether every value of one type is the same value of another.

    >>> widens(pa.int32(), pa.int64()), widens(pa.float64(), pa.int64())
    (True, False)
    """
    if given == declared or t.is_null(given):
        return True
    if t.is_list(given) and t.is_list(declared):
        return widens(given.value_type, declared.value_type)
    if t.is_map(given) and t.is_map(declared):
        keys = widens(given.key_type, declared.key_type)
        return keys and widens(given.item_type, declared.item_type)
    if t.is_struct(given) and t.is_struct(declared):
        return [f.name for f in given] == [f.name for f in declared] and all(
            widens(one.type, other.type) for one, other in zip(given, declared, strict=True)
        )
    if t.is_decimal(given) and t.is_decimal(declared):
        room = declared.precision - declared.scale
        return bool(room >= given.precision - given.scale and declared.scale >= given.scale)
    if t.is_signed_integer(given):
        if t.is_decimal(declared):
            return bool(_DIGITS[given.bit_width] <= declared.precision - declared.scale)
        half = declared.bit_width // 2 if t.is_floating(declared) else 0
        whole = declared.bit_width if t.is_signed_integer(declared) else half
        return bool(given.bit_width <= whole)
    both_floating = t.is_floating(given) and t.is_floating(declared)
    return bool(both_floating and given.bit_width <= declared.bit_width)


def exact_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an array of Python values; pyarrow alone would cut 1.5 down to the integer 1.

    Raises what pyarrow raises for a value that does not fit.
    """
    array = pa.array(values, kind)
    if _may_change(kind):
        _refuse_changed(values, kind)
    return array


def exact_cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in a declared type; raise ArrowInvalid where that would change a value.

    Other sizes of numbers and times will do as long as all values fit; a text is no number.
    """
    if array.type == kind:
        return array
    if t.is_dictionary(array.type):
        return exact_cast(array.dictionary_decode(), kind)
    if not _is_alike(array.type, kind):
        raise pa.ArrowInvalid(f"they are of type {array.type}, which is not {kind}")
    made = array.cast(kind)
    if kind == pa.float32() and pc.sum(pc.is_inf(made)) != pc.sum(_infinite(array)):
        raise pa.ArrowInvalid("a number is too large")
    return made


def _infinite(array: pa.Array) -> Any:
    return pc.is_inf(array) if t.is_floating(array.type) else pa.array([False] * len(array))


@cache
def _may_change(kind: pa.DataType) -> bool:
    """Whether pyarrow makes another value of some Python values, instead of an error."""
    if t.is_list(kind):
        return _may_change(kind.value_type)
    if t.is_map(kind):
        return _may_change(kind.key_type) or _may_change(kind.item_type)
    return bool(
        t.is_integer(kind)
        or t.is_date(kind)
        or t.is_timestamp(kind)
        or t.is_struct(kind)
        or kind == pa.float32()
    )


def _refuse_changed(values: Iterable[Any], kind: pa.DataType) -> None:
    """Raise ArrowInvalid if one of these values, which pyarrow takes, would become another."""
    if t.is_integer(kind):
        if not _WHOLE.issuperset(map(type, values)):
            _each(values, lambda value: value % 1 == 0, "is no whole number")
    elif t.is_date(kind):
        if not _DAYS.issuperset(map(type, values)):
            _each(values, _is_day, "is no date")
    elif t.is_timestamp(kind):
        if kind.tz is None or not _MOMENTS.issuperset(map(type, values)):
            naive = kind.tz is None
            _each(values, lambda value: _is_moment(value, naive=naive), f"is no {kind}")
    elif kind == pa.float32():
        _each(values, lambda v: math.isinf(v) or abs(v) < 3.5e38 or v != v, "is too large")
    elif t.is_list(kind):
        _refuse_changed(
            [one for each in values if each is not None for one in each], kind.value_type
        )
    elif t.is_map(kind):
        maps = (each.items() if isinstance(each, Mapping) else each for each in values if each)
        pairs = [pair for each in maps for pair in each]
        for place, inner in enumerate((kind.key_type, kind.item_type)):
            if _may_change(inner):
                _refuse_changed([pair[place] for pair in pairs], inner)
    elif t.is_struct(kind):
        _refuse_changed_structs([each for each in values if isinstance(each, Mapping)], kind)


def _refuse_changed_structs(values: Sequence[Mapping[str, Any]], kind: pa.DataType) -> None:
    names = {field.name for field in kind}
    for each in values:
        for name in each:
            if name not in names:
                raise pa.ArrowInvalid(f"there is no {name!r} in {kind}")
    for field in kind:
        if _may_change(field.type):
            _refuse_changed([each.get(field.name) for each in values], field.type)


def _each(values: Iterable[Any], fits: Any, what: str) -> None:
    for value in values:
        if value is not None and not fits(value):
            raise pa.ArrowInvalid(f"{value!r} {what}")


def _is_day(value: Any) -> bool:
    if isinstance(value, dt.datetime):
        return value.time() == dt.time() and not getattr(value, "nanosecond", 0)
    return isinstance(value, dt.date) or hasattr(value, "dtype")


def _is_moment(value: Any, *, naive: bool) -> bool:
    if not isinstance(value, dt.datetime):
        return hasattr(value, "dtype")  # of numpy; a number alone is no time
    return not getattr(value, "nanosecond", 0) and not (naive and value.utcoffset())


def _is_alike(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a column of one type may be cast to another, if its values allow it."""
    if given == kind or t.is_null(given):
        return True
    if t.is_list(kind):
        lists = t.is_list(given) or t.is_large_list(given) or t.is_fixed_size_list(given)
        return lists and _is_alike(given.value_type, kind.value_type)
    if t.is_struct(kind):
        return t.is_struct(given) and _are_alike(given, kind)
    if t.is_map(kind):
        return t.is_map(given) and all(
            _is_alike(*pair)
            for pair in ((given.key_type, kind.key_type), (given.item_type, kind.item_type))
        )
    if t.is_timestamp(given) and t.is_timestamp(kind):
        return kind.tz is not None or given.tz in (None, "UTC", "Etc/UTC", "+00:00")
    if t.is_decimal(given) or t.is_decimal(kind):  # a float is not what its digits say
        return not (t.is_floating(given) or t.is_floating(kind)) and _are_numbers(given, kind)
    return _are_numbers(given, kind) or (_is_text(given) and _is_text(kind))


def _are_alike(given: pa.DataType, kind: pa.DataType) -> bool:
    own = {field.name: field.type for field in kind}
    return {field.name for field in given} == own.keys() and all(
        _is_alike(field.type, own[field.name]) for field in given
    )


def _are_numbers(*kinds: pa.DataType) -> bool:
    return all(t.is_integer(k) or t.is_floating(k) or t.is_decimal(k) for k in kinds)


def _is_text(kind: pa.DataType) -> bool:
    names = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
    return str(kind) in names
