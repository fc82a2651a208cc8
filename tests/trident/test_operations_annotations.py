"""Spark types of Python annotations: every form, and none where none can be known."""

from __future__ import annotations

import functools
import typing
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Optional

import pytest

from waterspout._arrow import arrow_type
from waterspout.trident.operations.annotations import (
    ddl_of_annotation,
    returned_types,
    row_types,
    yields,
)

if TYPE_CHECKING:
    from nowhere import Unknown

UserId = typing.NewType("UserId", int)

KNOWN = [
    (bool, "boolean"),
    (int, "bigint"),
    (float, "double"),
    (str, "string"),
    (bytes, "binary"),
    (date, "date"),
    (datetime, "timestamp"),
    (Decimal, "decimal(38,18)"),
    (list[int], "array<bigint>"),
    (Sequence[str], "array<string>"),
    (tuple[int, ...], "array<bigint>"),
    (dict[str, list[float]], "map<string,array<double>>"),
    (Mapping[str, int], "map<string,bigint>"),
    (int | None, "bigint"),
    (Optional[str], "string"),  # noqa: UP045  (users write it)
    (list[Optional[date]], "array<date>"),  # noqa: UP045
    (UserId, "bigint"),
]


@pytest.mark.parametrize(("annotation", "ddl"), KNOWN, ids=[ddl for _, ddl in KNOWN])
def test_a_python_type_has_its_spark_type_which_arrow_takes(annotation, ddl):
    assert ddl_of_annotation(annotation) == ddl
    arrow_type(ddl)


@pytest.mark.parametrize(
    "annotation",
    [Any, object, None, list, dict, int | str, list[Any], set[int], complex, tuple[int, str]],
    ids=repr,
)
def test_a_type_that_no_field_can_have_is_unknown(annotation):
    assert ddl_of_annotation(annotation) is None


def one(x: int) -> str:
    return str(x)


def two(x: Unknown) -> tuple[str, float | None]:
    raise AssertionError(x)


def stream(x: int) -> Iterator[tuple[int, str]]:
    yield x, str(x)


def generator(x: int) -> Generator[int, None, None]:
    yield x


def rows(x: int) -> list[Decimal]:
    return [Decimal(x)]


def bare(x):
    return x


def foreign(x) -> Unknown:
    return x


class Callable_:
    def __call__(self, x) -> bytes:
        return bytes(x)


@pytest.mark.parametrize(
    ("function", "width", "many", "types"),
    [
        (one, 1, False, ["string"]),
        (two, 2, False, ["string", "double"]),
        (two, 3, False, None),
        (two, 1, False, None),
        (stream, 2, True, ["bigint", "string"]),
        (generator, 1, True, ["bigint"]),
        (rows, 1, True, ["decimal(38,18)"]),
        (rows, 1, False, ["array<decimal(38,18)>"]),
        (bare, 1, False, None),
        (foreign, 1, False, None),
        (functools.partial(one, 1), 1, False, ["string"]),
        (Callable_(), 1, False, ["binary"]),
        (lambda x: x, 1, False, None),
        (len, 1, False, None),
    ],
)
def test_a_functions_return_annotation_gives_the_types_of_its_fields(function, width, many, types):
    assert returned_types(function, width, many=many) == types


def spread(rows) -> float:
    return 1.0


def pairs(rows) -> Iterable[tuple[str, int]]:
    return []


def pair(rows) -> tuple[str, int] | None:
    return None


@pytest.mark.parametrize(
    ("function", "types"),
    [
        (spread, ["double"]),
        (pairs, ["string", "bigint"]),
        (pair, ["string", "bigint"]),
        (rows, ["decimal(38,18)"]),
        (bare, None),
    ],
)
def test_rows_have_the_width_of_their_annotation(function, types):
    assert row_types(function) == types


def test_a_generator_is_known_behind_a_partial_and_an_object():
    class Words:
        def __call__(self, text):
            yield from text.split()

    assert yields(stream)
    assert yields(functools.partial(stream, 1))
    assert yields(Words())
    assert not yields(one)
    assert not yields(len)
