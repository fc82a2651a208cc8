"""Redis states beyond the kit: secrets, foreign content, expiry, dying servers."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import time
from dataclasses import replace
from itertools import pairwise
from uuid import uuid4

import pytest
import redis

from tests.services.fixtures import provided
from tests.services.servers import RedisServer
from tests.state.redis_support import NUMBERS, OTHERS, WORDS, at, counting, driver, read
from waterspout._config import Config
from waterspout.errors import (
    ConfigError,
    DamagedStoreError,
    FencedError,
    ForeignStoreError,
    MissingDependencyError,
    NewerFormatError,
    StateMismatchError,
    StoreError,
    TopologyError,
)
from waterspout.state._base import StateKind
from waterspout.state._kinds import OpaqueValue
from waterspout.state.redis import RedisState
from waterspout.testing import FixedBatchSpout, LocalRun
from waterspout.testing._batches import Add
from waterspout.testing._proxy import FaultProxy
from waterspout.trident import Count, Sum, TridentTopology
from waterspout.trident.plan.explain import guarantees

pytestmark = pytest.mark.services

BOTH = pytest.mark.parametrize("layout", ["string", "hash"])


@pytest.fixture
def url(redis_server):
    redis_server.roundtrip(b"FLUSHALL\r\n")  # a new state looks through all keys
    return redis_server.url


@pytest.fixture
def raw(url):
    with redis.Redis.from_url(url, decode_responses=True, protocol=2) as client:
        yield client


@pytest.fixture
def own_server():
    """A server that a test may kill."""
    with provided("redis", RedisServer) as server:
        yield server


@pytest.fixture
def proxy(redis_server):
    with FaultProxy(redis_server.host, redis_server.port) as proxy:
        yield proxy


def through(proxy):
    return f"redis://127.0.0.1:{proxy.port}/0"


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"prefix": "a b"}, TopologyError, "cannot be a prefix"),
        ({"prefix": "a}"}, TopologyError, "cannot be a prefix"),
        ({"prefix": "*"}, TopologyError, "cannot be a prefix"),
        ({"prefix": ""}, TopologyError, "cannot be a prefix"),
        ({"url": "http://db"}, ConfigError, "must begin with redis://"),
        ({"layout": "list"}, ConfigError, "'string' or 'hash', not 'list'"),
        ({"slots": 0}, ConfigError, "from 1 to 16384, not 0"),
        ({"slots": True}, ConfigError, "from 1 to 16384, not True"),
        ({"expire_secs": 0}, ConfigError, "expire_secs is a number of seconds above 0"),
        ({"timeout_secs": None}, ConfigError, "timeout_secs is a number of seconds above 0"),
        ({"expire_secs": 5, "layout": "hash"}, ConfigError, "fields of a hash do not expire"),
        ({"cache": -1}, ConfigError, "cache is a number of records"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused_at_once(options, error, says):
    with pytest.raises(error, match=says):
        RedisState.opaque(**{"url": "redis://db", "prefix": "words", **options})


def test_a_missing_library_is_named_when_the_recipe_is_made(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)

    with pytest.raises(MissingDependencyError, match=r"waterspout\[redis\]"):
        RedisState.opaque("redis://db", prefix="words")


def test_slots_and_layout_are_part_of_the_identity():
    state = RedisState.opaque("redis://me:hunter2@db/0", prefix="words", slots=4, layout="hash")

    assert state.bind(WORDS, NUMBERS).identity() == {
        "backend": "redis",
        "kind": "opaque",
        "prefix": "words",
        "records": "hash",
        "slots": 4,
        "layout": "word string -> n bigint",
    }
    assert state.location() == "redis://db/0#words"
    assert state.weakness is None
    assert "expires" in str(RedisState.opaque("redis://db", prefix="w", expire_secs=9).weakness)
    assert pickle.loads(pickle.dumps(state)) == state


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:hunter2@127.0.0.1:1/0",
        "redis://:hunter2@127.0.0.1:1/0",
        "redis://127.0.0.1:1/0?password=hunter2",
        "redis://:ab%2Fhunter2@127.0.0.1:1/0",
        "rediss://me:hunter2@127.0.0.1:1/0",
    ],
)
def test_a_password_is_not_shown_anywhere(url):
    state = RedisState.opaque(url, prefix="words", timeout_secs=1)
    backing = state.backing()

    with pytest.raises((StoreError, ConfigError)) as caught:
        backing.read_head()

    error = caught.value
    shown = [repr(state), str(state), state.title, state.location(), repr(state.identity())]
    shown += [repr(backing), repr(backing._client), str(error), repr(error), str(error.__cause__)]
    assert [text for text in shown if "hunter2" in text] == []


def test_a_wrong_password_is_not_quoted_back(own_server):
    own_server.roundtrip(b"CONFIG SET requirepass right\r\n")
    state = RedisState.opaque(own_server.url.replace("//", "//:hunter2@"), prefix="words")

    with pytest.raises(StoreError, match="the right user, password") as caught:
        state.backing().read_head()

    assert "hunter2" not in str(caught.value)


def test_a_password_comes_from_the_environment_where_it_is_used(own_server, monkeypatch):
    own_server.roundtrip(b"CONFIG SET requirepass right\r\n")
    state = RedisState.opaque(own_server.url.replace("//", "//:${SECRET_WORD}@"), prefix="words")
    with pytest.raises(ConfigError, match="SECRET_WORD, which is not set"):
        state.backing().read_head()
    monkeypatch.setenv("SECRET_WORD", "right")

    batches = driver(state)
    batches.commit({"a": 1})

    assert batches.values("a") == [1]


def test_keys_without_a_header_are_somebody_elses(url, raw):
    state = counting(url)
    raw.set(f"{{{state.prefix}:0}}:k:theirs", "1")

    for act in (state.check, driver(state).claim):
        with pytest.raises(ForeignStoreError, match=r"'{.*:0}:k:theirs', but no header"):
            act()
    with pytest.raises(ForeignStoreError):
        state.backing().multi_put([("a",)], [OpaqueValue(1, 0, 1)])


def test_a_header_of_another_make_is_refused(url, raw):
    for put in (lambda k: raw.set(k, "1"), lambda k: raw.hset(k, "mine", "1")):
        state = counting(url)
        put(f"{{{state.prefix}:0}}:head")

        with pytest.raises(ForeignStoreError, match="waterspout did not make"):
            state.check()


@pytest.mark.parametrize(
    "other",
    [{"kind": StateKind.TRANSACTIONAL}, {"layout": "hash"}, {"slots": 2}, {"values": OTHERS}],
    ids=["kind", "layout", "slots", "columns"],
)
def test_a_state_of_another_kind_or_layout_is_refused(url, other):
    state = counting(url)
    driver(state).commit({"a": 1})
    another = replace(state, **other)

    with pytest.raises(ForeignStoreError, match="is an opaque state of string layout, slots 1"):
        another.check()
    with pytest.raises(ForeignStoreError):
        another.backing().multi_put([("a",)], [OpaqueValue(1, 0, 1)])
    with pytest.raises(ForeignStoreError):
        another.backing().fenced_put(at(1).stamp, [("a",)], [OpaqueValue(1, 0, 1)])


def test_another_topology_is_refused(url):
    state = counting(url)
    driver(state).commit({"a": 1})

    with pytest.raises(ForeignStoreError, match="belongs to topology"):
        driver(state, owner="another").claim()


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("head", "{}", DamagedStoreError),
        ("fence", "x", DamagedStoreError),
        ("checksum", "x", DamagedStoreError),
        ("format", "x", DamagedStoreError),
        ("format", "2", NewerFormatError),
    ],
)
def test_a_header_that_was_tampered_with_is_found_out(url, raw, name, text, error):
    state = counting(url)
    driver(state).commit({"a": 1})
    raw.hset(f"{{{state.prefix}:0}}:head", name, text)

    with pytest.raises(error):
        state.check()
    with pytest.raises(error):
        state.backing().fenced_put(at(1).stamp, [("a",)], [OpaqueValue(1, 0, 1)])


@BOTH
@pytest.mark.parametrize("text", ["", "[1,0", "[1,0,5]", "x", "[1,0,5,"])
def test_a_damaged_record_is_named_and_never_taken_for_none(url, raw, layout, text):
    state = counting(url, layout=layout)
    batches = driver(state, combine=Sum())
    batches.commit({"good": 1, "bad": 1})
    tag = f"{{{state.prefix}:0}}"
    if layout == "hash":
        raw.hset(f"{tag}:h", '["bad"]', text)
    else:
        raw.set(f'{tag}:k:["bad"]', text)

    for act in (
        lambda: batches.values("bad"),
        lambda: list(state.backing().scan()),
        lambda: batches.lose({"good": 1, "bad": 1}),
    ):
        with pytest.raises(DamagedStoreError, match="bad"):
            act()


@BOTH
def test_a_prefix_that_begins_like_another_is_another(url, layout):
    names = [uuid4().hex]
    names += [f"{names[0]}:1", f"{names[0]}:k"]
    states = [counting(url, prefix=name, layout=layout) for name in names]
    for n, state in enumerate(states):
        driver(state).commit({"a": n})

    found = [list(state.make_state(Config(), 0, 1).scan()) for state in states]

    assert found == [[[(("a",), n)]] for n in range(3)]


def test_check_is_silent_where_the_server_keeps_what_it_acknowledged(url, caplog):
    with caplog.at_level(logging.WARNING):
        counting(url).check()

    assert caplog.messages == []


def test_check_warns_of_a_server_that_may_lose_what_it_acknowledged(own_server, caplog):
    for setting in ("appendonly no", "appendfsync everysec", "maxmemory-policy allkeys-lru"):
        own_server.roundtrip(f"CONFIG SET {setting}\r\n".encode())
    state = counting(own_server.url, prefix="words")

    with caplog.at_level(logging.WARNING):
        state.check()

    assert [text.partition("; ")[0].partition("has ")[2] for text in caplog.messages] == [
        "appendonly no",
        "appendfsync everysec",
        "maxmemory-policy allkeys-lru",
    ]


@pytest.mark.parametrize(
    ("policy", "expire_secs", "is_safe"),
    [
        ("noeviction", None, True),
        ("noeviction", 60, True),
        ("allkeys-lru", None, False),
        ("allkeys-random", 60, False),
        ("volatile-ttl", None, True),
        ("volatile-ttl", 60, False),
    ],
)
def test_a_server_that_evicts_keys_makes_a_state_not_exact(
    own_server, policy, expire_secs, is_safe
):
    own_server.roundtrip(f"CONFIG SET maxmemory-policy {policy}\r\n".encode())
    # A server that forbids the question after its settings still tells this one.
    own_server.roundtrip(b"ACL SETUSER limited on >word allkeys +@all -config\r\n")
    url = own_server.url.replace("//", "//limited:word@")
    topology = TridentTopology("evicted")
    words = topology.new_stream("words", FixedBatchSpout("word string", 1, [["a"]]))
    state = RedisState.opaque(url, prefix=uuid4().hex, expire_secs=expire_secs)
    words.group_by("word").persistent_aggregate(state, Count(), "n")

    if is_safe:
        LocalRun(topology, Config(strict=True)).close()
        return
    run = LocalRun(topology)
    run.close()
    why = (
        f"the server has maxmemory-policy {policy}: a key that it evicts starts anew, as if it "
        "had never been counted"
    )
    assert f": not exactly-once: {why}" in guarantees(run.plan)[0]
    with pytest.raises(TopologyError) as refused:
        LocalRun(topology, Config(strict=True))
    assert str(refused.value) == (
        f"strict=True refuses state1: not exactly-once, because {why}. Set its maxmemory-policy to "
        "noeviction, or leave strict off."
    )


def test_a_server_that_does_not_say_whether_it_evicts_is_told_of(own_server, caplog):
    own_server.roundtrip(b"ACL SETUSER silent on >word allkeys +@all -config -info\r\n")
    state = counting(own_server.url.replace("//", "//silent:word@"))

    with caplog.at_level(logging.WARNING):
        assert state.ask_risk() is None

    (told,) = caplog.messages
    assert "does not say whether it evicts keys" in told


def test_every_server_of_a_cluster_is_asked_whether_it_evicts(redis_cluster):
    state = counting(redis_cluster.url, cluster=True, slots=4)
    assert state.ask_risk() is None
    last = redis_cluster.nodes[-1]

    last.roundtrip(b"CONFIG SET maxmemory-policy allkeys-lfu\r\n")
    try:
        found = state.ask_risk()
    finally:
        last.roundtrip(b"CONFIG SET maxmemory-policy noeviction\r\n")

    assert found is not None
    assert "allkeys-lfu" in found.why


def test_check_tells_of_a_server_that_keeps_its_settings_to_itself(own_server, caplog):
    own_server.roundtrip(b"ACL SETUSER limited on >word allkeys +@all -config\r\n")
    state = counting(own_server.url.replace("//", "//limited:word@"))

    with caplog.at_level(logging.WARNING):
        state.check()
    driver(state).commit({"a": 1})

    (told,) = caplog.messages
    assert "does not tell its settings (CONFIG is forbidden)" in told


@BOTH
def test_a_restart_between_two_batches_is_not_noticed(own_server, layout):
    batches = driver(counting(own_server.url, layout=layout), combine=Sum())
    batches.commit({"a": 1})
    own_server.restart()
    batches.commit({"a": 2, "b": 2})
    own_server.kill()
    own_server.start()
    batches.commit({"a": 4})

    assert batches.values("a", "b") == [7, 2]


@pytest.mark.parametrize("combine", [None, Sum()], ids=["update", "combine"])
def test_a_server_killed_in_the_middle_of_a_batch_has_it_replayed(own_server, combine):
    state = counting(own_server.url, timeout_secs=5)
    batches = driver(state, combine=combine)
    batches.commit({"a": 1})
    batches.lose({"a": 10, "b": 10})
    own_server.kill()
    with pytest.raises(StoreError, match="cannot be used"):
        batches.write({"a": 10})
    with pytest.raises(StoreError):
        read(state, "a")
    own_server.start()

    batches.commit({"a": 2})

    assert batches.values("a", "b") == [3, None]


@pytest.mark.parametrize("slots", [1, 3])
def test_a_wiped_server_stops_the_run(own_server, slots):
    batches = driver(counting(own_server.url, slots=slots))
    batches.commit({"a": 1})
    own_server.roundtrip(b"FLUSHALL\r\n")

    with pytest.raises(StateMismatchError, match="is empty, but 1 batches were committed"):
        batches.claim()


def test_a_server_restored_from_an_older_copy_stops_the_run(url, raw):
    state = counting(url)
    batches = driver(state)
    batches.commit({"a": 1})
    header = f"{{{state.prefix}:0}}:head"
    copy = raw.hgetall(header)
    batches.commit({"a": 1})
    batches.commit({"a": 1})
    raw.hset(header, mapping=copy)

    with pytest.raises(StateMismatchError, match="restored from an older copy"):
        batches.claim()


def test_a_server_that_forgot_its_scripts_is_told_them_again(url, raw):
    batches = driver(counting(url), combine=Sum())
    for _ in range(3):
        batches.commit({"a": 1})
        raw.script_flush()

    assert batches.values("a") == [3]


def test_a_server_that_does_not_answer_is_given_up_on(proxy):
    batches = driver(counting(through(proxy), timeout_secs=0.3))
    batches.commit({"a": 1})
    proxy.hang()
    begun = time.monotonic()

    with pytest.raises(StoreError, match="cannot be used"):
        batches.claim()

    assert time.monotonic() - begun < 5


@BOTH
@pytest.mark.parametrize("combine", [None, Sum()], ids=["update", "combine"])
def test_a_write_whose_answer_is_lost_is_sent_again_and_counts_once(proxy, layout, combine):
    batches = driver(counting(through(proxy), layout=layout), combine=combine)
    batches.commit({"a": 1})
    batches.commit({"a": 1})
    batches.claim()

    proxy.drop_next_reply(matching=b"EVALSHA" if combine is None else b"EXEC")
    batches.write({"a": 10, "b": 10})
    assert proxy.dropped == 1
    batches.mark()
    batches.settle()

    assert batches.values("a", "b") == [12, 10]


def test_a_head_whose_move_was_done_but_not_answered_has_moved(proxy):
    batches = driver(counting(through(proxy)))
    batches.commit({"a": 1})

    proxy.drop_next_reply(matching=b"EVALSHA")
    batches.claim()
    batches.write({"a": 10})
    batches.mark()
    proxy.drop_next_reply(matching=b"EVALSHA")
    batches.settle()

    assert proxy.dropped == 2
    assert batches.values("a") == [11]


def test_an_amendment_whose_answer_is_lost_is_not_made_twice(proxy):
    state = counting(through(proxy))
    batches, outside = driver(state), state.make_state(Config(), 0, 1)
    batches.commit({"a": 1})
    outside.multi_update([("a",)], [Add(10)])

    proxy.drop_next_reply(matching=b"EVALSHA")
    with pytest.raises(StoreError):
        outside.multi_update([("a",)], [Add(100)])

    assert batches.values("a") == [111]


def test_a_plain_combine_whose_answer_is_lost_is_not_sent_again(proxy):
    state = counting(through(proxy), kind=StateKind.NON_TRANSACTIONAL)
    batches = driver(state, combine=Sum())
    batches.commit({"a": 1})
    batches.claim()

    proxy.drop_next_reply(matching=b"EXEC")
    with pytest.raises(StoreError):
        batches.write({"a": 10})

    assert read(state, "a") == [11]


@pytest.mark.parametrize("combine", [None, Sum()], ids=["update", "combine"])
def test_a_batch_of_a_thousand_keys_takes_six_round_trips(proxy, combine):
    batches = driver(counting(through(proxy)), combine=combine)
    updates = {f"word {n}": n for n in range(1000)}
    batches.commit(updates)
    batches.commit(updates)

    counts = [proxy.requests]
    for step in (batches.claim, lambda: batches.write(updates), batches.mark, batches.settle):
        step()
        counts.append(proxy.requests)

    assert [b - a for a, b in pairwise(counts)] == [2, 2, 0, 2]


def test_states_of_one_process_share_their_connections(proxy):
    state = counting(through(proxy))
    for n in range(5):
        made = pickle.loads(pickle.dumps(state)).make_state(Config(), n, 5)
        made.read_head()
        made.close()

    assert proxy.connections == 1


def test_a_forked_process_does_not_use_its_parents_connections(url, monkeypatch):
    client = counting(url).backing()._client
    mine, pid = client.connection, os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)

    assert client.connection is not mine
    client.connection.close()
    monkeypatch.undo()
    assert client.connection is mine


@BOTH
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("combine", [None, Sum()], ids=["update", "combine"])
def test_a_zombie_changes_nothing_and_is_told_both_stamps(url, layout, slots, combine):
    state = counting(url, layout=layout, slots=slots)
    batches = driver(state, combine=combine)
    batches.commit({"a": 1, "b": 1, "c": 1})
    batches.claim()
    zombie = replace(batches, state=state.make_state(Config(), 1, 2))
    batches.claim()
    batches.write({"a": 10})

    says = r"batch 2 attempt 0 .* was refused; the state is at batch 2 attempt 1"
    with pytest.raises(FencedError, match=says):
        zombie.write({"a": 100, "b": 100, "d": 100})
    batches.mark()
    batches.settle()
    with pytest.raises(FencedError, match=r"attempt 1 .*, committed"):
        zombie.write({"a": 100, "b": 100, "d": 100})

    assert batches.values("a", "b", "c", "d") == [11, 1, 1, None]


@pytest.mark.parametrize("combine", [None, Sum()], ids=["update", "combine"])
def test_every_write_renews_the_life_of_its_key_and_of_no_other(url, raw, combine):
    state = counting(url, expire_secs=600)
    batches = driver(state, combine=combine)
    batches.commit({"a": 1, "b": 1})
    tag = f"{{{state.prefix}:0}}"
    a, b = f'{tag}:k:["a"]', f'{tag}:k:["b"]'
    assert 590_000 < raw.pttl(a) <= 600_000
    raw.pexpire(a, 1000)
    raw.pexpire(b, 100_000)

    batches.commit({"a": 1})

    assert 590_000 < raw.pttl(a) <= 600_000
    assert raw.pttl(b) <= 100_000
    assert raw.pttl(f"{tag}:head") == -1


def test_a_key_that_has_expired_starts_anew(url, raw):
    state = counting(url, expire_secs=600)
    batches = driver(state, combine=Sum())
    batches.commit({"a": 1, "b": 1})
    raw.pexpire(f'{{{state.prefix}:0}}:k:["a"]', 0)

    batches.commit({"a": 5, "b": 5})

    assert batches.values("a", "b") == [5, 6]


@BOTH
def test_a_cluster_has_the_keys_on_several_nodes_and_is_exact(redis_cluster, layout):
    state = counting(redis_cluster.url, layout=layout, slots=16, cluster=True)
    state.check()
    words = [f"word {n}" for n in range(200)]
    batches = driver(state, combine=Sum())
    batches.commit(dict.fromkeys(words, 1))
    batches.claim()
    zombie = replace(batches, state=state.make_state(Config(), 1, 2))
    zombie.write(dict.fromkeys(words[:150], 1000))
    batches.lose(dict.fromkeys(words[50:], 100))
    with pytest.raises(FencedError):
        zombie.write(dict.fromkeys(words, 1000))
    batches.commit(dict.fromkeys(words[:100], 10))
    batches.commit(dict.fromkeys(words[50:], 5))

    expected = [1 + 10 * (n < 100) + 5 * (n >= 50) for n in range(200)]
    assert batches.values(*words) == expected
    parts = [list(batches.state.scan(shard, 3)) for shard in range(3)]
    found = [pair for part in parts for chunk in part for pair in chunk]
    assert sorted(found) == sorted(((w,), n) for w, n in zip(words, expected, strict=True))
    held = []
    for node in redis_cluster.nodes:
        with redis.Redis(node.host, node.port, protocol=2) as client:
            held.append(len(list(client.scan_iter(f"{{{state.prefix}:*"))))
    assert all(held)
    assert sum(held) == 16 + (200 if layout == "string" else 16)
