"""Addresses as users write them: servers by host and port, and secrets, which stay out of sight.

Whatever is shown of an address or said by a client goes through here. `shown` names the place and
leaves out what opens the door there. `Secrets` takes the words of one address out of a text, and
keeps an error of the client from being chained if it has one of them. `masked` is for texts whose
address is not known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from waterspout.errors import ConfigError

__all__ = [
    "Secrets",
    "addresses",
    "check_url",
    "masked",
    "resolved",
    "shown",
    "shown_server",
]

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_URL = re.compile(r"(?s)([A-Za-z][A-Za-z0-9+.-]*)://(.*)")
# `user:secret@` of a URL: to the last @, since a secret may have one. And `password=secret` of a
# DSN, a URL's query or a Connect address: to the next space, since a secret may have & and ;.
# Bounded where it may match anything: texts of errors can be long.
_IN_URL = re.compile(r"(?<=://)([^/@\s:]{0,200}):\S{0,4000}@")
_NAMED = r"(?i)((?:passw|pwd|secret|token|credential|api.?key|access.?key)[\w.-]{0,40})"
_IN_PAIRS = re.compile(_NAMED + r"(\s*=\s*)('(?:[^'\\]|\\.)*'|(?:\\.|\S)+)")
_PAIR = re.compile(_NAMED + r"=([^&;]*)")
# A shorter word stands in many texts by chance: it is hidden only where it stands alone.
_LONG = 4


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
    if not found or not all(_is_host(h) and type(n) is int and 0 < n < 65536 for h, n in found):
        seen = shown_server(given if isinstance(given, str) else repr(given))
        raise ConfigError(f"{seen!r} names no {what}; write 'host:port', or a list of such")
    return tuple(found)


def shown_server(text: str) -> str:
    """Return what may be shown of a text that should name a server, whatever it is.

    >>> shown_server("me:hunter2@host:1"), shown_server("me://hunter2/@host:1")
    ('host:1', 'host:1')
    """
    return shown(text.rpartition("@")[2])


def _is_host(name: str) -> bool:
    # One with an @ is a URL, or has a password before it.
    return bool(name) and not set(name) & set("@/?# \t\r\n")


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
                f"{shown(address)} names the environment variable {match[1]}, which is not set "
                "here. Set it for the driver and, where tasks write, for the executors."
            )
        return found

    return _VARIABLE.sub(value, address)


def check_url(url: str, what: str, *, libpq: bool = False) -> None:
    """Refuse a URL of which it cannot be told where its password ends; `what` is its name.

    Clients read a URL up to the first of / ? #, and take what is before the last @ in it for user
    and password. `libpq` reads up to the first /, and takes what is before the first @.
    """
    parts = _parted(url, "/" if libpq else "/?#")
    if parts is None or (libpq and "@" in parts[1]):
        raise ConfigError(
            f"the {what} has an @ behind its host, so that a part of the password would be taken "
            "for the host or the path. In a user name or password write %40 for @, %2F for /, "
            "%3F for ? and %23 for #; elsewhere write %40 for @. It is not shown here because it "
            "may hold a password."
        )


def _parted(url: str, stops: str = "/?#") -> tuple[str, str, str, str] | None:
    """Return scheme, user and password, hosts, and the rest; without a scheme, all is the rest.

    None if an @ in the rest may be the end of a password, which begins with the first colon.
    """
    match = _URL.match(url)
    if match is None:
        return "", "", "", url
    scheme, all_of_it = match.groups()
    end = min((i for i in map(all_of_it.find, stops) if i >= 0), default=len(all_of_it))
    place, rest = all_of_it[:end], all_of_it[end:]
    user, _, hosts = place.rpartition("@")
    return None if ":" in place and "@" in rest else (scheme, user, hosts, rest)


def shown(address: str) -> str:
    """Return where an address points, without what opens the door there.

    >>> shown("rediss://me:hunter2@db:6379/0?ssl_keyfile=k"), shown("${REDIS_URL}")
    ('rediss://db:6379/0', '${REDIS_URL}')
    >>> shown("sc://spark:15002/;token=hunter2"), shown("amqp://me:p@ss@mq/orders")
    ('sc://spark:15002', 'amqp://mq/orders')
    """
    parts = _parted(address)
    if parts is None:
        return f"{address.partition('://')[0]}://..."
    scheme, _, hosts, rest = parts
    if not scheme:
        # Such as `me:hunter2@host`: what is before the @ is not for people to see. Where a value
        # of `key=value` pairs ends, only its client knows.
        return "a DSN" if "=" in rest else rest.rpartition("@")[2]
    path = re.split(r"[?#;]", rest, maxsplit=1)[0].rstrip("/")
    return f"{scheme}://{hosts}{path}"


def masked(text: str) -> str:
    """Return a text that may quote addresses without their secrets.

    >>> masked("postgresql://me:hunter2@db/app"), masked("host=db password=hunter2")
    ('postgresql://me:***@db/app', 'host=db password=***')
    """
    return _IN_PAIRS.sub(r"\1\2***", _IN_URL.sub(r"\1:***@", text))


@dataclass(frozen=True)
class Secrets:
    """The words that are not to be seen: those of addresses, and others that are given."""

    words: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, *addresses: str | None, words: tuple[str | None, ...] = ()) -> Secrets:
        """Return the secrets of addresses, as they are written and as they are resolved here."""
        found = {text for word in words if word for text in _here(word)}
        for address in addresses:
            for text in _here(address or ""):
                # A client may quote all of it.
                found |= {*_secrets_in(text), *([text] if shown(text) != text else [])}
        known = [word for word in found if not _VARIABLE.fullmatch(word)]
        forms = [(word, quote(word, safe=""), repr(word)[1:-1]) for word in known]
        return cls(tuple(sorted({form for each in forms for form in each}, key=len, reverse=True)))

    def hidden(self, text: str) -> str:
        """Return a text of the client library without the secrets."""
        return masked(self._without(text)).strip()

    def cause(self, error: BaseException | None) -> BaseException | None:
        """Return an error, to be chained; None if it, or what led to it, says a secret."""
        seen: list[BaseException] = []
        todo = [error]
        while todo:
            one = todo.pop()
            if one is None or any(one is other for other in seen):
                continue
            seen.append(one)
            todo += [one.__cause__, one.__context__]
            # The repr as well: it is shown of an error in another error's list.
            if any(self._without(text) != text for text in (str(one), repr(one))):
                return None
        return error

    def _without(self, text: str) -> str:
        for word in self.words:
            alone = "" if len(word) >= _LONG else r"\w"
            bounds = (f"(?<!{alone})", f"(?!{alone})") if alone else ("", "")
            text = re.sub(re.escape(word).join(bounds), "***", text)
        return text


def _here(text: str) -> set[str]:
    """Return a text as it is written, and as it is with the variables of this process."""
    try:
        return {text, resolved(text)}
    except ConfigError:
        return {text}  # what is not set here is not known here either


def _secrets_in(address: str) -> Iterator[str]:
    """Yield the words of an address that open the door."""
    # A database client may end the place at another character: all it could take for a password.
    for stops in ("/?#", "/"):
        parts = _parted(address, stops)
        if parts is None:
            match = _URL.match(address)
            parts = "", match[2].rpartition("@")[0] if match else "", "", address
        _, user, _, rest = parts
        word = user.partition(":")[2]
        if word:
            yield from (word, unquote(word))
        for _, value in _PAIR.findall(rest):
            if value:
                yield from (value, unquote(value))
