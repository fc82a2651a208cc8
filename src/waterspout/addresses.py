"""Servers as a user writes them down: `"host:port"`, `(host, port)`, or a list of those."""

from __future__ import annotations

from typing import Any

from waterspout.errors import ConfigError

__all__ = ["addresses"]


def addresses(given: Any, *, port: int, what: str) -> tuple[tuple[str, int], ...]:
    """Return hosts and ports; `port` where none is given, `what` is what errors call them.

    >>> addresses("a, b:1, [::1]:2", port=9, what="server")
    (('a', 9), ('b', 1), ('::1', 2))
    """
    match given:
        case str():
            found = [_parsed(part.strip(), port) for part in given.split(",")]
        case (str(host), int(number)):
            found = [(host, number)]
        case list() | tuple():
            found = [pair for one in given for pair in addresses(one, port=port, what=what)]
        case _:
            found = []
    if not found or not all(h and type(n) is int and 0 < n < 65536 for h, n in found):
        raise ConfigError(f"{given!r} names no {what}; write 'host:port', or a list of such")
    return tuple(found)


def _parsed(text: str, default: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(default)
    return host.removeprefix("[").removesuffix("]"), int(port) if port.isdecimal() else 0
