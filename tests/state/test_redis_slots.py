"""A Redis state in several slots: crashes between two of them, and drivers that wake up."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
import redis

from tests.state.redis_support import at, counting, driver
from waterspout._config import Config
from waterspout.errors import (
    FencedError,
    ForeignStoreError,
    StateMismatchError,
)
from waterspout.state._foreach_batch import handed_over
from waterspout.state._head import Head, Stamp, Writer
from waterspout.state._kinds import OpaqueValue
from waterspout.state.redis import _scripts as redis_scripts

pytestmark = pytest.mark.services


@pytest.fixture
def url(redis_server):
    redis_server.roundtrip(b"FLUSHALL\r\n")  # a new state looks through all keys
    return redis_server.url


@pytest.fixture
def raw(url):
    with redis.Redis.from_url(url, decode_responses=True, protocol=2) as client:
        yield client


SLOTS = 4
# One word for each of the four slots.
IN_SLOT = ["w1", "w2", "w3", "w0"]


class Crash(Exception):
    """The end of a driver."""


class DyingClient:
    """Passes calls on, but of those that move slots only the first few; then it dies."""

    def __init__(self, client, moves):
        self._client, self._moves = client, moves

    def run(self, calls, *, again):
        if calls[0].script is not redis_scripts.MOVE or ":0}:" in calls[0].key:
            return self._client.run(calls, again=again)
        if self._moves:
            self._client.run(calls[: self._moves], again=again)
        raise Crash

    def __getattr__(self, name):
        return getattr(self._client, name)


def dying(state, batches, moves):
    """Return the same driver with a client that dies between slots."""
    backing = state.backing()
    backing._client = DyingClient(backing._client, moves)
    made = state.make_state(Config(), 0, 1)
    made._backing = backing
    return replace(batches, state=made)


def heads_of(state, raw):
    texts = [raw.hget(f"{{{state.prefix}:{n}}}:head", "head") for n in range(SLOTS)]
    heads = [Head.from_text(text) for text in texts]
    return [(h.stamp.writer.epoch, h.stamp.txid, h.stamp.attempt, int(h.committed)) for h in heads]


def test_every_slot_has_its_keys_and_the_same_head(url, raw):
    state = counting(url, slots=SLOTS)
    driver(state).commit(dict.fromkeys(IN_SLOT, 1))

    for slot, word in enumerate(IN_SLOT):
        assert raw.get(f'{{{state.prefix}:{slot}}}:k:["{word}"]') == "[1,0,1,null]"
    assert heads_of(state, raw) == [(1, 1, 0, 1)] * SLOTS


@pytest.mark.parametrize("moves", range(SLOTS))
@pytest.mark.parametrize("txid", [1, 2])
def test_a_crash_between_two_slots_of_a_claim_is_completed_by_the_next(url, raw, moves, txid):
    state = counting(url, slots=SLOTS)
    batches = driver(state)
    if txid == 2:
        batches.commit(dict.fromkeys(IN_SLOT, 1))
    crashed = dying(state, batches, moves)
    with pytest.raises(Crash):
        crashed.claim()
    # Whoever writes for this claim all the same is let into the slots that have moved.
    late = replace(crashed, state=state.make_state(Config(), 0, 1))
    let_in = []
    for word in IN_SLOT:
        with suppress(FencedError):
            late.write({word: 100})
            let_in.append(word)
    assert let_in == IN_SLOT[: 1 + moves]

    again = crashed.restarted(state.make_state(Config(), 0, 1))
    again.commit({IN_SLOT[1]: 10, IN_SLOT[3]: 10})

    assert heads_of(state, raw) == [(2, txid, 1, 1)] * SLOTS
    before = 1 if txid == 2 else 0
    assert [v or 0 for v in again.values(*IN_SLOT)] == [before, before + 10, before, before + 10]
    again.commit(dict.fromkeys(IN_SLOT, 1))
    assert again.values(*IN_SLOT) == [before + 1, before + 11, before + 1, before + 11]


@pytest.mark.parametrize("moves", range(SLOTS))
def test_a_paused_driver_that_goes_on_moving_slots_moves_none_back(url, raw, moves):
    state = counting(url, slots=SLOTS)
    old = driver(state)
    old.commit(dict.fromkeys(IN_SLOT, 1))
    found = state.backing()._read_slots()
    paused = dying(state, old, moves)
    with pytest.raises(Crash):
        paused.claim()
    new = paused.restarted(state.make_state(Config(), 0, 1))
    new.claim()

    with pytest.raises(FencedError, match=r"batch 2 attempt 0 .* is at batch 2 attempt 1"):
        state.backing()._move_others(found, at(2, 0))

    assert heads_of(state, raw) == [(2, 2, 1, 0)] * SLOTS
    new.write(dict.fromkeys(IN_SLOT, 10))
    new.mark()
    new.settle()
    assert new.values(*IN_SLOT) == [11] * SLOTS


def test_an_old_driver_may_move_a_slot_that_the_new_one_has_not_reached(url, raw):
    state = counting(url, slots=SLOTS)
    old = driver(state)
    old.commit(dict.fromkeys(IN_SLOT, 1))
    found = state.backing()._read_slots()
    paused = dying(state, old, 0)
    with pytest.raises(Crash):
        paused.claim()
    new = dying(state, paused.restarted(paused.state), 1)
    with pytest.raises(Crash):
        new.claim()

    with pytest.raises(FencedError):
        state.backing()._move_others(found, at(2, 0))
    assert heads_of(state, raw) == [(2, 2, 1, 0), (2, 2, 1, 0), (1, 2, 0, 0), (1, 2, 0, 0)]
    zombie = replace(paused, state=state.make_state(Config(), 0, 1))
    zombie.write({IN_SLOT[2]: 100})

    newest = new.restarted(state.make_state(Config(), 0, 1))
    newest.commit({IN_SLOT[0]: 10})
    newest.commit({IN_SLOT[2]: 1000})

    assert newest.values(*IN_SLOT) == [11, 1, 1001, 1]


@pytest.mark.parametrize("moves", range(SLOTS))
def test_a_crash_between_two_slots_of_a_settling_is_completed(url, raw, moves):
    state = counting(url, slots=SLOTS)
    batches = driver(state)
    batches.lose(dict.fromkeys(IN_SLOT, 1))
    batches.mark()
    with pytest.raises(Crash):
        dying(state, batches, moves).settle()
    assert heads_of(state, raw) == [(1, 1, 0, int(0 < n <= moves)) for n in range(SLOTS)]
    assert batches.values(*IN_SLOT) == [None] * SLOTS

    if moves % 2:
        batches.settle()
        assert heads_of(state, raw) == [(1, 1, 0, 1)] * SLOTS
        assert batches.values(*IN_SLOT) == [1] * SLOTS
    batches.commit(dict.fromkeys(IN_SLOT, 1))

    assert batches.values(*IN_SLOT) == [2] * SLOTS


def test_a_crash_while_the_headers_are_made_is_completed(url, raw):
    state = counting(url, slots=SLOTS)
    backing = state.backing()
    fields = backing._headers.fields(None)
    pairs = dict(zip(fields[::2], fields[1::2], strict=True))
    raw.hset(f"{{{state.prefix}:2}}:head", mapping=pairs)
    assert backing.read_head() is None
    state.check()

    batches = driver(state)
    batches.commit(dict.fromkeys(IN_SLOT, 1))

    assert batches.values(*IN_SLOT) == [1] * SLOTS


@pytest.mark.parametrize("slot", range(SLOTS))
def test_a_slot_that_was_wiped_stops_the_run(url, raw, slot):
    state = counting(url, slots=SLOTS)
    batches = driver(state)
    batches.commit(dict.fromkeys(IN_SLOT, 1))
    raw.delete(
        f"{{{state.prefix}:{slot}}}:head", f'{{{state.prefix}:{slot}}}:k:["{IN_SLOT[slot]}"]'
    )

    for _ in range(2):
        with pytest.raises(StateMismatchError):
            batches.claim()
    with pytest.raises((StateMismatchError, ForeignStoreError)):
        state.backing().multi_put([(IN_SLOT[slot],)], [OpaqueValue(1, 0, 1)])


def test_a_slot_that_came_back_without_its_last_batch_stops_the_run(url, raw):
    state = counting(url, slots=SLOTS)
    batches = driver(state)
    batches.commit(dict.fromkeys(IN_SLOT, 1))
    header = f"{{{state.prefix}:2}}:head"
    copy = raw.hgetall(header)
    batches.commit(dict.fromkeys(IN_SLOT, 1))
    raw.hset(header, mapping=copy)

    for _ in range(2):
        with pytest.raises(StateMismatchError, match=r"slot 2 of .* is behind the others"):
            batches.claim()


def of_slot(state, raw, slot, word):
    """Return a function that brings a slot back as it is now, its one record included."""
    header, key = f"{{{state.prefix}:{slot}}}:head", f'{{{state.prefix}:{slot}}}:k:["{word}"]'
    fields, text = raw.hgetall(header), raw.get(key)

    def restore():
        raw.delete(header, key)
        raw.hset(header, mapping=fields)
        if text is not None:
            raw.set(key, text)

    return restore


def test_a_slot_that_lost_its_head_is_refused_by_every_attempt(url, raw):
    state = counting(url, slots=SLOTS)
    state.backing()._create()
    as_made = of_slot(state, raw, 1, IN_SLOT[1])
    batches = driver(state)
    for _ in range(3):
        batches.commit(dict.fromkeys(IN_SLOT, 1))
    batches.lose(dict.fromkeys(IN_SLOT, 100))
    as_made()

    for _ in range(3):
        with pytest.raises(StateMismatchError) as error:
            batches.claim()

    assert str(error.value) == (
        f"slot 1 of Redis state {state.prefix!r} at {url} is behind the others, or slot 0 is: it "
        "has no head, and slot 0 is at batch 4 attempt 0 (epoch 1). A node was wiped, or came back "
        "without its last writes. Restore it together with the others and the waterspout home, or "
        "start over with another prefix."
    )
    with pytest.raises(StateMismatchError, match="slot 1 of"):
        state.check()


@pytest.mark.parametrize("cut_short", [False, True], ids=["next batch", "claim cut short"])
def test_a_slot_from_the_middle_of_the_last_batch_is_refused_by_every_attempt(url, raw, cut_short):
    state = counting(url, slots=SLOTS)
    batches = driver(state)
    batches.commit(dict.fromkeys(IN_SLOT, 1))
    batches.claim()
    in_the_middle = of_slot(state, raw, 2, IN_SLOT[2])
    batches.write(dict.fromkeys(IN_SLOT, 1))
    batches.finish()
    if cut_short:  # its node dies under the claim, and a replica takes over
        with pytest.raises(Crash):
            dying(state, batches, 0).claim()
        batches.attempt = 0
    in_the_middle()

    for _ in range(3):
        with pytest.raises(StateMismatchError, match=r"slot 2 of .* it is at batch 2 attempt 0"):
            batches.claim()


def test_a_slot_from_the_middle_of_a_batch_that_is_done_again_is_welcome(url, raw):
    state = counting(url, slots=SLOTS)
    batches = driver(state)
    batches.commit(dict.fromkeys(IN_SLOT, 1))
    batches.claim()
    in_the_middle = of_slot(state, raw, 2, IN_SLOT[2])
    batches.write(dict.fromkeys(IN_SLOT, 1))
    batches.finish()
    in_the_middle()
    batches = replace(batches, ledger=batches.ledger.roll_back(), attempt=0)

    state.check()
    batches.commit(dict.fromkeys(IN_SLOT, 1))

    assert batches.values(*IN_SLOT) == [2] * SLOTS


def test_a_claim_whose_answer_was_lost_is_made_again(url, raw):
    state = counting(url, slots=SLOTS)
    batches = driver(state)
    batches.commit(dict.fromkeys(IN_SLOT, 1))
    before = batches.state.read_head()
    batches.claim()

    state.backing().move_head(before, batches.state.read_head())

    assert heads_of(state, raw) == [(1, 2, 0, 0)] * SLOTS


def test_a_header_of_an_older_version_does_not_say_what_was_before(url, raw):
    state = counting(url, slots=SLOTS)
    batches = driver(state)
    batches.commit(dict.fromkeys(IN_SLOT, 1))
    with pytest.raises(Crash):
        (crashed := dying(state, batches, 1)).claim()
    raw.hdel(f"{{{state.prefix}:0}}:head", "before")

    again = crashed.restarted(state.make_state(Config(), 0, 1))
    again.commit(dict.fromkeys(IN_SLOT, 1))

    assert again.values(*IN_SLOT) == [2] * SLOTS


@pytest.mark.parametrize("moves", range(SLOTS))
def test_a_topology_adopts_a_state_in_slots_from_a_sink_of_a_later_epoch(url, raw, moves):
    state = counting(url, slots=SLOTS)
    sink = driver(state, owner="sink", epoch=7, home="query")
    sink.commit(dict.fromkeys(IN_SLOT, 1))
    found = state.backing().read_head()
    dead, taken = state.backing(), Stamp(Writer("topology", 1, "query", "lease"), 1, 0)
    dead._client = DyingClient(dead._client, moves)
    with pytest.raises(Crash):
        dead.move_head(found, handed_over(found, taken, "words"))
    assert state.backing().read_head() == found

    later = Stamp(Writer("topology", 2, "query", "another"), 1, 0)
    state.backing().move_head(found, handed_over(found, later, "words"))
    topology = driver(
        state,
        owner="topology",
        epoch=3,
        home="query",
        ledger=replace(sink.ledger, topology="topology"),
    )
    topology.commit(dict.fromkeys(IN_SLOT, 1))

    assert heads_of(state, raw) == [(3, 2, 0, 1)] * SLOTS
    assert topology.values(*IN_SLOT) == [2] * SLOTS


def test_a_slot_of_another_owner_is_refused(url, raw):
    state, other = counting(url, slots=SLOTS), counting(url, slots=SLOTS)
    batches = driver(state)
    batches.commit(dict.fromkeys(IN_SLOT, 1))
    driver(other, owner="another").commit(dict.fromkeys(IN_SLOT, 1))
    raw.hset(f"{{{state.prefix}:3}}:head", mapping=raw.hgetall(f"{{{other.prefix}:3}}:head"))

    with pytest.raises(StateMismatchError, match="slot 3 of"):
        batches.claim()
