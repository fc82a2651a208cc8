"""The server of a run: a socket that is bound before the run starts, and a thread of its own."""

from __future__ import annotations

import logging
import socket
import threading
from typing import TYPE_CHECKING

from waterspout._addresses import resolved
from waterspout._config import Config
from waterspout.coordination.events import Event, RunEnded
from waterspout.coordination.run import Run
from waterspout.errors import ConfigError, OutsideError
from waterspout.serving._limits import Limits
from waterspout.serving._log_tail import LogTail
from waterspout.state._store import require_package
from waterspout.topology._graph import Topology

if TYPE_CHECKING:
    import uvicorn

    from waterspout.trident._topology import TridentTopology

__all__ = ["RunServer", "bound", "listen", "require_address"]

log = logging.getLogger(__name__)

_START_S = 10.0


def bound(conf: Config, limits: Limits | None = None) -> RunServer:
    """Return a server that has its port, or raise why it cannot be had; it serves nothing yet.

    Called before anything of the run is started.
    """
    assert conf.serve is not None
    require_package("fastapi", "fastapi", "serve")
    require_package("uvicorn", "uvicorn", "serve")
    token = None if conf.serve_token is None else resolved(conf.serve_token)
    host, _, port = conf.serve.rpartition(":")
    host = host.strip("[]")
    said = f"'serve' is {conf.serve!r}"
    listening = listen(host, int(port), said, has_token=token is not None)
    return RunServer(host, listening, conf, token, limits or Limits())


def require_address(conf: Config) -> None:
    """Raise why a server could not listen as it is to; binds nothing for good."""
    bound(conf).close()


class RunServer:
    """Answers questions about one run, from `start` until the run has ended."""

    def __init__(
        self,
        host: str,
        listening: socket.socket,
        conf: Config,
        token: str | None,
        limits: Limits,
    ) -> None:
        self._host = host
        self._socket = listening
        self._conf = conf.replace(serve_token=None)
        self._token = token
        self._limits = limits
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._run: Run | None = None
        self._lock = threading.Lock()
        self._log = LogTail()

    @property
    def address(self) -> tuple[str, int]:
        """The address and the port that it listens on."""
        address, port, *_ = self._socket.getsockname()
        return address, port

    @property
    def url(self) -> str:
        """Where it is called, without a path."""
        host, port = self.address
        # Listening everywhere is no address to call.
        name = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"

    def start(self, run: Run, topology: Topology | TridentTopology) -> None:
        """Serve a run, until it has ended."""
        import uvicorn

        from waterspout.serving._app import application
        from waterspout.serving._door import Door, is_loopback
        from waterspout.serving._protocol import protocol_within
        from waterspout.serving._served import Served

        address, _ = self.address
        names = (*self._conf.serve_hosts, socket.gethostname(), socket.getfqdn())
        beyond = not is_loopback(address)
        door = Door.of(
            self._host, names if beyond else self._conf.serve_hosts, self._token, beyond=beyond
        )
        served = Served(run, topology, self._conf, self._token, self._log)
        self._log.open()
        config = uvicorn.Config(
            application(served, door, self._limits),
            http=protocol_within(self._limits),
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=self._limits.header_bytes,
            timeout_keep_alive=int(self._limits.idle_secs),
            timeout_graceful_shutdown=int(self._limits.close_secs),
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._serve, name=f"waterspout-server-{run.name}", daemon=True
        )
        self._run = run
        self._thread.start()
        run.served_at(self.url)
        run.subscribe(self._heard)
        if run.status in ("stopped", "failed"):
            self.close()  # it has ended before anybody listened

    def close(self) -> None:
        """Answer what is being asked, then end, and give the port up. May be called again."""
        with self._lock:
            if self._run is not None:
                self._run.served_at(None)
            if self._server is not None and self._thread is not None:
                self._server.should_exit = True
                self._thread.join(self._limits.close_secs + _START_S)
            self._socket.close()
            self._log.close()

    def _heard(self, event: Event) -> None:
        if isinstance(event, RunEnded):
            self.close()

    def _serve(self) -> None:
        assert self._server is not None
        try:
            self._server.run(sockets=[self._socket])
        except Exception:
            log.exception("the server of %s has ended", self._run and self._run.name)


def listen(host: str, port: int, said: str, *, has_token: bool) -> socket.socket:
    """Return a socket that listens; beyond loopback only for who has a token.

    `said` is what was asked for, as the beginning of an error.
    """
    from waterspout.serving._door import is_loopback

    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"{said}: {host} is no host that can be found ({error})") from error
    if not is_loopback(str(address[0])) and not has_token:
        raise ConfigError(
            f"{said}, which other machines reach: give 'serve_token' as well, such "
            "as ${WATERSPOUT_TOKEN} of the environment, or listen on 127.0.0.1"
        )
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise OutsideError(
            f"{said}: that address cannot be listened on: "
            f"{error.strerror or error}. Take another port, or port 0 for any that is free"
        ) from error
    listening.setblocking(False)
    return listening
