"""`ClientCall`: one call of a client, from its request to its result, and what may be tried again.

No I/O: `DRPCClient` and `AsyncDRPCClient` send what it says and tell it what came back. A call is
made again only where nothing was done about it: nobody was reached, or it was refused with
Retry-After. Once it was sent its function may have run, and functions need not be pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from waterspout._backoff import Backoff
from waterspout._safe_repr import shown
from waterspout.drpc._wire import INTERNAL
from waterspout.errors import DRPCExecutionException

__all__ = ["ClientCall", "DRPCResult", "base_url", "functions_of_answer", "unreachable"]

# How much longer than the server a client waits: for the way there and back.
_GRACE_S = 5.0

_PAUSES = Backoff(0.05, 1.0)


class DRPCResult(list[list[Any]]):
    """The tuples of an answer, in order.

    `txid` is the last batch that had committed when the states were asked, None where no batch
    commits; give it as `min_txid` to see at least as much next time. `id` is the request's.
    """

    def __init__(
        self, tuples: Iterable[list[object]], txid: int | None = None, id: str = ""
    ) -> None:
        super().__init__(tuples)
        self.txid = txid
        self.id = id


class ClientCall:
    """One call of a function."""

    def __init__(
        self,
        url: str,
        function: str,
        args: str,
        *,
        timeout: float | None,
        min_txid: int | None,
        retries: int,
    ) -> None:
        for what, value in (("function", function), ("args", args)):
            if not isinstance(value, str):
                raise TypeError(f"{what} is text, not {shown(value)}")
        self._server = url
        self._left = retries
        self._tries = 0
        self.path = f"/drpc/{quote(function, safe='')}"
        self.content = args.encode("utf-8")
        wanted = {"timeout": timeout, "min_txid": min_txid}
        self.params = {name: str(value) for name, value in wanted.items() if value is not None}
        self.read_timeout_s = None if timeout is None else timeout + _GRACE_S

    def unreached(self, error: Exception) -> float:
        """Nothing was sent: return how long to wait before the next try, or raise."""
        return self._again(
            None,
            unreachable(self._server, error),
            error,
        )

    def late(self, error: Exception) -> DRPCExecutionException:
        """Return what a server is that has not answered in time."""
        return DRPCExecutionException(
            "SERVER_TIMEOUT", f"{self._server} has not answered in {self.read_timeout_s:g} s"
        )

    def lost(self, error: Exception) -> DRPCExecutionException:
        """Return what a connection is that was lost after the call was sent."""
        return DRPCExecutionException(
            INTERNAL,
            f"the connection to {self._server} was lost ({error or type(error).__name__}); the "
            "function may have run, so the call is not made again by itself",
        )

    def answered(self, status: int, headers: Mapping[str, str], body: bytes) -> DRPCResult | float:
        """Return the result; or, where nothing was done, how long to wait before the next try."""
        try:
            found = json.loads(body)
            if status == 200:
                return DRPCResult(found["result"], found["txid"], found["id"])
        except (ValueError, KeyError, TypeError):
            status = 0 if status == 200 else status
        said = _told(self._server, status, body)
        after = headers.get("retry-after", "")
        if status != 503 or not after.isdigit():
            raise said
        return self._again(float(after), said, None)

    def _again(
        self, after_s: float | None, why: DRPCExecutionException, cause: Exception | None
    ) -> float:
        if self._left <= 0:
            raise why from cause
        self._left -= 1
        self._tries += 1
        return _PAUSES.pause_s(self._tries) if after_s is None else min(after_s, 10.0)


def unreachable(server: str, error: Exception) -> DRPCExecutionException:
    """Return what it is that nobody answers at an address."""
    return DRPCExecutionException(INTERNAL, f"{server} cannot be reached: {error}")


def functions_of_answer(server: str, status: int, body: bytes) -> list[str]:
    """Return the names in a list of functions."""
    try:
        if status == 200:
            return [str(each["name"]) for each in json.loads(body)["functions"]]
    except (ValueError, KeyError, TypeError):
        status = 0
    raise _told(server, status, body)


def _told(server: str, status: int, body: bytes) -> DRPCExecutionException:
    """Return the error that a server tells; 0: it was no answer of ours."""
    try:
        error = json.loads(body)["error"]
        return DRPCExecutionException(
            error["kind"], error["message"], error.get("operation"), status=status
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        said = f"answered {status}" if status else "gave an answer"
        return DRPCExecutionException(
            INTERNAL,
            f"{server} {said} that is none of DRPC; is it the server of a topology?",
            status=status or None,
        )


def base_url(url: str) -> str:
    """Return the address of a server, as users write it: with or without /drpc behind it."""
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ValueError(f"a server is given as http://host:port, not {shown(url)}")
    return url.rstrip("/").removesuffix("/drpc")
