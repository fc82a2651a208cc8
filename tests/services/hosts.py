"""Hosts with networks of their own on this machine, and cables between them that can be pulled.

A host is a network namespace and a host name. It has one address, whichever cable one comes by.
Needs root and `ip` (iproute2).
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

from tests.services.servers import MissingServer, RedisServer, missing
from tests.services.zookeeper import ZooKeeperServer

# Addresses that are kept free for tests of networks (RFC 2544).
_ADDRESS = "198.18.{}.{}"
EVERYWHERE = "0.0.0.0"  # in a namespace that nobody else is in

_numbers = itertools.count()


class Host:
    """One host. `command` runs a program on it."""

    def __init__(self, network: Network, name: str, number: int) -> None:
        self.name = name
        self.namespace = f"{network.name}-{name}"
        self.address = _ADDRESS.format(network.number, number)

    def make(self) -> None:
        _ip("netns", "add", self.namespace)
        self.ip("link", "set", "lo", "up")
        self.ip("address", "add", f"{self.address}/32", "dev", "lo")

    def ip(self, *words: str) -> None:
        _ip("-n", self.namespace, *words)

    def command(self, *words: object) -> list[str]:
        """Return a command line that runs another one here; the process is that one's."""
        named = ("unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', self.name)
        return ["ip", "netns", "exec", self.namespace, *named, *map(str, words)]

    def remove(self) -> None:
        subprocess.run(["ip", "netns", "delete", self.namespace], capture_output=True, check=False)


class Outside(Host):
    """The host that the tests run on."""

    def make(self) -> None:
        self.ip("address", "add", f"{self.address}/32", "dev", "lo")

    def ip(self, *words: str) -> None:
        _ip(*words)

    def remove(self) -> None:
        _ip("address", "delete", f"{self.address}/32", "dev", "lo")


class Cable:
    """Joins two hosts until it is pulled; no packet comes through, and nobody is told."""

    def __init__(self, network: Network, one: Host, other: Host) -> None:
        number = len(network.cables)
        self.ends = [
            (one, f"ws{network.number}x{number}a"),
            (other, f"ws{network.number}x{number}b"),
        ]
        (_, first), (_, second) = self.ends
        _ip("link", "add", first, "type", "veth", "peer", "name", second)
        for host, end in self.ends:
            if not isinstance(host, Outside):
                _ip("link", "set", end, "netns", host.namespace)
        self.plug()

    def plug(self) -> None:
        for host, end in self.ends:
            host.ip("link", "set", end, "up")
        for (host, end), (peer, _) in zip(self.ends, reversed(self.ends), strict=True):
            way = (f"{peer.address}/32", "dev", end, "src", host.address)
            host.ip("route", "replace", *way)

    def pull(self) -> None:
        """Pull it at the second host's end; the first one sends into nowhere."""
        host, end = self.ends[1]
        host.ip("link", "set", end, "down")


class Network:
    """Hosts and their cables."""

    def __init__(self) -> None:
        if os.getuid() != 0:
            raise MissingServer("NO HOSTS HERE: network namespaces need root.")
        if shutil.which("ip") is None:
            raise MissingServer(missing("ip", "iproute2"))
        self.number = (os.getpid() + next(_numbers)) % 256
        self.name = f"ws{self.number}"
        self.hosts: list[Host] = []
        self.cables: list[Cable] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for host in self.hosts:
            host.remove()

    def host(self, name: str) -> Host:
        return self._made(Host(self, name, len(self.hosts) + 1))

    def outside(self) -> Host:
        return self._made(Outside(self, "outside", len(self.hosts) + 1))

    def _made(self, host: Host) -> Host:
        self.hosts.append(host)
        host.make()
        return host

    def cable(self, one: Host, other: Host) -> Cable:
        self.cables.append(Cable(self, one, other))
        return self.cables[-1]


class ZooKeeperOn(ZooKeeperServer):
    """A ZooKeeper on a host, as seen from outside."""

    def __init__(self, where: Host) -> None:
        super().__init__()
        self.where, self.host, self.bind = where, where.address, EVERYWHERE

    def command(self) -> list[str]:
        return self.where.command(*super().command())


class RedisOn(RedisServer):
    """A Redis on a host, as seen from outside."""

    def __init__(self, where: Host) -> None:
        super().__init__(bind=EVERYWHERE, protected_mode="no")
        self.where, self.host = where, where.address

    def command(self) -> list[str]:
        return self.where.command(*super().command())


def run_on(host: Host, log: Path, *words: object, **options: Any) -> subprocess.Popen[bytes]:
    """Start a program on a host, in a session of its own."""
    with open(log, "ab") as file:
        return subprocess.Popen(
            host.command(*words), stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            start_new_session=True, **options,
        )  # fmt: skip


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingServer(f"NO HOSTS HERE: ip {' '.join(words)}: {done.stderr.strip()}")
