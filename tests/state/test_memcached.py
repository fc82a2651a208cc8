"""Memcached states on a real server: names, sizes, tokens, heads, and the recipe."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading

import pytest

from tests.services.fixtures import provided
from tests.services.servers import MemcachedServer
from tests.state.memcached_support import (
    A,
    B,
    at,
    delete,
    factory,
    flush,
    items,
    record,
    wire,
)
from tests.state_support import Add, Batches
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.errors import (
    ConfigError,
    DamagedStoreError,
    ForeignStoreError,
    MissingDependencyError,
    NewerFormatError,
    SerdeError,
    StoreError,
    TopologyError,
)
from waterspout.state._base import StateKind
from waterspout.state._kinds import OpaqueMap
from waterspout.state.memcached import MemcachedState
from waterspout.state.memcached import _wire as memcached_wire
from waterspout.testing import FixedBatchSpout, LocalRun
from waterspout.testing._proxy import FaultProxy
from waterspout.trident import Count, TridentTopology
from waterspout.trident.plan.explain import guarantees


@pytest.fixture
def server(memcached_server):
    return flush(memcached_server)


@pytest.fixture
def proxy(server):
    with FaultProxy(*server.address) as proxy:
        yield proxy


def test_a_record_can_be_read_with_any_client(server):
    batches = Batches(factory(server).make_state(Config(), 0, 1))
    batches.commit({"the": 5})
    batches.commit({"the": 2, ("a b", 1): 1})

    hashed = "counts:#" + hashlib.blake2b(b'["a b",1]', digest_size=32).hexdigest()
    assert items(server, 'counts:["the"]', hashed) == {
        'counts:["the"]': "[2,0,7,5]",
        hashed: '["a b",1]\n[2,0,1,null]',
    }


def test_the_head_is_readable_and_has_all_that_is_checked(server):
    Batches(factory(server).make_state(Config(), 0, 1)).commit({"x": 1})

    head = json.loads(items(server, "counts:head")["counts:head"])

    assert {name: head[name] for name in ("format", "kind", "layout", "spread")} == {
        "format": 1,
        "kind": "opaque",
        "layout": "(any key) -> value",
        "spread": 1,
    }
    assert (json.loads(head["head"])["txid"], json.loads(head["head"])["committed"]) == (1, True)


def test_the_longest_plain_name_and_the_next_one(server):
    backing = factory(server).backing()
    room = 250 - len('counts:[""]')
    fits, not_any_more = ("k" * room,), ("k" * (room + 1),)

    backing.multi_put([fits, not_any_more], [record(1), record(2)])

    assert backing.multi_get([fits, not_any_more]) == [record(1), record(2)]
    assert items(server, f'counts:["{"k" * room}"]') == {f'counts:["{"k" * room}"]': "[1,0,1,null]"}


def test_two_keys_with_one_hash_are_refused_not_confused(server, monkeypatch):
    class Weak:
        def __init__(self, *args, **kwargs):
            pass

        def hexdigest(self):
            return "0" * 64

    monkeypatch.setattr(hashlib, "blake2b", Weak)
    backing = factory(server).backing()
    backing.multi_put([("a b",)], [record(1)])

    with pytest.raises(DamagedStoreError, match=r"hash of key \('c d',\) stands another key"):
        backing.multi_get([("c d",)])
    assert backing.multi_compare_and_put([("c d",)], [None], [record(2)]) == [False]
    assert backing.multi_get([("a b",)]) == [record(1)]


@pytest.mark.parametrize("text", ["", "[1,0", "[1,0,2]", "7", "\x80", '["a",0,1,null]'])
def test_what_cannot_be_read_is_an_error_that_names_the_key_never_none(server, text):
    backing = factory(server).backing()
    name = b'counts:["a"]'
    wire(server).store([memcached_wire.Command("set", name, text.encode("latin-1"))])

    with pytest.raises(DamagedStoreError, match=r"under key \('a',\)"):
        backing.multi_get([A])


def test_a_value_that_is_too_large_is_refused_before_anything_is_written(server):
    backing = factory(server).backing()
    backing.multi_put([A, B], [record(1), record(2)])
    large = record("x" * 1_048_576, txid=2)

    for put in (
        lambda: backing.multi_put([A, B], [record(3), large]),
        lambda: backing.multi_compare_and_put([A, B], [record(1), record(2)], [record(3), large]),
    ):
        with pytest.raises(SerdeError, match=r"\"b\".*1048\d{3} bytes.*option -I"):
            put()
        assert backing.multi_get([A, B]) == [record(1), record(2)]


def test_a_value_just_under_the_limit_is_kept(server):
    backing = factory(server).backing()
    value = "x" * (wire(server).item_limit() - len('counts:["a"]' + '[1,0,"",null]'))
    backing.multi_put([A], [record(value)])

    assert backing.multi_get([A]) == [record(value)]
    with pytest.raises(SerdeError, match="bytes are more than"):
        backing.multi_put([A], [record(value + "x")])


@pytest.mark.parametrize("expire_secs", [0, 60, 40 * 24 * 3600])
def test_expiry_is_from_now_however_long(server, expire_secs):
    backing = factory(server, expire_secs=expire_secs).backing()
    backing.move_head(None, at(1))
    backing.fenced_put(at(1).stamp, [A], [record(1)])

    left = {
        name: int(wire(server)._read(b"mg %b t\r\n" % name.encode(), memcached_wire._read_line)[4:])
        for name in ('counts:["a"]', "counts:head")
    }

    assert left["counts:head"] == -1
    assert left['counts:["a"]'] == (-1 if not expire_secs else pytest.approx(expire_secs, abs=10))


def test_a_thousand_keys_are_read_in_one_round_trip_and_written_in_another(server, proxy):
    backing = MemcachedState.opaque(f"127.0.0.1:{proxy.port}", prefix="counts").backing()
    keys = [(n,) for n in range(1000)]
    backing.multi_get(keys)
    before = proxy.requests

    read = backing.multi_get(keys)
    assert proxy.requests - before == 1
    assert (
        backing.multi_compare_and_put(keys, read, [record(n) for n in range(1000)]) == [True] * 1000
    )
    assert proxy.requests - before == 2
    read = backing.multi_get(keys)
    backing.multi_compare_and_put(keys, read, [record(n, 2) for n in range(1000)])
    assert proxy.requests - before == 4
    assert proxy.connections == 1


def test_memory_for_tokens_is_bounded(server, monkeypatch):
    monkeypatch.setattr("waterspout.state.memcached._state._TOKENS_MAX", 10)
    backing = factory(server).backing()
    keys = [(n,) for n in range(25)]
    backing.multi_put(keys, [record(n) for n in range(25)])
    for key in keys:
        backing.multi_get([key])

    assert len(backing._seen) <= 10
    read = [record(n) for n in range(25)]
    assert backing.multi_compare_and_put(keys, read, [record(0, 2)] * 25) == [True] * 25


def test_keys_cannot_be_listed(server):
    with pytest.raises(StoreError, match="memcached cannot list its keys"):
        factory(server).backing().scan()


def test_a_record_is_compared_though_this_map_has_not_read_it(server):
    backing = factory(server).backing()
    factory(server).backing().multi_put([A, B], [record(1), record(2)])

    stored = backing.multi_compare_and_put([A, B], [record(1), record(1)], [record(5), record(5)])

    assert stored == [True, False]
    assert backing.multi_get([A, B]) == [record(5), record(2)]


def test_a_record_that_came_back_to_what_it_was_counts_as_written(server):
    mine, other = factory(server).backing(), factory(server).backing()
    mine.multi_put([A], [record(1)])
    mine.multi_get([A])
    other.multi_put([A, A], [record(2), record(1)])

    assert mine.multi_compare_and_put([A], [record(1)], [record(5)]) == [False]


def test_an_item_that_has_vanished_since_is_not_written(server):
    backing = factory(server).backing()
    backing.multi_put([A], [record(1)])
    backing.multi_get([A])
    delete(server, 'counts:["a"]')

    assert backing.multi_compare_and_put([A], [record(1)], [record(5)]) == [False]
    assert backing.multi_get([A]) == [None]


def test_many_who_add_at_once_lose_nothing(server):
    def add():
        state = OpaqueMap(factory(server).backing())
        for _ in range(50):
            state.multi_update([A, B], [Add(1), Add(2)])

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert OpaqueMap(factory(server).backing()).multi_get([A, B]) == [200, 400]


def test_through_a_cache_the_same_values_come_out(server):
    batches = Batches(factory(server, cache=10).make_state(Config(), 0, 1))
    for _ in range(3):
        batches.commit({"x": 1, "y": 2})
    batches.lose({"x": 100, "z": 100})
    batches.commit({"x": 1})

    assert batches.values("x", "y", "z") == [4, 6, None]


def test_another_kind_or_layout_is_refused(server):
    Batches(factory(server).make_state(Config(), 0, 1)).commit({"x": 1})

    other = MemcachedState.transactional(server.address, prefix="counts")
    with pytest.raises(ForeignStoreError, match=r"is an opaque state of .* wants a transactional"):
        other.check()
    bound = factory(server).bind(Schema.parse("word string"), Schema.parse("n bigint"))
    with pytest.raises(ForeignStoreError, match="Use another prefix"):
        bound.check()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"format": 2}, NewerFormatError, "format 2, this one knows 1"),
        ({"spread": 7}, DamagedStoreError, "does not match its checksum"),
        ({"checksum": "0"}, DamagedStoreError, "does not match its checksum"),
        (None, ForeignStoreError, "waterspout did not make it"),
    ],
)
def test_a_head_that_is_not_ours_stops_us(server, change, error, words):
    Batches(factory(server).make_state(Config(), 0, 1)).commit({"x": 1})
    data = "hello"
    if change is not None:
        data = json.dumps(json.loads(items(server, "counts:head")["counts:head"]) | change)
    wire(server).store([memcached_wire.Command("set", b"counts:head", data.encode())])

    with pytest.raises(error, match=words):
        factory(server).check()


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("cache", "cache:11211"),
        ("cache:1", "cache:1"),
        ("[::1]:7", "::1:7"),
        ("[::1]", "::1:11211"),
        (("cache", 2), "cache:2"),
        ("a:1, b:2", "a:1,b:2"),
        (["a:1", ("b", 2), "c"], "a:1,b:2,c:11211"),
    ],
)
def test_servers_are_given_in_several_ways(servers, expected):
    state = MemcachedState.opaque(servers, prefix="counts")

    assert state.location() == f"memcached:{expected}#counts"


@pytest.mark.parametrize(
    ("servers", "options", "words"),
    [
        ([], {}, "names no memcached server"),
        ("", {}, "names no memcached server"),
        ("a:b", {}, "names no memcached server"),
        (("a", 0), {}, "names no memcached server"),
        (("a", 70000), {}, "names no memcached server"),
        (None, {}, "names no memcached server"),
        (["a:1", "a:1"], {}, "stands twice"),
        ("a", {"prefix": "a b"}, "cannot be a prefix"),
        ("a", {"prefix": ""}, "cannot be a prefix"),
        ("a", {"prefix": "x" * 101}, "cannot be a prefix"),
        ("a", {"expire_secs": -1}, "expire_secs is"),
        ("a", {"expire_secs": True}, "expire_secs is"),
        ("a", {"timeout_secs": 0}, "timeout_secs is"),
        ("a", {"connect_timeout_secs": "1"}, "connect_timeout_secs is"),
        ("a", {"cache": -1}, "cache is"),
    ],
)
def test_bad_arguments_are_refused_at_once(servers, options, words):
    with pytest.raises(ConfigError, match=words):
        MemcachedState.opaque(servers, **{"prefix": "counts", **options})


def test_a_recipe_travels_and_says_what_it_is():
    state = MemcachedState.transactional(["a:1", "b:2"], prefix="counts", cache=5)

    assert pickle.loads(pickle.dumps(state)) == state
    assert state.kind is StateKind.TRANSACTIONAL
    assert state.title == "memcached state 'counts' at a:1, b:2"
    assert state.identity() == {
        "backend": "memcached",
        "kind": "transactional",
        "prefix": "counts",
        "servers": 2,
        "layout": "(any key) -> value",
    }
    assert not state.backing().undoes_lost_attempts


def test_without_pymemcache_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymemcache", None)

    with pytest.raises(MissingDependencyError, match=r"waterspout\[memcached\]"):
        MemcachedState.opaque("a", prefix="counts")


CHILD = """
import os, sys
from waterspout.state.memcached import MemcachedState
from waterspout.state._kinds import OpaqueValue
backing = MemcachedState.opaque(("127.0.0.1", int(sys.argv[1])), prefix="counts").backing()
backing.multi_put([("n",)], [OpaqueValue(1, 0, 0, None)])
pid = os.fork()
for n in range(200):
    key = ("child" if pid == 0 else "parent",)
    backing.multi_put([key], [OpaqueValue(1, 0, n, None)])
    assert backing.multi_get([key]) == [OpaqueValue(1, 0, n, None)]
if pid == 0:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_forked_process_uses_connections_of_its_own(server):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHILD, str(server.port)],
        capture_output=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": "src"},
    )

    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("refuses", [True, False], ids=["-M", "as installed"])
def test_a_server_that_evicts_makes_a_state_not_exact(refuses):
    topology = TridentTopology("evicted")
    words = topology.new_stream("words", FixedBatchSpout("word string", 1, [["a"]]))
    with provided("memcached", lambda: MemcachedServer(evicts=not refuses)) as server:
        state = MemcachedState.opaque(server.address, prefix="evicted")
        words.group_by("word").persistent_aggregate(state, Count(), "n")
        if refuses:
            LocalRun(topology, Config(strict=True)).close()
            return
        with pytest.raises(TopologyError) as refused:
            LocalRun(topology, Config(strict=True))
        run = LocalRun(topology)
        run.close()
    host, port = server.address
    why = (
        f"memcached at {host}:{port} evicts keys when its memory is full, and they start anew, as "
        "if they had never been counted"
    )
    assert f": not exactly-once: {why}" in guarantees(run.plan)[0]
    assert str(refused.value) == (
        f"strict=True refuses state1: not exactly-once, because {why}. Start it with -M, so that "
        "it refuses instead, or leave strict off."
    )
