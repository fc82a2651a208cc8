"""Redis through the kit: both layouts, several slots, a cluster, and a lossy network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar
from uuid import uuid4

import pytest
import redis

from waterspout._schema import Schema
from waterspout.errors import StaleBatchError
from waterspout.state._base import StateKind
from waterspout.state._kinds import make_map
from waterspout.state.redis import RedisState
from waterspout.testing._batches import Batches, committed
from waterspout.testing._proxy import FaultProxy
from waterspout.testing.conformance import StateConformance
from waterspout.testing.conformance.hooks import StoreHooks
from waterspout.testing.conformance.network import NetworkSuite
from waterspout.testing.conformance.zombies import ZombieSuite
from waterspout.trident import Sum

WORDS, NUMBERS = Schema.parse("word string"), Schema.parse("n bigint")


class _Redis(StoreHooks):
    keeps_removed = True
    options: ClassVar[dict[str, Any]] = {}
    url: str

    def make_backing(self, kind):
        return self._made(self.make_recipe(kind))

    def make_recipe(self, kind):
        return RedisState(self.url, uuid4().hex, kind=kind, **self.options)

    def make_int_backing(self, kind):
        state = self.make_recipe(kind)
        return self._made(state.bind(WORDS, NUMBERS))

    def lose_records(self, backing):
        in_cluster = self.options.get("cluster", False)
        connect = redis.RedisCluster if in_cluster else redis.Redis
        with connect.from_url(self.url, protocol=2) as client:
            prefix = backing.recipe.prefix
            keys = [k for k in client.scan_iter(f"{{{prefix}:*") if not k.endswith(b":head")]
            for key in keys:  # in a cluster each has a node of its own
                client.delete(key)
        return True

    def reopen(self, backing):
        return replace(backing.recipe).backing()

    def _made(self, state):
        backing = state.backing()
        backing.recipe = state
        return backing


class _OneServer(_Redis):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server):
        self.url = redis_server.url
        redis_server.roundtrip(b"FLUSHALL\r\n")  # a new state looks through all keys


class TestStrings(_OneServer, StateConformance):
    pass


@pytest.mark.soak
class TestHash(_OneServer, StateConformance):
    options: ClassVar[dict[str, Any]] = {"layout": "hash"}


class _InSlots:
    """What holds for each slot does not hold for all at once: they are scripts of their own."""

    @pytest.mark.parametrize("kind", [StateKind.OPAQUE, StateKind.TRANSACTIONAL])
    def test_combining_a_batch_behind_a_record_is_refused_and_changes_nothing(self, kind):
        """Here: changes nothing in the slot of that record, and says who wrote in another."""
        fence = self.make_int_backing(kind)
        batches = Batches(make_map(kind, fence, name="slots"), combine=Sum())
        batches.commit({"a": 1})
        committed(make_map(kind, fence, name="slots"), 9, {"b": 1})
        attempt = batches.claim()
        before = fence.multi_get([("a",), ("b",)])

        with pytest.raises(StaleBatchError, match=r"batch 2 .*\('b',\).* batch 9"):
            batches.write({"a": 1, "b": 1})

        a, b = fence.multi_get([("a",), ("b",)])
        assert b == before[1]
        assert a == before[0] or (a.txid, a.attempt, a.value) == (2, attempt, 2)


@pytest.mark.soak
class TestSlots(_InSlots, _OneServer, StateConformance):
    options: ClassVar[dict[str, Any]] = {"slots": 4}


class _InACluster(_InSlots, _Redis):
    options: ClassVar[dict[str, Any]] = {"slots": 16, "cluster": True}
    many = 10_000

    @pytest.fixture(autouse=True)
    def _cluster(self, redis_cluster):
        self.url = redis_cluster.url
        for node in redis_cluster.nodes:
            node.roundtrip(b"FLUSHALL\r\n")


class TestZombiesInACluster(_InACluster, ZombieSuite):
    pass


@pytest.mark.soak
class TestCluster(_InACluster, StateConformance):
    pass


class _ThroughALossyNetwork(_Redis):
    many = 10_000

    @pytest.fixture(autouse=True)
    def _proxied_server(self, redis_server):
        redis_server.roundtrip(b"FLUSHALL\r\n")
        with FaultProxy(redis_server.host, redis_server.port) as proxy:
            self.proxy = proxy
            self.url = f"redis://127.0.0.1:{proxy.port}/0"
            yield


class TestThroughALossyNetwork(_ThroughALossyNetwork, NetworkSuite):
    pass


@pytest.mark.soak
class TestAllThroughALossyNetwork(_ThroughALossyNetwork, StateConformance):
    pass


@pytest.mark.soak
class TestSlotsThroughALossyNetwork(_ThroughALossyNetwork, NetworkSuite):
    options: ClassVar[dict[str, Any]] = {"slots": 3, "layout": "hash"}
