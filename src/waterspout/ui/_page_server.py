"""The page as a server: where it listens, who may come in, until when."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence

import uvicorn
from fastapi import FastAPI
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp

from waterspout._addresses import resolved
from waterspout._config import Config
from waterspout.serving._door import Door, is_loopback
from waterspout.serving._server import listen
from waterspout.ui._directory import Directory
from waterspout.ui._gate import Gate, Nonces
from waterspout.ui._library import ui
from waterspout.ui._pages import add_pages

__all__ = ["PageServer", "page_application"]

_HEAD_MAX = 16_384
_MESSAGE_MAX = 1_048_576


def page_application(directory: Directory, door: Door) -> ASGIApp:
    """Return the page as an ASGI application. NiceGUI has room for one in a process."""
    app = FastAPI(title="waterspout", docs_url=None, redoc_url=None, openapi_url=None)
    add_pages(directory)
    ui.run_with(
        app,
        title="waterspout",
        dark=None,
        language="en-US",
        reconnect_timeout=10.0,
        show_welcome_message=False,
        gzip_middleware_factory=None,
    )
    return GZipMiddleware(Nonces(Gate(app, door)))


class PageServer:
    """Has its port from the beginning; `run` serves the page in the calling thread."""

    def __init__(self, conf: Config, host: str, port: int, servers: Sequence[str] = ()) -> None:
        token = None if conf.serve_token is None else resolved(conf.serve_token)
        said = f"the page is to listen on {host}:{port}"
        self._socket = listen(host.strip("[]"), port, said, has_token=token is not None)
        address = str(self._socket.getsockname()[0])
        beyond = not is_loopback(address)
        names = (*conf.serve_hosts, *((socket.gethostname(), socket.getfqdn()) if beyond else ()))
        door = Door.of(host, names, token, beyond=beyond)
        self._directory = Directory(conf, servers, token=token)
        self._server = uvicorn.Server(
            uvicorn.Config(
                page_application(self._directory, door),
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=_HEAD_MAX,
                ws_max_size=_MESSAGE_MAX,
                timeout_graceful_shutdown=2,
            )
        )

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port, *_ = self._socket.getsockname()
        name = socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104
        return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"

    @property
    def where(self) -> str:
        """What is looked at, for people."""
        return self._directory.where

    def run(self) -> None:
        """Serve until a signal comes, or `close` is called."""
        self._server.run(sockets=[self._socket])

    def close(self) -> None:
        """End; may be called from any thread."""
        self._server.should_exit = True

    def close_when(self, wait: Callable[[], object]) -> None:
        """End when a function has returned, which is called in a thread of its own."""

        def watch() -> None:
            wait()
            self.close()

        threading.Thread(target=watch, name="waterspout-page-end", daemon=True).start()
