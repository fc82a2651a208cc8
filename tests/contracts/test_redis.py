"""Redis through the kit: both layouts, several slots, a cluster, and a lossy network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from waterspout.schema import Schema
from waterspout.state.redis import RedisState
from waterspout.testing.conformance import StateConformance
from waterspout.testing.proxy import FaultProxy

WORDS, NUMBERS = Schema.parse("word string"), Schema.parse("n bigint")


class _RedisConformance(StateConformance):
    options: ClassVar[dict[str, Any]] = {}
    url: str

    def make_backing(self, kind):
        return self._made(RedisState(self.url, uuid4().hex, kind=kind, **self.options))

    def make_int_backing(self, kind):
        state = RedisState(self.url, uuid4().hex, kind=kind, **self.options)
        return self._made(state.bind(WORDS, NUMBERS))

    def reopen(self, backing):
        return replace(backing.recipe).backing()

    def _made(self, state):
        backing = state.backing()
        backing.recipe = state
        return backing


class _OneServer(_RedisConformance):
    @pytest.fixture(autouse=True)
    def _server(self, redis_server):
        self.url = redis_server.url
        redis_server.roundtrip(b"FLUSHALL\r\n")  # a new state looks through all keys


class TestStrings(_OneServer):
    pass


class TestHash(_OneServer):
    options: ClassVar[dict[str, Any]] = {"layout": "hash"}


class _InSlots:
    """What holds for each slot does not hold for all at once: they are scripts of their own."""

    def test_combining_a_batch_behind_a_record_is_refused_and_changes_nothing(self):
        pytest.skip("a slot without the newer record is written; the record says by which attempt")


class TestSlots(_InSlots, _OneServer):
    options: ClassVar[dict[str, Any]] = {"slots": 4}


class TestCluster(_InSlots, _RedisConformance):
    options: ClassVar[dict[str, Any]] = {"slots": 16, "cluster": True}
    many = 10_000

    @pytest.fixture(autouse=True)
    def _cluster(self, redis_cluster):
        self.url = redis_cluster.url
        for node in redis_cluster.nodes:
            node.roundtrip(b"FLUSHALL\r\n")


class TestThroughALossyNetwork(_RedisConformance):
    many = 10_000

    @pytest.fixture(autouse=True)
    def _proxied_server(self, redis_server):
        redis_server.roundtrip(b"FLUSHALL\r\n")
        with FaultProxy(redis_server.host, redis_server.port) as proxy:
            self.proxy = proxy
            self.url = f"redis://127.0.0.1:{proxy.port}/0"
            yield


class TestSlotsThroughALossyNetwork(_InSlots, TestThroughALossyNetwork):
    options: ClassVar[dict[str, Any]] = {"slots": 3, "layout": "hash"}
