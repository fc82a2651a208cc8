"""Spark types of Python annotations, so that `def f(x: int) -> str` needs no DDL."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from waterspout._schema import TYPE_OF_CLASS

__all__ = ["ddl_of_annotation", "returned_types", "row_types", "yields"]

_LISTS = {list, collections.abc.Sequence}
_MAPS = {dict, collections.abc.Mapping}
_STREAMS = {
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.Collection,
}


def ddl_of_annotation(annotation: Any) -> str | None:
    """Return the Spark type of one value; None where there is no such type.

    >>> ddl_of_annotation(list[int]), ddl_of_annotation(dict[str, float] | None)
    ('array<bigint>', 'map<string,double>')
    """
    annotation = _without_none(annotation)
    if annotation in TYPE_OF_CLASS:
        return TYPE_OF_CLASS[annotation]
    if isinstance(annotation, typing.NewType):
        return ddl_of_annotation(annotation.__supertype__)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple and len(arguments) == 2 and arguments[1] is ...:
        origin, arguments = list, arguments[:1]
    inner = [ddl_of_annotation(argument) for argument in arguments]
    if None in inner:
        return None
    if origin in _LISTS and len(inner) == 1:
        return f"array<{inner[0]}>"
    if origin in _MAPS and len(inner) == 2:
        return f"map<{inner[0]},{inner[1]}>"
    return None


def returned_types(
    function: Callable[..., Any], width: int, *, many: bool
) -> Sequence[str | None] | None:
    """Return the types of the fields that a function gives, by its return annotation.

    `many`: it gives any number of rows, and the annotation says `Iterator[row]` or `list[row]`.
    A row of several fields is a `tuple[A, B]`. None if there is no annotation to go by.
    """
    annotation = function if _is_conversion(function) else _return_annotation(function)
    if annotation is None:
        return None
    if many:
        annotation = _row_of(annotation)
    if width == 1:
        known = ddl_of_annotation(annotation)
        return None if known is None else [known]
    annotation = _without_none(annotation)
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple and len(arguments) == width:
        return [ddl_of_annotation(argument) for argument in arguments]
    return None


def row_types(function: Callable[..., Any]) -> Sequence[str | None] | None:
    """Return the types of the rows of a function that may give one row, or many.

    `list[row]` and `Iterator[row]` are many; a row is a `tuple[A, B]`, or a bare value.
    """
    annotation = _without_none(_return_annotation(function))
    if typing.get_origin(annotation) in _STREAMS | _LISTS:
        annotation = _without_none(_row_of(annotation))
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return None if ... in arguments else [ddl_of_annotation(each) for each in arguments]
    known = ddl_of_annotation(annotation)
    return None if known is None else [known]


def yields(function: Callable[..., Any]) -> bool:
    """Whether a function (or what stands behind a partial or a callable object) is a generator."""
    return inspect.isgeneratorfunction(_plain(function))


def _is_conversion(function: Any) -> bool:
    """Whether a function is a class of Python's own, such as int, which gives what it is called."""
    return isinstance(function, type) and function in TYPE_OF_CLASS


def _row_of(annotation: Any) -> Any:
    annotation = _without_none(annotation)
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin in _STREAMS | _LISTS and arguments:
        return arguments[0]
    return None


def _without_none(annotation: Any) -> Any:
    """Return T of `T | None`: every field may be null."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        rest = [each for each in typing.get_args(annotation) if each is not type(None)]
        if len(rest) == 1:
            return rest[0]
    return annotation


def _return_annotation(function: Callable[..., Any]) -> Any:
    plain = _plain(function)
    found = getattr(plain, "__annotations__", {}).get("return")
    if found is None:
        return None
    # Only what is returned: a parameter may name what is imported for type checkers alone.
    alone = types.SimpleNamespace(__annotations__={"return": found})
    names = getattr(inspect.unwrap(plain), "__globals__", {})
    try:
        return typing.get_type_hints(alone, globalns=names).get("return")
    except (NameError, TypeError, AttributeError, SyntaxError):
        return None  # as good as no annotation: the error that follows says what to write


def _plain(function: Any) -> Any:
    """Return the function behind a partial or a callable object."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    return getattr(type(function), "__call__", function)  # noqa: B004  (the function is wanted)
