"""What the work at hand is about, for log lines: the topology, the batch, the attempt.

Kept per thread, as context variables: whoever formats a record (`waterspout.metrics.JsonFormatter`)
can add it, and nobody who logs has to pass it on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

__all__ = ["about", "about_the_attempt", "subject"]

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")

_NOTHING: Mapping[str, object] = {}
_subject: ContextVar[Mapping[str, object]] = ContextVar("waterspout_subject", default=_NOTHING)


class _Attempt(Protocol):
    @property
    def txid(self) -> int: ...
    @property
    def attempt_id(self) -> int: ...


def subject() -> Mapping[str, object]:
    """Return what the work at hand is about."""
    return _subject.get()


@contextmanager
def about(attempt: _Attempt | None = None, **more: object) -> Iterator[None]:
    """Say what is done inside is about, beside what was said outside.

    >>> with about(topology="words"):
    ...     subject()
    {'topology': 'words'}
    """
    of_it = {} if attempt is None else {"txid": attempt.txid, "attempt": attempt.attempt_id}
    token = _subject.set({**_subject.get(), **of_it, **more})
    try:
        yield
    finally:
        _subject.reset(token)


A = TypeVar("A", bound=_Attempt)


def about_the_attempt(
    method: Callable[Concatenate[Self, A, P], R],
) -> Callable[Concatenate[Self, A, P], R]:
    """Make a method about the attempt that is its first argument."""

    @wraps(method)
    def called(self: Self, attempt: A, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with about(attempt):
            return method(self, attempt, *args, **kwargs)

    return called
