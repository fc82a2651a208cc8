"""Which coordination store a topology uses, and whether the folder for it can be written."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from waterspout._config import Config
from waterspout._tls import TLS
from waterspout.coordination.embedded import COORDINATION_FILE, EmbeddedStore
from waterspout.coordination.store import CoordinationStore, MemoryCoordinationStore, SharedMemory
from waterspout.coordination.zookeeper import ZooKeeperStore, topologies
from waterspout.coordination.zookeeper_session import Address
from waterspout.errors import StoreError

__all__ = [
    "ZOOKEEPER_AUTH",
    "coordination_store",
    "known_topologies",
    "make_way",
    "volatile_store",
    "why_not_writable",
]

# `user:password` for ZooKeeper; not an option, because options are shown.
ZOOKEEPER_AUTH = "WATERSPOUT_ZOOKEEPER_AUTH"

_memory: dict[tuple[str, ...], SharedMemory] = {}
_memory_lock = threading.Lock()


def coordination_store(name: str, conf: Config, folder: Path | None = None) -> CoordinationStore:
    """Return the durable store of a topology: in ZooKeeper if there is one, else embedded.

    `folder` is what the topology keeps on this machine beside a store in ZooKeeper.
    """
    if conf.zookeeper_servers is None:
        _check_home(conf)
        return EmbeddedStore(conf.home_path(), name, lease_s=conf.lease_secs)
    if folder is not None:
        _check_home(conf)
    return ZooKeeperStore(
        conf.zookeeper_servers,
        name,
        port=conf.zookeeper_port,
        root=conf.zookeeper_root,
        auth=_zookeeper_auth(),
        tls=_zookeeper_tls(conf),
        acl=conf.zookeeper_acl or (),
        session_s=conf.lease_secs,
        connect_s=conf.connect_timeout_secs,
        folder=folder,
    )


def known_topologies(conf: Config) -> list[str]:
    """Return the names of the topologies whose ledgers are in ZooKeeper, or else in the home."""
    if conf.zookeeper_servers is None:
        home = conf.home_path().absolute()
        return sorted(path.parent.name for path in home.glob(f"*/{COORDINATION_FILE}"))
    address = Address(
        conf.zookeeper_servers,
        conf.zookeeper_port,
        session_s=conf.lease_secs,
        connect_s=conf.connect_timeout_secs,
        auth=_zookeeper_auth(),
        tls=_zookeeper_tls(conf),
        acl=conf.zookeeper_acl or (),
    )
    return topologies(address, conf.zookeeper_root)


def _zookeeper_auth() -> str | None:
    return f"${{{ZOOKEEPER_AUTH}}}" if ZOOKEEPER_AUTH in os.environ else None


def make_way(name: str, conf: Config) -> None:
    """End a driver that keeps everybody from its store and cannot give it up by itself.

    For a driver that is about to start, before it looks at anything. In ZooKeeper there is none: a
    session that is silent runs out.
    """
    if conf.zookeeper_servers is None:
        EmbeddedStore(conf.home_path(), name, lease_s=conf.lease_secs).make_way()


def _zookeeper_tls(conf: Config) -> TLS | None:
    files = conf.zookeeper_tls_ca, conf.zookeeper_tls_cert, conf.zookeeper_tls_key
    return TLS(*files) if conf.zookeeper_tls or any(files) else None


def volatile_store(name: str, locations: tuple[str, ...]) -> CoordinationStore:
    """Return a store that ends with this process, one for each set of states in memory."""
    with _memory_lock:
        shared = _memory.setdefault((name, *locations), SharedMemory())
    return MemoryCoordinationStore(name, shared)


def why_not_writable(folder: Path) -> str | None:
    """Return why a folder could not be made or written to; None if it could."""
    existing = folder.expanduser().absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return f"{existing} is not a folder"
    return None if os.access(existing, os.W_OK | os.X_OK) else f"{existing} is read-only"


def _check_home(conf: Config) -> None:
    reason = why_not_writable(conf.home_path())
    if reason is not None:
        raise StoreError(
            f"the waterspout home {conf.home_path()} cannot be used: {reason}. Choose another "
            "folder with WATERSPOUT_HOME or the option home."
        )
