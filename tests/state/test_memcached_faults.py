"""Memcached states among zombies, lost answers, evictions and wiped servers."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.services.servers import MemcachedServer
from tests.state.comparing_support import Task, pause_after_the_head
from tests.state.memcached_support import (
    A,
    at,
    factory,
    flush,
    items,
    record,
)
from tests.state_support import OWNER, Add, Batches
from waterspout._config import Config
from waterspout.errors import (
    FencedError,
    ForeignStoreError,
    StateMismatchError,
    StoreError,
)
from waterspout.state._head import verify
from waterspout.state._kinds import OpaqueMap
from waterspout.state.memcached import MemcachedState
from waterspout.state.memcached._wire import Server
from waterspout.testing._proxy import FaultProxy


@pytest.fixture
def server(memcached_server):
    return flush(memcached_server)


@pytest.fixture
def proxy(server):
    with FaultProxy(*server.address) as proxy:
        yield proxy


def test_a_zombie_is_refused_once_the_head_has_moved(server):
    batches = Batches(OpaqueMap(factory(server).backing()))
    batches.commit({"x": 1})
    batches.claim()
    zombie = Task(factory(server).backing(), 2, 0, {"x": 10, "new": 10})
    batches.commit({"y": 1})

    with pytest.raises(FencedError, match=r"batch 2 attempt 0 .* was refused"):
        zombie.write()
    assert batches.values("x", "y", "new") == [1, 1, None]


def test_what_a_zombie_writes_where_nobody_has_since_is_never_counted(server):
    batches = Batches(OpaqueMap(factory(server).backing()))
    batches.commit({"x": 1})
    batches.claim()
    zombie = Task(factory(server).backing(), 2, 0, {"x": 10, "new": 10})
    pause_after_the_head(zombie, lambda: batches.commit({"y": 1}))

    zombie.write()

    assert batches.state.records([("x",), ("new",)]) == [record(11, 2, 0, 1), record(10, 2, 0)]
    assert batches.values("x", "y", "new") == [1, 1, None]
    batches.commit({"x": 5, "new": 5})
    assert batches.values("x", "y", "new") == [6, 1, 5]


def test_a_zombie_cannot_overwrite_what_was_written_since(server):
    batches = Batches(OpaqueMap(factory(server).backing()))
    batches.commit({"x": 1, "y": 1})
    batches.claim()
    zombie = Task(factory(server).backing(), 2, 0, {"x": 10, "y": 10, "new": 10})
    pause_after_the_head(zombie, lambda: batches.commit({"x": 2, "new": 2}))

    with pytest.raises(FencedError, match=r"key \('x',\) was written by someone else"):
        zombie.write()

    assert batches.values("x", "y", "new") == [3, 1, 2]
    batches.commit({"x": 1, "y": 1, "new": 1})
    assert batches.values("x", "y", "new") == [4, 2, 3]


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_tasks_of_one_attempt_either_may_come_first(server, first):
    batches = Batches(OpaqueMap(factory(server).backing()))
    batches.commit({"x": 1})
    batches.claim()
    tasks = [Task(factory(server).backing(), 2, 0, {"x": 10, "new": 10}) for _ in range(2)]

    tasks[first].write()
    tasks[1 - first].write()
    batches.mark()
    batches.settle()

    assert batches.values("x", "new") == [11, 10]


def test_a_task_that_reads_after_its_twin_has_written_counts_once(server):
    batches = Batches(OpaqueMap(factory(server).backing()))
    batches.commit({"x": 1})
    batches.claim()
    Task(factory(server).backing(), 2, 0, {"x": 10}).write()
    late = Task(factory(server).backing(), 2, 0, {"x": 10})
    late.write()
    batches.mark()
    batches.settle()

    assert batches.values("x") == [11]


def test_a_twin_that_comes_after_the_next_batch_changes_nothing(server):
    batches = Batches(OpaqueMap(factory(server).backing()))
    batches.claim()
    twin = Task(factory(server).backing(), 1, 0, {"x": 1})

    def go_on():
        batches.write({"x": 1})
        batches.mark()
        batches.settle()
        batches.commit({"x": 5})

    pause_after_the_head(twin, go_on)
    with pytest.raises(FencedError, match=r"holds OpaqueValue\(txid=2, attempt=0, value=6"):
        twin.write()

    assert batches.values("x") == [6]


@pytest.fixture
def through(proxy):
    """The factory of the same state, with the proxy on its way."""
    return MemcachedState.opaque(proxy.address, prefix="counts", timeout_secs=2)


@pytest.mark.parametrize("fault", ["drop_next_reply", "drop_next_request"])
@pytest.mark.parametrize("verb", [b"cas ", b"add "])
def test_a_write_whose_answer_is_lost_is_done_once(server, proxy, through, fault, verb):
    batches = Batches(OpaqueMap(through.backing()))
    batches.commit({"x": 1})
    getattr(proxy, fault)(verb + b'counts:["')

    batches.commit({"x": 10, "new": 10} if verb == b"cas " else {"new": 10})

    assert proxy.dropped == 1
    expected = [11, 10] if verb == b"cas " else [1, 10]
    assert batches.values("x", "new") == expected


def test_an_answer_that_breaks_off_in_the_middle_of_many(server, proxy, through):
    batches = Batches(OpaqueMap(through.backing()))
    words = {f"w{n}": n for n in range(300)}
    batches.commit(words)
    proxy.cut_reply_after(8 * 100 + 3, b'cas counts:["')

    batches.commit(words)

    assert proxy.dropped == 1
    assert batches.values(*words) == [2 * n for n in range(300)]


@pytest.mark.parametrize("verb", [b"cas ", b"add "])
def test_an_update_outside_of_a_batch_is_not_applied_twice(server, proxy, through, verb):
    state = OpaqueMap(through.backing())
    if verb == b"cas ":
        state.multi_update([A], [Add(1)])
    before = state.multi_get([A])[0] or 0
    proxy.drop_next_reply(verb)

    assert state.multi_update([A], [Add(100)]) == [before + 100]
    assert proxy.dropped == 1
    assert state.multi_get([A]) == [before + 100]


def test_two_equal_writes_at_once_are_told_apart_though_an_answer_is_lost(server, proxy, through):
    mine, other = through.backing(), factory(server).backing()
    mine.multi_put([A], [record(1)])
    mine.multi_get([A])
    other.multi_put([A], [record(2)])  # as another's addition of 1 would
    proxy.drop_next_reply(b"cas ")

    with pytest.raises(StoreError, match="cannot be known whether this write was carried out"):
        mine.multi_compare_and_put([A], [record(1)], [record(2)])


@pytest.mark.parametrize("fault", ["drop_next_reply", "drop_next_request"])
@pytest.mark.parametrize("expected", [None, at(1)])
def test_the_head_moves_once_though_the_answer_is_lost(server, proxy, through, fault, expected):
    backing = through.backing()
    if expected is not None:
        backing.move_head(None, expected)
    getattr(proxy, fault)(b"cas " if expected else b"add ")

    backing.move_head(expected, at(1, committed=True))

    assert proxy.dropped == 1
    assert backing.read_head() == at(1, committed=True)


def test_reading_goes_on_over_a_new_connection(server, proxy, through):
    backing = through.backing()
    backing.multi_put([A], [record(1)])
    proxy.drop_next_reply(b"gets ")
    assert backing.multi_get([A]) == [record(1)]
    proxy.cut()
    assert backing.multi_get([A]) == [record(1)]
    proxy.cut()
    backing.multi_put([A], [record(2)])
    assert backing.multi_get([A]) == [record(2)]


def test_a_server_that_is_gone_is_an_error_never_a_miss(server, proxy, through):
    backing = through.backing()
    backing.multi_put([A], [record(1)])
    proxy.refuse()
    proxy.cut()

    for act in (
        lambda: backing.multi_get([A]),
        lambda: backing.multi_put([A], [record(2)]),
        lambda: backing.multi_compare_and_put([A], [None], [record(2)]),
        backing.read_head,
        lambda: backing.move_head(None, at(1)),
    ):
        with pytest.raises(StoreError, match=f"memcached server 127.0.0.1:{proxy.port} cannot"):
            act()
    proxy.refuse(False)
    assert backing.multi_get([A]) == [record(1)]


def test_a_server_that_says_nothing_is_given_up_on_in_time(server, proxy):
    backing = MemcachedState.opaque(proxy.address, prefix="counts", timeout_secs=0.2).backing()
    backing.multi_get([A])
    proxy.hang()

    with pytest.raises(StoreError, match="timed out"):
        backing.multi_get([A])


def test_an_address_where_something_else_answers_is_an_error(redis_server):
    state = MemcachedState.opaque((redis_server.host, redis_server.port), prefix="counts")

    with pytest.raises(StoreError, match="cannot be used"):
        state.check()


def test_a_restarted_server_has_lost_the_state_and_that_is_said(server):
    batches = Batches(factory(server).make_state(Config(), 0, 1))
    batches.commit({"x": 1})
    server.kill()
    server.start()

    assert batches.values("x") == [None]
    with pytest.raises(StateMismatchError, match=r"'counts' at .* is empty, but 1 batches were"):
        batches.claim()
    with pytest.raises(StateMismatchError, match="is empty, but 1 batches"):
        verify(
            batches.state.read_head(),
            state="counts",
            owner=OWNER,
            current=2,
            committed_attempt=0,
            begun=(),
        )


def test_a_server_that_restarts_between_read_and_write_is_not_written_to(server):
    batches = Batches(factory(server).make_state(Config(), 0, 1))
    batches.commit({"x": 1})
    batches.claim()
    task = Task(factory(server).backing(), 2, 0, {"x": 1})
    server.kill()
    server.start()

    with pytest.raises(FencedError, match="the state is at nothing"):
        task.write()
    assert batches.state.records([("x",)]) == [None]


def test_a_full_server_evicts_and_nobody_is_told():
    with MemcachedServer(memory_mb=2) as tiny:
        batches = Batches(factory(tiny).make_state(Config(), 0, 1))
        batches.commit({"first": 1})
        backing = factory(tiny).backing()
        for start in range(0, 8000, 500):
            keys = [(start + n, "k" * 200) for n in range(500)]
            backing.multi_put(keys, [record("v" * 800)] * 500)

        sample = backing.multi_get([(n, "k" * 200) for n in range(8000)])
        assert 0 < sum(found is None for found in sample) < 8000
    assert "evicts keys, which is not noticed" in MemcachedState.weakness


class StrictServer(MemcachedServer):
    """Started with -M: refuses when it is full, as the documentation advises."""

    def command(self):
        return [*super().command(), "-M"]


def test_a_full_server_that_may_not_evict_refuses():
    with StrictServer(memory_mb=2) as tiny:
        backing = factory(tiny).backing()
        keys = [(n, "k" * 200) for n in range(8000)]
        with pytest.raises(StoreError, match="out of memory storing object"):
            backing.multi_put(keys, [record("v" * 800)] * 8000)

        assert backing.multi_get(keys[:100]) == [record("v" * 800)] * 100


@pytest.fixture
def three():
    with ExitStack() as stack:
        yield [stack.enter_context(MemcachedServer()) for _ in range(3)]


def test_keys_are_spread_over_all_servers_and_found_again(three):
    batches = Batches(factory(*three).make_state(Config(), 0, 1))
    words = {f"w{n}": n for n in range(300)}
    batches.commit(words)
    batches.commit(words)

    assert batches.values(*words) == [2 * n for n in range(300)]
    shares = [len(items(s, *(f'counts:["{word}"]' for word in words))) for s in three]
    assert sum(shares) == 300
    assert min(shares) > 60
    assert [list(items(s, "counts:head", "counts:sentinel")) for s in three] == [
        ["counts:head", "counts:sentinel"],
        ["counts:sentinel"],
        ["counts:sentinel"],
    ]


@pytest.mark.parametrize("lost", [1, 2])
def test_the_loss_of_any_one_server_is_noticed_and_it_is_named(three, lost):
    batches = Batches(factory(*three).make_state(Config(), 0, 1))
    batches.commit({"x": 1})
    three[lost].kill()
    with pytest.raises(StoreError, match=f"{three[lost].port} cannot be used"):
        batches.claim()
    three[lost].start()

    with pytest.raises(StateMismatchError, match=f"{three[lost].port} was wiped"):
        batches.claim()


def test_the_loss_of_the_server_with_the_head_is_noticed_even_by_a_new_topology(three):
    Batches(factory(*three).make_state(Config(), 0, 1)).commit({"x": 1})
    three[0].restart()

    with pytest.raises(StateMismatchError, match=f"{three[0].port} has no head, but"):
        Batches(factory(*three).make_state(Config(), 0, 1)).claim()


def test_other_servers_or_another_order_are_refused(three):
    one, two, other = three
    Batches(factory(one, two).make_state(Config(), 0, 1)).commit({"x": 1})

    with pytest.raises(StateMismatchError, match=r"not in the order they were"):
        factory(two, one).backing().read_head()
    with pytest.raises(ForeignStoreError, match=r"over 2 servers; with 3"):
        factory(one, two, other).backing().read_head()
    with pytest.raises(StateMismatchError, match=f"{other.port} was wiped"):
        factory(one, other).backing().read_head()


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_a_driver_that_dies_while_it_makes_the_first_head_does_no_harm(three, monkeypatch, step):
    state = factory(*three).make_state(Config(), 0, 1)
    batches = Batches(state)
    left = [step]
    real = Server.store

    def store(server, commands):
        left[0] -= 1
        if left[0] < 0:
            raise StoreError("the driver died")
        return real(server, commands)

    monkeypatch.setattr(Server, "store", store)
    with pytest.raises(StoreError, match="the driver died"):
        batches.claim()
    monkeypatch.undo()

    batches.commit({"x": 1})

    assert batches.values("x") == [1]
