"""Writes under a header that Redis watches: what comes between the look and the write."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis

from tests.state.redis_support import counting, driver, read
from waterspout._config import Config
from waterspout.errors import FencedError, SerdeError, StoreError
from waterspout.state._base import StateKind
from waterspout.state._kinds import OpaqueValue
from waterspout.state.redis import _map as redis_map
from waterspout.state.redis._client import LentConnection
from waterspout.testing._batches import Add
from waterspout.testing._proxy import FaultProxy
from waterspout.trident import Sum

pytestmark = pytest.mark.services

WORDS = [f"w{n}" for n in range(6)]  # three chunks of two
EDGE = 2**63 - 1
HOW = pytest.mark.parametrize("combine", [None, Sum()], ids=["update", "combine"])
BOTH = pytest.mark.parametrize("layout", ["string", "hash"])
EACH_CHUNK = pytest.mark.parametrize("chunk", [0, 1, 2])


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(redis_map, "WATCHED_KEYS", 2)
    monkeypatch.setattr(redis_map, "_FEW", 0)


@pytest.fixture
def url(redis_server):
    redis_server.roundtrip(b"FLUSHALL\r\n")  # a new state looks through all keys
    return redis_server.url


@pytest.fixture
def raw(url):
    with redis.Redis.from_url(url, decode_responses=True, protocol=2) as client:
        yield client


@pytest.fixture
def proxy(redis_server):
    redis_server.roundtrip(b"FLUSHALL\r\n")
    with FaultProxy(redis_server.host, redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def before_write(monkeypatch):
    """Let something happen just before the transaction of one chunk is sent."""
    acts = {}
    send, seen = LentConnection.send, [0]

    def sending(session, commands):
        if b"*1\r\n$5\r\nMULTI\r\n" in commands:
            act = acts.pop(seen[0], None)
            seen[0] += 1
            if act is not None:
                act()
        send(session, commands)

    monkeypatch.setattr(LentConnection, "send", sending)

    def arm(chunk, act):
        seen[0] = 0
        acts[chunk] = act

    return arm


@pytest.fixture
def after_write(monkeypatch):
    """Let something happen when one chunk is written, and before the next look at the header."""
    acts, seen = {}, [0]
    send = LentConnection.send

    def sending(session, commands):
        done = b"*1\r\n$4\r\nEXEC\r\n"
        act = acts.pop(seen[0], None) if done in commands else None
        seen[0] += done in commands
        if act is None:
            send(session, commands)
            return
        until = commands.index(done) + 1
        send(session, commands[:until])
        act()
        send(session, commands[until:])

    monkeypatch.setattr(LentConnection, "send", sending)

    def arm(chunk, act):
        seen[0] = 0
        acts[chunk] = act

    return arm


def all_of(number):
    return dict.fromkeys(WORDS, number)


@HOW
@BOTH
@EACH_CHUNK
def test_an_attempt_that_is_replaced_after_its_look_writes_no_more(
    url, before_write, layout, combine, chunk
):
    batches = driver(counting(url, layout=layout), combine=combine)
    batches.commit(all_of(1))
    batches.claim()
    zombie = replace(batches)
    before_write(chunk, batches.claim)

    with pytest.raises(FencedError, match=r"batch 2 attempt 0 .* at batch 2 attempt 1"):
        zombie.write(all_of(100))

    written = [r for r in batches.state.records([(w,) for w in WORDS]) if r.txid == 2]
    assert written == [OpaqueValue(2, 0, 101, 1)] * 2 * chunk
    batches.write(all_of(10))
    batches.finish()
    assert batches.values(*WORDS) == [11] * 6


@HOW
@pytest.mark.parametrize("chunk", [0, 1])
def test_an_attempt_that_is_replaced_between_two_chunks_writes_no_more(
    url, after_write, combine, chunk
):
    batches = driver(counting(url), combine=combine)
    batches.commit(all_of(1))
    batches.claim()
    zombie = replace(batches)
    after_write(chunk, batches.claim)

    with pytest.raises(FencedError, match=r"batch 2 attempt 0 .* at batch 2 attempt 1"):
        zombie.write(all_of(100))

    written = [r for r in batches.state.records([(w,) for w in WORDS]) if r.txid == 2]
    assert written == [OpaqueValue(2, 0, 101, 1)] * 2 * (chunk + 1)


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("kind", list(StateKind))
def test_an_amendment_between_two_chunks_is_not_lost(url, after_write, kind, chunk):
    state = counting(url, kind=kind)
    batches, outside = driver(state, combine=Sum()), state.make_state(Config(), 0, 1)
    batches.commit(all_of(1))
    after_write(chunk, lambda: outside.multi_update([(w,) for w in WORDS], [Add(1000)] * 6))

    batches.commit(all_of(10))

    assert batches.values(*WORDS) == [1011] * 6


@BOTH
@EACH_CHUNK
@pytest.mark.parametrize("kind", list(StateKind))
def test_an_amendment_between_the_look_and_the_write_is_not_lost(
    url, before_write, layout, kind, chunk
):
    state = counting(url, layout=layout, kind=kind)
    batches, outside = driver(state, combine=Sum()), state.make_state(Config(), 0, 1)
    batches.commit(all_of(1))
    before_write(chunk, lambda: outside.multi_update([(w,) for w in WORDS], [Add(1000)] * 6))

    batches.commit(all_of(10))

    assert batches.values(*WORDS) == [1011] * 6
    batches.commit(all_of(5))
    assert batches.values(*WORDS) == [1016] * 6


@HOW
@EACH_CHUNK
@pytest.mark.parametrize("kind", [StateKind.OPAQUE, StateKind.TRANSACTIONAL])
@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_chunk_lost_on_its_way_counts_once(proxy, before_write, kind, combine, chunk, lost):
    url = f"redis://127.0.0.1:{proxy.port}/0"
    batches = driver(counting(url, kind=kind), combine=combine)
    batches.commit(all_of(1))
    batches.claim()
    drop = proxy.drop_next_request if lost == "request" else proxy.drop_next_reply
    before_write(chunk, lambda: drop(b"EXEC"))

    batches.write(all_of(10))
    batches.finish()

    assert proxy.dropped == 1
    assert batches.values(*WORDS) == [11] * 6


@EACH_CHUNK
def test_a_plain_chunk_whose_answer_is_lost_is_not_written_again(proxy, before_write, chunk):
    state = counting(f"redis://127.0.0.1:{proxy.port}/0", kind=StateKind.NON_TRANSACTIONAL)
    batches = driver(state, combine=Sum())
    batches.commit(all_of(1))
    batches.claim()
    before_write(chunk, lambda: proxy.drop_next_reply(b"EXEC"))

    with pytest.raises(StoreError):
        batches.write(all_of(10))

    done = 2 * (chunk + 1)
    assert read(state, *WORDS) == [11] * done + [1] * (6 - done)


def test_what_is_no_plain_number_is_combined_one_by_one_beside_the_others(url, before_write):
    state = counting(url)
    batches, outside = driver(state, combine=Sum()), state.make_state(Config(), 0, 1)
    batches.commit(all_of(1))
    first = [("w0",), ("w2",)]  # of the first and of the second chunk
    state.backing().multi_put(first, [OpaqueValue(1, 0, -(2**70)), OpaqueValue(1, 0, 2**70)])
    before_write(0, lambda: outside.multi_update([("w5",)], [Add(1000)]))

    with pytest.raises(SerdeError, match=r"key \('w0',\)"):
        batches.commit(all_of(10))
    state.backing().multi_put(first, [OpaqueValue(1, 0, True), OpaqueValue(1, 0, 5)])
    batches.commit(all_of(10))

    assert batches.values(*WORDS) == [11, 11, 15, 11, 11, 1011]


def test_the_last_chunk_may_be_the_odd_one_and_leaves_nothing_watched(url, raw):
    batches = driver(counting(url), combine=Sum())
    batches.commit(all_of(1))
    batches.commit({**all_of(1), "w5": EDGE - 1})
    batches.commit({**all_of(1), "w5": -1})

    assert batches.values(*WORDS) == [3] * 5 + [EDGE - 1]
    assert [client.get("watch", "0") for client in raw.client_list()] == ["0"] * len(
        raw.client_list()
    )


def test_a_key_that_nobody_has_amended_touches_no_header(url, raw):
    state = counting(url)
    batches = driver(state, combine=Sum())
    batches.commit(all_of(1))
    header = f"{{{state.prefix}:0}}:head"

    assert raw.hget(header, "amended") is None
    state.make_state(Config(), 0, 1).multi_update([("w0",)], [Add(1)])
    assert raw.hget(header, "amended") == "1"
