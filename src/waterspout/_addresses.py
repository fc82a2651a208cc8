"""Addresses as users write them: servers by host and port, and secrets, which stay out of sight."""

from __future__ import annotations

import os
import re
from typing import Any

from waterspout.errors import ConfigError

__all__ = ["addresses", "masked", "resolved"]

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# `user:secret@` of a URL, and `password=secret` of a DSN or of a URL's query.
_IN_URL = re.compile(r"(?<=://)([^/@\s:]*):[^@\s]*@")
_IN_DSN = re.compile(
    r"(?i)\b(password|passwd|pwd|secret|token|sslpassword)(\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)"
)


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


def resolved(address: str) -> str:
    """Return an address with each `${NAME}` replaced from the environment of this process."""

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise ConfigError(
                f"{masked(address)} names the environment variable {match[1]}, which is not set "
                "here. Set it for the driver and, where tasks write, for the executors."
            )
        return found

    return _VARIABLE.sub(value, address)


def masked(text: str) -> str:
    """Return an address, or a text that quotes one, without its secrets.

    >>> masked("postgresql://me:hunter2@db/app"), masked("host=db password=hunter2")
    ('postgresql://me:***@db/app', 'host=db password=***')
    """
    return _IN_DSN.sub(r"\1\2***", _IN_URL.sub(r"\1:***@", text))
