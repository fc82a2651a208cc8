"""Canonical text of keys, and JSON text of values, that no reader has to trust.

Both are plain JSON. What JSON has no word for is an object with the one member `"$"`, which
holds a tag and a payload: `{"$":["decimal","1.50"]}`. Nothing is ever unpickled, and a
document that is not whole, or not ours, is a `SerdeError`, never a guess.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID
from zoneinfo import ZoneInfo

from waterspout.errors import SerdeError

__all__ = [
    "MAX_DEPTH",
    "MAX_SIZE",
    "Key",
    "checksum",
    "decode_bare_list",
    "decode_key",
    "decode_value",
    "encode_key",
    "encode_keys",
    "encode_value",
    "normalize_key",
]

Key: TypeAlias = Sequence[object]

MAX_DEPTH = 64  # containers inside each other
MAX_SIZE = 64 * 1024 * 1024  # characters of one document

_TAG = "$"
_PLAIN_INT = 10**18
_SHORT = MAX_SIZE // 8  # of a word, whose text is then no longer than a document may be
_quoted = json.encoder.encode_basestring_ascii
_NUMBER = "number"
_TOO_DEEP = f"more than {MAX_DEPTH} containers inside each other"
_TOO_LARGE = f"larger than {MAX_SIZE} characters of JSON"


def normalize_key(key: Key) -> tuple[object, ...]:
    """Return the one tuple that stands for all keys equal to `key`.

    Lists become tuples, -0.0 becomes 0.0, every NaN the same object, decimals lose trailing
    zeros, aware datetimes move to UTC. To Python `(1,)`, `(1.0,)` and `(True,)` are still
    equal: where they must differ, as in a dict, use `encode_key`.
    """
    if not isinstance(key, tuple | list):
        raise SerdeError(f"a key is a tuple or a list, not {_name(type(key))}; write (value,)")
    return _normal_tuple(key, 1)


def encode_key(key: Key) -> str:
    """Return the canonical text of a key: equal for equal keys, different for all others.

    >>> encode_key(("the", 1)), encode_key([1.0, True, None])
    ('["the",1]', '[1.0,true,null]')
    """
    if type(key) is tuple or type(key) is list:
        # Most keys; the long way gives them the same text.
        texts = [
            _quoted(v)
            if type(v) is str and v.isascii()
            else str(v)
            if type(v) is int and -_PLAIN_INT < v < _PLAIN_INT
            else ""
            for v in key
        ]
        if "" not in texts:
            text = f"[{','.join(texts)}]"
            if len(text) <= MAX_SIZE:
                return text
    return _dump(_Encoder(bare_tuples=True).node(normalize_key(key), 0))


def encode_keys(keys: Sequence[Key]) -> list[str]:
    """Return the canonical texts of keys; where all are one plain word, at little cost."""
    if set(map(type, keys)) == {tuple} and set(map(len, keys)) == {1}:
        words: list[Any] = [key[0] for key in keys]
        text = "".join(words) if set(map(type, words)) == {str} else "\0"
        if text.isascii() and text.isprintable() and max(map(len, words)) < _SHORT:
            if '"' not in text and "\\" not in text:  # nothing that JSON would write otherwise
                return [f'["{word}"]' for word in words]
            return [f"[{word}]" for word in map(_quoted, words)]
    return [encode_key(key) for key in keys]


def decode_key(text: str) -> tuple[object, ...]:
    """Return the normal form of the key that `encode_key` made `text` of."""
    node = _untag(_parse(text), 0)
    if type(node) is not list:
        raise SerdeError("this is not the text of a key: it is no JSON array")
    key = normalize_key(node)
    # Covers every other spelling of a key at once: spaces, escapes, tags without need.
    if encode_key(key) != text:
        raise SerdeError("this is not the canonical text of a key")
    return key


def encode_value(value: object) -> str:
    """Return JSON text that `decode_value` turns back into the same value and type.

    >>> encode_value("a"), encode_value([1, 2.5]), encode_value(b"hi")
    ('"a"', '[1,2.5]', '{"$":["bytes","aGk="]}')
    """
    if type(value) is str and value.isascii():
        return _dump(value)
    node = _Encoder(bare_tuples=False).node(value, 0)
    # A number is not left bare: what remains of one cut short is a number too.
    return _dump({_TAG: [_NUMBER, node]} if type(node) in (int, float) else node)


def decode_value(text: str) -> Any:
    """Return the value that `encode_value` made `text` of."""
    node = _parse(text)
    if type(node) is int or type(node) is float:
        raise SerdeError("a bare number is not a document: it may be the start of a longer one")
    return _untag(node, 0)


def decode_bare_list(text: str) -> list[Any] | None:
    """Return the list that `decode_value` would return, if it holds nothing but bare values.

    None for any other text, good or bad: ask `decode_value`. For stores, which read many.
    """
    try:
        items, end = _SCAN(text, 0)
    except (StopIteration, ValueError, RecursionError):
        return None
    if end != len(text) or type(items) is not list or end > MAX_SIZE:
        return None
    return items if _BARE.issuperset(map(type, items)) else None


def checksum(text: str) -> str:
    """Return the checksum of a text: 32 hex digits of BLAKE2b."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_NAN, _DECIMAL_NAN = float("nan"), Decimal("NaN")
# Decimal.normalize() alone would round to the 28 digits of the thread's context.
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, clamp=0, traps=[Inexact])


def _normal_decimal(value: Decimal) -> Decimal:
    if value.is_nan():
        return _DECIMAL_NAN
    return _EXACT.normalize(value) if value else Decimal(0)


def _normal_datetime(value: datetime) -> datetime:
    if value.utcoffset() is None:
        return value.replace(tzinfo=None, fold=0)
    try:
        return value.astimezone(UTC).replace(fold=0)
    except OverflowError as error:
        raise SerdeError("a datetime in a key lies outside the years 1 to 9999 in UTC") from error


def _normal_time(value: time) -> time:
    if value.utcoffset() is not None:
        raise SerdeError("a time with an offset is no key: it may lie on the day before or after")
    return value.replace(tzinfo=None, fold=0)


_NORMAL: dict[type, Callable[[Any], object]] = {
    float: lambda v: v + 0.0 if v == v else _NAN,  # -0.0 + 0.0 is 0.0
    Decimal: _normal_decimal,
    datetime: _normal_datetime,
    time: _normal_time,
}
_NORMAL_AS_IS = frozenset({str, int, bool, type(None), bytes, date, timedelta, UUID})


def _normal(value: object, depth: int) -> object:
    kind = type(value)
    if kind in _NORMAL_AS_IS:
        return value
    if kind in _NORMAL:
        return _NORMAL[kind](value)
    if isinstance(value, tuple | list):
        return _normal_tuple(value, depth + 1)
    if isinstance(value, dict | set | frozenset):
        raise SerdeError(f"{_name(kind)} cannot be in a key; use a tuple of its items, sorted")
    return _normal(_plain(value), depth)


def _normal_tuple(values: Sequence[object], depth: int) -> tuple[object, ...]:
    if depth > MAX_DEPTH:
        raise SerdeError(_TOO_DEEP)
    return tuple([v if type(v) in _NORMAL_AS_IS else _normal(v, depth) for v in values])


class _Codec(NamedTuple):
    """How one type is written as the payload of a tag."""

    tag: str
    encode: Callable[[Any], str]
    decode: Callable[[str], object]


def _to_base64(value: bytes) -> str:
    return b2a_base64(value, newline=False).decode("ascii")


_SURROGATE = re.compile("[\ud800-\udfff]")


def _is_unicode(text: str) -> bool:
    """Tell whether `text` has no surrogates: JSON reads two escaped ones as one character."""
    return text.isascii() or _SURROGATE.search(text) is None


_FOLD = "[_fold=1]"


def _to_stamp(value: datetime | time) -> str:
    zone = value.tzinfo
    fold = _FOLD if value.fold else ""
    # Python misreads an offset of less than a second; no clock has ever had one.
    if zone is None or (type(zone) is timezone and not zone.utcoffset(None).microseconds):
        return value.isoformat() + fold
    if type(zone) is ZoneInfo and zone.key:
        # Without the offset: the zone gives it, and its rules may change after we wrote.
        return f"{value.replace(tzinfo=None).isoformat()}[{zone.key}]{fold}"
    advice = "use a named zoneinfo.ZoneInfo, or a datetime.timezone of whole seconds"
    raise SerdeError(f"the time zone {_name(type(zone))} has no safe encoding; {advice}")


def _from_stamp(kind: type[datetime] | type[time], text: str) -> datetime | time:
    stamp, _, zone = text.removesuffix(_FOLD).removesuffix("]").partition("[")
    value = kind.fromisoformat(stamp).replace(fold=int(text.endswith(_FOLD)))
    return value.replace(tzinfo=ZoneInfo(zone)) if zone else value


_CODECS: dict[type, _Codec] = {
    bytes: _Codec("bytes", _to_base64, a2b_base64),
    Decimal: _Codec("decimal", str, Decimal),
    date: _Codec("date", date.isoformat, date.fromisoformat),
    datetime: _Codec("datetime", _to_stamp, lambda text: _from_stamp(datetime, text)),
    time: _Codec("time", _to_stamp, lambda text: _from_stamp(time, text)),
    timedelta: _Codec(
        "timedelta",
        lambda v: f"{v.days},{v.seconds},{v.microseconds}",
        lambda text: timedelta(*map(int, text.split(","))),
    ),
    UUID: _Codec("uuid", str, UUID),
    float: _Codec("float", repr, float),
    str: _Codec(
        "str",
        lambda v: _to_base64(v.encode("utf-8", "surrogatepass")),
        lambda text: a2b_base64(text).decode("utf-8", "surrogatepass"),
    ),
}
_BY_TAG = {codec.tag: codec for codec in _CODECS.values()}
_GROUPS: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset", dict: "dict"}
_GROUP_BY_TAG: dict[str, Callable[[Any], Any]] = {tag: kind for kind, tag in _GROUPS.items()}
_BARE = frozenset({str, int, bool, type(None)})  # nodes that are values as they stand
_KNOWN = frozenset({*_CODECS, *_GROUPS, bool, int, list})


class _Encoder:
    """Turns one value into JSON nodes, and stops as soon as they cannot fit."""

    __slots__ = ("_bare_tuples", "_room")

    def __init__(self, *, bare_tuples: bool) -> None:
        self._bare_tuples = bare_tuples
        # Counted while walking: what a value holds many times is written as often.
        self._room = MAX_SIZE

    def node(self, value: Any, depth: int) -> object:
        kind = type(value)
        if kind is str and _is_unicode(value):
            self._take(len(value) + 2)
            return value
        if kind is int or kind is bool or value is None:
            self._take(1)
            return value
        if kind is float and math.isfinite(value):
            self._take(3)
            return value
        codec = _CODECS.get(kind)
        if codec is not None:
            payload = codec.encode(value)
            self._take(len(payload))
            return {_TAG: [codec.tag, payload]}
        if kind is list or kind in _GROUPS:
            self._take(2)
            return self._container(value, depth + 1)
        return self.node(_plain(value), depth)

    def _container(self, value: Any, depth: int) -> object:
        if depth > MAX_DEPTH:
            raise SerdeError(_TOO_DEEP)
        kind = type(value)
        if kind is dict:
            return self._dict(value, depth)
        nodes = [self.node(item, depth) for item in value]
        if kind is list or (kind is tuple and self._bare_tuples):
            return nodes
        if kind is not tuple:
            nodes.sort(key=_dump)  # the order of a set changes from process to process
        return {_TAG: [_GROUPS[kind], nodes]}

    def _dict(self, value: dict[Any, object], depth: int) -> object:
        if all(type(k) is str and k != _TAG and _is_unicode(k) for k in value):
            self._take(sum(map(len, value)))
            return {k: self.node(v, depth) for k, v in value.items()}
        pairs = [[self.node(k, depth), self.node(v, depth)] for k, v in value.items()]
        return {_TAG: [_GROUPS[dict], pairs]}

    def _take(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise SerdeError(_TOO_LARGE)


def _plain(value: Any) -> object:
    """Return the built-in twin of a buffer or a numpy scalar; refuse every other type."""
    kind = type(value)
    if kind is bytearray or kind is memoryview:
        return bytes(value)
    parents = [parent.__name__ for parent in kind.__mro__]
    if kind.__module__.partition(".")[0] == "numpy" and hasattr(value, "item"):
        if "ndarray" in parents:
            raise SerdeError("a numpy array has no safe encoding; use its tolist()")
        plain = value.item()
        # A datetime64 in nanoseconds gives an int, NaT gives None, a longdouble gives itself.
        is_time = "datetime64" in parents or "timedelta64" in parents
        if type(plain) in _KNOWN and (not is_time or isinstance(plain, date | timedelta)):
            return plain
    base = next((known.__name__ for known in kind.__mro__[1:] if known in _KNOWN), None)
    advice = f"a plain {base}" if base else "built-in types, such as a dict of its fields"
    raise SerdeError(f"{_name(kind)} has no safe encoding; convert it to {advice}")


_ENCODER = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":")
)


def _dump(node: object) -> str:
    try:
        text = _ENCODER.encode(node)
    except ValueError as error:
        raise SerdeError(f"an int has too many digits: {error}") from error
    if len(text) > MAX_SIZE:
        raise SerdeError(_TOO_LARGE)
    return text


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member appears twice")
    return members


# The literal NaN, which is no JSON, becomes an infinity; `_untag` refuses that, as it does 1e999.
_DECODER = json.JSONDecoder(object_pairs_hook=_members, parse_constant=lambda _: math.inf)


_SCAN: Callable[[str, int], tuple[Any, int]] = _DECODER.scan_once  # type: ignore[attr-defined]


def _parse(text: str) -> object:
    if not isinstance(text, str):
        raise SerdeError(f"expected text to decode, not {_name(type(text))}")
    if len(text) > MAX_SIZE:
        raise SerdeError(_TOO_LARGE)
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise SerdeError(_TOO_DEEP) from None
    except ValueError as error:
        raise SerdeError(f"this is not a whole JSON document: {error}") from error


def _untag(node: object, depth: int) -> object:
    if isinstance(node, dict) and _TAG in node:
        match node[_TAG]:
            case [str(tag), payload] if len(node) == 1:
                return _untag_one(tag, payload, depth)
        raise SerdeError(f'the member "{_TAG}" does not hold a tag and a payload')
    if isinstance(node, dict | list):
        if depth >= MAX_DEPTH:
            raise SerdeError(_TOO_DEEP)
        if isinstance(node, list):
            return [v if type(v) in _BARE else _untag(v, depth + 1) for v in node]
        return {k: v if type(v) in _BARE else _untag(v, depth + 1) for k, v in node.items()}
    if isinstance(node, float) and not math.isfinite(node):
        raise SerdeError("a number is not finite")
    return node


def _untag_one(tag: str, payload: object, depth: int) -> object:
    if isinstance(payload, str) and tag in _BY_TAG:
        return _untag_scalar(_BY_TAG[tag], payload)
    if isinstance(payload, list) and tag in _GROUP_BY_TAG:
        return _untag_group(tag, payload, depth)
    if type(payload) in (int, float) and tag == _NUMBER and depth == 0:
        return _untag(payload, depth)
    raise SerdeError(f"the tag {tag[:40]!r} is unknown or has a payload of the wrong kind")


def _untag_scalar(codec: _Codec, payload: str) -> object:
    try:
        value = codec.decode(payload)
    except (ValueError, TypeError, ArithmeticError, LookupError, OSError) as error:
        raise SerdeError(f"the payload of the tag {codec.tag!r} is malformed: {error}") from error
    # Python's parsers take more spellings than we write, and not every value needs its tag.
    if _Encoder(bare_tuples=False).node(value, 0) != {_TAG: [codec.tag, payload]}:
        raise SerdeError(f"the payload of the tag {codec.tag!r} is not as we write it")
    return value


def _untag_group(tag: str, payload: list[object], depth: int) -> object:
    # The pairs of a dict are no containers of their own: hence one level less.
    items: Any = _untag(payload, depth - 1 if tag == "dict" else depth)
    if tag == "dict" and not all(type(pair) is list and len(pair) == 2 for pair in items):
        raise SerdeError("a tagged dict does not hold pairs")
    try:
        group = _GROUP_BY_TAG[tag](items)
    except TypeError as error:
        raise SerdeError(f"a {tag} holds what cannot be in one: {error}") from error
    if len(group) != len(items):
        raise SerdeError(f"a {tag} holds the same item twice")
    return group


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
