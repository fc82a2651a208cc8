"""Who may come in, by which name, and with which token. Decisions without I/O.

A browser of somebody who is on this machine can be made to call any address. So the name by which
it calls must be one of ours (else a foreign name was pointed at us: DNS rebinding), and a page that
calls must be one of ours too (`Origin`, `Sec-Fetch-Site`).
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from waterspout.serving._answers import Refusal

__all__ = ["Door", "is_loopback"]

_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(\d{1,5}))?")
_READS = ("GET", "HEAD")
_ANYBODY = ("/health",)
_COMMANDS = "/api/"

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Door:
    """Decides over a request by its head alone."""

    names: frozenset[str] = frozenset({"localhost"})
    """By which we are called, in lower case, beside addresses."""
    beyond_loopback: bool = False
    """Whether others than this machine reach us: then every question needs the token."""
    token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, host: str, names: Iterable[str], token: str | None, *, beyond: bool) -> Door:
        """Return the door of a server that listens on a host."""
        known = {"localhost", host.lower(), *(name.lower() for name in names)}
        return cls(frozenset(known), beyond, token)

    def refusal(self, method: str, path: str, headers: Headers) -> Refusal | None:
        """Return why a request is not let in; None: it is."""
        return (
            self._wrong_host(_values(headers, b"host"))
            or _foreign_page(method, headers)
            or self._without_token(method, path, _values(headers, b"authorization"))
        )

    def _wrong_host(self, given: list[bytes]) -> Refusal | None:
        if len(given) != 1:
            return Refusal(400, "bad_host", "a request has one Host header")
        name = _host_of(given[0])
        if name is None:
            return Refusal(400, "bad_host", "the Host header is not host:port")
        if name in self.names or self._is_our_address(name):
            return None
        return Refusal(
            403,
            "foreign_host",
            "this server is not called by that name; call it by the address that it printed, or "
            "add the name to the option serve_hosts",
        )

    def _is_our_address(self, name: str) -> bool:
        """Whether a name is an address, which nobody can point at another machine."""
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return self.beyond_loopback or address.is_loopback

    def _without_token(self, method: str, path: str, given: list[bytes]) -> Refusal | None:
        if path in _ANYBODY:
            return None
        commands = method not in _READS and path.startswith(_COMMANDS)
        if commands and self.token is None:
            return Refusal(
                403,
                "no_token",
                "this run takes no commands over HTTP: start it with the option serve_token, and "
                "send `Authorization: Bearer TOKEN`. From a terminal: waterspout kill, activate, "
                "deactivate, rebalance",
            )
        if not (commands or self.beyond_loopback) or self._is_token(given):
            return None
        return Refusal(
            401,
            "unauthorized",
            "send `Authorization: Bearer TOKEN`, with the token that the run was started with",
            {"www-authenticate": 'Bearer realm="waterspout"'},
        )

    def _is_token(self, given: list[bytes]) -> bool:
        if len(given) != 1 or self.token is None:
            return False
        scheme, _, word = given[0].partition(b" ")
        same = hmac.compare_digest(word.strip(), self.token.encode())
        return same and scheme.lower() == b"bearer"


def is_loopback(host: str) -> bool:
    """Whether a host, as it is written, is this machine for itself alone.

    >>> is_loopback("localhost"), is_loopback("127.8.0.1"), is_loopback("[::1]"), is_loopback("h")
    (True, True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _foreign_page(method: str, headers: Headers) -> Refusal | None:
    """Return why a page in a browser may not call; None if it is ours, or no page calls."""
    (host,) = _values(headers, b"host")
    origins = [value.lower() for value in _values(headers, b"origin")]
    ours = (b"http://" + host.lower(), b"https://" + host.lower())
    sites = {value.lower() for value in _values(headers, b"sec-fetch-site")}
    modes = {value.lower() for value in _values(headers, b"sec-fetch-mode")}
    # A link on another page may lead here.
    follows_a_link = method in _READS and modes == {b"navigate"}
    if all(origin in ours for origin in origins) and (
        sites <= {b"same-origin", b"none"} or follows_a_link
    ):
        return None
    return Refusal(403, "foreign_origin", "pages of other servers may not call this one")


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def _host_of(value: bytes) -> str | None:
    match = _HOST.fullmatch(value)
    if match is None or int(match[2] or 0) > 65535:
        return None
    return match[1].decode("ascii").lower()
