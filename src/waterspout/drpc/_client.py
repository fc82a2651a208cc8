"""`DRPCClient` and `AsyncDRPCClient`: functions of a running topology, called over HTTP."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING, Any, Self

from waterspout.drpc._exchange import (
    ClientCall,
    DRPCResult,
    base_url,
    functions_of_answer,
    unreachable,
)
from waterspout.state._store import require_package

if TYPE_CHECKING:
    import httpx

__all__ = ["AsyncDRPCClient", "DRPCClient"]

_CONNECT_S = 10.0

# A server whose machine is gone says nothing: TCP finds out, within a minute.
_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4))
        if hasattr(socket, name)
    ),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
]


class _Caller:
    """What both clients have: where the server is, and how calls are made."""

    def __init__(self, url: str, token: str | None = None, *, retries: int = 3) -> None:
        self._url = base_url(url)
        self._retries = retries
        self._headers = {"content-type": "text/plain; charset=utf-8"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    def _exchange(
        self, function: str, args: str, timeout: float | None, min_txid: int | None
    ) -> ClientCall:
        return ClientCall(
            self._url, function, args, timeout=timeout, min_txid=min_txid, retries=self._retries
        )

    def _options(self, transport: Any) -> dict[str, Any]:
        """Return how a client of httpx is made: one address, no proxies, no redirects."""
        return {
            "base_url": self._url,
            "headers": self._headers,
            "trust_env": False,
            "transport": transport(socket_options=_ALIVE, trust_env=False),
        }

    def _sent(self, call: ClientCall) -> dict[str, Any]:
        timeout = _httpx().Timeout(
            call.read_timeout_s, connect=_CONNECT_S, write=_CONNECT_S, pool=_CONNECT_S
        )
        return {"content": call.content, "params": call.params, "timeout": timeout}


class DRPCClient(_Caller):
    """Calls functions of a running topology. Connections are kept; use it from any thread.

    `url` is that of the run's server: `run.server_url`. A call that reached nobody, or was refused
    because too many wait, is made again, `retries` times. One that was sent is not.
    """

    def __init__(self, url: str, token: str | None = None, *, retries: int = 3) -> None:
        super().__init__(url, token, retries=retries)
        self._client: httpx.Client = _httpx().Client(**self._options(_httpx().HTTPTransport))

    def execute(
        self,
        function: str,
        args: str,
        timeout: float | None = None,
        min_txid: int | None = None,
    ) -> DRPCResult:
        """Call a function and return the tuples of its answer, as lists, in order.

        `timeout` is in seconds; the run may allow less. With `min_txid` the answer is given when
        that batch has committed: read your writes. DRPCExecutionException says what went wrong.
        """
        httpx = _httpx()
        call = self._exchange(function, args, timeout, min_txid)
        while True:
            try:
                answer = self._client.post(call.path, **self._sent(call))
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                time.sleep(call.unreached(error))
                continue
            except httpx.TimeoutException as error:
                raise call.late(error) from error
            except httpx.HTTPError as error:
                raise call.lost(error) from error
            found = call.answered(answer.status_code, answer.headers, answer.content)
            if isinstance(found, DRPCResult):
                return found
            time.sleep(found)

    def functions(self) -> list[str]:
        """Return the names of the functions that there are."""
        httpx = _httpx()
        try:
            answer = self._client.get("/drpc", timeout=_CONNECT_S)
        except httpx.HTTPError as error:
            raise unreachable(self._url, error) from error
        return functions_of_answer(self._url, answer.status_code, answer.content)

    def close(self) -> None:
        """Give the connections up."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncDRPCClient(_Caller):
    """Calls functions of a running topology, for asyncio. See `DRPCClient`."""

    def __init__(self, url: str, token: str | None = None, *, retries: int = 3) -> None:
        super().__init__(url, token, retries=retries)
        self._client: httpx.AsyncClient = _httpx().AsyncClient(
            **self._options(_httpx().AsyncHTTPTransport)
        )

    async def execute(
        self,
        function: str,
        args: str,
        timeout: float | None = None,
        min_txid: int | None = None,
    ) -> DRPCResult:
        """Call a function and return the tuples of its answer; see `DRPCClient.execute`."""
        httpx = _httpx()
        call = self._exchange(function, args, timeout, min_txid)
        while True:
            try:
                answer = await self._client.post(call.path, **self._sent(call))
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                await asyncio.sleep(call.unreached(error))
                continue
            except httpx.TimeoutException as error:
                raise call.late(error) from error
            except httpx.HTTPError as error:
                raise call.lost(error) from error
            found = call.answered(answer.status_code, answer.headers, answer.content)
            if isinstance(found, DRPCResult):
                return found
            await asyncio.sleep(found)

    async def functions(self) -> list[str]:
        """Return the names of the functions that there are."""
        httpx = _httpx()
        try:
            answer = await self._client.get("/drpc", timeout=_CONNECT_S)
        except httpx.HTTPError as error:
            raise unreachable(self._url, error) from error
        return functions_of_answer(self._url, answer.status_code, answer.content)

    async def aclose(self) -> None:
        """Give the connections up."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


def _httpx() -> Any:
    require_package("httpx", "httpx", "serve")
    import httpx

    return httpx
