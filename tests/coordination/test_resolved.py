"""What is remembered of lost attempts stays small, and values exact, however many there are."""

from __future__ import annotations

import random
import time
from collections import Counter
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state_support import examples
from waterspout import Config
from waterspout.coordination import commit_protocol
from waterspout.coordination.commit_protocol import CommitProtocol, HeadKeeper
from waterspout.errors import StoreError
from waterspout.state import MemoryMapState
from waterspout.state._foreach_batch import QueryIdentity, next_writer
from waterspout.state._kinds import OpaqueMap, OpaqueValue
from waterspout.state._memory import MemoryMap
from waterspout.state.memcached import MemcachedState
from waterspout.state.redis import RedisState
from waterspout.testing import Batches
from waterspout.testing._batches import Add

FEW, FEWER = 6, 3


@pytest.fixture
def few(monkeypatch):
    """Few batches with lost attempts are remembered."""
    monkeypatch.setattr(commit_protocol, "RESOLVED_MAX", FEW)
    monkeypatch.setattr(commit_protocol, "RESOLVED_KEPT", FEWER)


def fail_often(batches, number, dice, words="abcdefgh"):
    """Commit batches that each lose an attempt, of other words, first; return the truth."""
    truth = Counter()
    for _ in range(number):
        batches.lose({dice.choice(words): 1000, dice.choice(words): 1000})
        updates = {dice.choice(words): dice.randint(1, 9)}
        batches.commit(updates)
        truth.update(updates)
    return truth


batch = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 9), max_size=3)


@examples(60)
@given(st.lists(st.tuples(st.lists(batch, max_size=2), batch, st.booleans()), max_size=40))
def test_values_are_exact_at_every_batch_of_any_history(history):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(commit_protocol, "RESOLVED_MAX", 2)
        patched.setattr(commit_protocol, "RESOLVED_KEPT", 1)
        state, truth = MemoryMapState(), Counter()
        batches = Batches(state.make_state(Config(), 0, 1))
        for lost, kept, restarts in history:
            for updates in lost:
                batches.lose(updates)
            if restarts:
                batches = batches.restarted(state.make_state(Config(), 0, 1))
            batches.commit(kept)
            truth.update(kept)
            expected = [truth[word] or None for word in "abcde"]
            assert batches.values(*"abcde") == batches.found(*"abcde") == expected
            assert len(batches.ledger.resolved) <= 3
            assert len(batches.state.read_head().resolved) <= 3


@pytest.mark.services
@pytest.mark.parametrize("options", [{}, {"layout": "hash", "slots": 3}], ids=["strings", "slots"])
def test_a_redis_state_remembers_few_of_many_lost_attempts_and_is_exact(few, redis_server, options):
    state = RedisState.opaque(redis_server.url, prefix=uuid4().hex, **options)
    batches = Batches(state.make_state(Config(), 0, 1))

    truth = fail_often(batches, 60, random.Random(1))

    assert batches.values(*"abcdefgh") == [truth[word] or None for word in "abcdefgh"]
    assert FEWER <= len(batches.ledger.resolved) <= FEW + 1


@pytest.mark.services
def test_a_store_that_cannot_list_its_keys_remembers_all_and_is_exact(few, memcached_server):
    state = MemcachedState.opaque([memcached_server.address], prefix=uuid4().hex)
    batches = Batches(state.make_state(Config(), 0, 1))

    truth = fail_often(batches, 20, random.Random(1))

    assert batches.values(*"abcdefgh") == [truth[word] or None for word in "abcdefgh"]
    assert len(batches.ledger.resolved) == 20


def test_the_record_of_a_lost_attempt_is_put_back_and_the_others_are_left_alone(few):
    backing = MemoryMap()
    batches = Batches(OpaqueMap(backing))
    batches.commit({"seen": 5})
    batches.lose({"seen": 1000})
    batches.commit({"other": 1})
    fail_often(batches, FEW + 1, random.Random(1), words=["x", "y"])

    seen, other = backing.multi_get([("seen",), ("other",)])

    assert seen == OpaqueValue(0, 0, 5)
    assert other == OpaqueValue(2, 1, 1)


def test_what_changes_while_it_is_looked_through_is_looked_at_again(few):
    backing = MemoryMap()
    batches = Batches(OpaqueMap(backing))
    batches.commit({"seen": 5})
    batches.lose({"seen": 1000})
    batches.commit({"other": 1})
    compare, amended = backing.multi_compare_and_put, []

    def late(keys, read, values):
        if ("seen",) in keys and not amended:
            amended.append(True)
            OpaqueMap(MemoryView(backing, compare)).multi_update([("seen",)], [Add(100)])
        return compare(keys, read, values)

    backing.multi_compare_and_put = late
    fail_often(batches, FEW + 3, random.Random(1), words=["x", "y"])

    assert amended
    assert batches.values("seen", "other") == [105, 1]


class MemoryView(MemoryMap):
    """The same records, past what a test has put in their way."""

    def __init__(self, other, compare):
        super().__init__()
        self._records, self._head, self._lock = other._records, other._head, other._lock
        self.multi_compare_and_put = compare


def test_a_store_that_fails_while_it_is_looked_through_forgets_nothing(few):
    backing = MemoryMap()
    batches = Batches(OpaqueMap(backing))
    truth = fail_often(batches, FEW, random.Random(1))

    def broken(shard=0, shards=1):
        raise StoreError("down")

    backing.scan = broken
    truth.update(fail_often(batches, 5, random.Random(2)))
    remembered = len(batches.ledger.resolved)
    del backing.scan
    truth.update(fail_often(batches, 2, random.Random(3)))

    assert remembered == FEW + 5
    assert len(batches.ledger.resolved) <= FEW + 1
    assert batches.values(*"abcdefgh") == [truth[word] or None for word in "abcdefgh"]


def test_a_sink_remembers_few_of_many_lost_attempts_in_its_head(few):
    state, who, truth = OpaqueMap(MemoryMap()), QueryIdentity("sink", "query"), Counter()
    dice = random.Random(1)
    for batch_id in range(40):
        for tries in range(2):
            keeper = HeadKeeper(who, batch_id)
            commits = CommitProtocol({"words": state}, keeper)
            commits.verify()
            commits.enroll(next_writer(keeper.head, who, lease=uuid4().hex))
            claim = commits.start(keeper.claim.attempt)
            words = [dice.choice("abcd")]

            def write(claim, words=words):
                state.begin_commit(
                    claim.attempt.txid, claim.attempt.attempt_id, resolved=claim.resolved
                )
                state.multi_update([(w,) for w in words], [Add(1)] * len(words))
                state.commit(claim.attempt.txid)

            if tries == 0:
                write(claim)  # and the process dies
            else:
                commits.finish(claim, write)
                truth.update(words)

    assert len(state.read_head().resolved) <= FEW + 1
    assert state.multi_get([(w,) for w in "abcd"]) == [truth[w] or None for w in "abcd"]


def test_what_writers_of_their_own_may_need_is_kept(few):
    batches = Batches(OpaqueMap(MemoryMap()))
    batches._commits._others_write = True

    fail_often(batches, FEW + 5, random.Random(1))

    assert len(batches.ledger.resolved) == FEW + 5


@pytest.mark.soak
@pytest.mark.services
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("store", ["memory", "redis"])
def test_thousands_of_lost_attempts_leave_size_and_time_of_a_batch_as_they_were(
    redis_server, store
):
    recipe = (
        MemoryMapState()
        if store == "memory"
        else RedisState.opaque(redis_server.url, prefix=uuid4().hex)
    )
    batches = Batches(recipe.make_state(Config(), 0, 1))
    dice, words, truth = random.Random(7), [f"word {n}" for n in range(2_000)], Counter()
    seconds, sizes = [], []
    for _ in range(10):
        start = time.process_time()  # the machine may be busy with other things
        truth.update(fail_often(batches, 1_000 if store == "memory" else 200, dice, words))
        seconds.append(time.process_time() - start)
        sizes.append(len(batches.state.read_head().to_text()))
    print(store, [f"{s:.1f}" for s in seconds], sizes)

    assert batches.values(*words) == [truth[word] or None for word in words]
    assert len(batches.ledger.resolved) <= commit_protocol.RESOLVED_MAX + 1
    assert max(sizes) < 30_000
    assert sum(seconds[5:]) < 2 * sum(seconds[:5])
