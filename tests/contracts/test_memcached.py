"""Memcached through the suite of all stores: directly, through a cache, and over a bad network."""

from __future__ import annotations

from itertools import count

import pytest

from tests.services.servers import MemcachedServer
from waterspout.state._cache import CachedMap
from waterspout.state.memcached import MemcachedState
from waterspout.state.memcached._wire import Command
from waterspout.testing._proxy import FaultProxy
from waterspout.testing.conformance import StateConformance
from waterspout.testing.conformance.hooks import StoreHooks
from waterspout.testing.conformance.network import NetworkSuite

NUMBERS = count()


@pytest.fixture(scope="module")
def roomy_server(memcached_server):
    """A server that need not evict what a test has written: some keys are of 1 MB."""
    with MemcachedServer(memory_mb=1024) as server:
        yield server


class Memcached(StoreHooks):
    many = 20_000
    keeps_removed = True

    @pytest.fixture(autouse=True)
    def _server(self, roomy_server):
        self.addresses = [roomy_server.address]

    def make_backing(self, kind):
        recipe = self.make_recipe(kind)
        backing = recipe.backing()
        backing.recipe = recipe
        return backing

    def make_recipe(self, kind):
        return MemcachedState(self.addresses, f"state{next(NUMBERS)}", kind=kind, timeout_secs=5)

    def lose_records(self, backing):
        backing = backing.uncached
        lost = {backing._slot((key,)) for key in "xy"}
        for slot in lost:
            backing._servers[slot.server].store([Command("set", slot.name, b"", b"", -1)])
        return True

    def reopen(self, backing):
        other = backing.recipe.backing()
        other.recipe = backing.recipe
        return other


class TestMemcached(Memcached, StateConformance):
    pass


@pytest.mark.soak
class TestCachedMemcached(Memcached, StateConformance):
    def make_backing(self, kind):
        return CachedMap(super().make_backing(kind), 50)

    def reopen(self, backing):
        return CachedMap(super().reopen(backing.uncached), backing._cache)


@pytest.mark.soak
class TestMemcachedOnThreeServers(Memcached, StateConformance):
    many = 10_000

    @pytest.fixture(autouse=True)
    def _servers(self, three_servers):
        self.addresses = [server.address for server in three_servers]


class OverABadNetwork(Memcached):
    many = 2_000
    commit_request = b"cas "

    @pytest.fixture(autouse=True)
    def _network(self, roomy_server):
        with FaultProxy(*roomy_server.address) as self.proxy:
            self.addresses = [self.proxy.address]
            yield


@pytest.mark.soak
class TestMemcachedOverABadNetwork(OverABadNetwork, NetworkSuite):
    pass


@pytest.mark.soak
class TestAllOverABadNetwork(OverABadNetwork, StateConformance):
    pass


@pytest.fixture(scope="module")
def three_servers(memcached_server):
    with (
        MemcachedServer(memory_mb=256) as one,
        MemcachedServer(memory_mb=256) as two,
        MemcachedServer(memory_mb=256) as three,
    ):
        yield one, two, three
