"""States in memory: found again by id, gone with the process."""

from __future__ import annotations

import pickle
import threading

import pytest

from tests.state_support import OWNER, Batches
from waterspout._config import Config
from waterspout.errors import FencedError
from waterspout.state._base import StateKind
from waterspout.state._head import Head, Stamp, Writer
from waterspout.state._kinds import NonTransactionalMap, OpaqueMap, TransactionalMap
from waterspout.state._memory import MemoryMap, MemoryMapState


@pytest.mark.parametrize(
    ("factory", "kind", "made"),
    [
        (MemoryMapState(), StateKind.OPAQUE, OpaqueMap),
        (MemoryMapState.opaque(), StateKind.OPAQUE, OpaqueMap),
        (MemoryMapState.transactional(), StateKind.TRANSACTIONAL, TransactionalMap),
        (MemoryMapState.non_transactional(), StateKind.NON_TRANSACTIONAL, NonTransactionalMap),
    ],
)
def test_a_factory_makes_a_map_of_its_kind_and_is_opaque_unless_told(factory, kind, made):
    state = factory.make_state(Config(), 0, 1)

    assert factory.kind is kind
    assert type(state) is made
    assert state.kind is kind


def test_a_memory_state_is_volatile_and_the_drivers_own():
    factory = MemoryMapState()

    assert factory.volatile
    assert factory.driver_only


def test_every_factory_has_a_map_of_its_own():
    one, other = MemoryMapState(), MemoryMapState()

    one.make_state(Config(), 0, 1).multi_put([("a",)], [1])

    assert other.make_state(Config(), 0, 1).multi_get([("a",)]) == [None]
    assert one.location() != other.location()


def test_all_partitions_and_all_states_of_a_factory_share_its_map():
    factory = MemoryMapState()

    factory.make_state(Config(), 0, 2).multi_put([("a",)], [1])

    assert factory.make_state(Config(), 1, 2).multi_get([("a",)]) == [1]


def test_a_named_state_is_found_again_in_this_process():
    MemoryMapState().named("found-again").make_state(Config(), 0, 1).multi_put([("a",)], [1])

    found = MemoryMapState().named("found-again")

    assert found.make_state(Config(), 0, 1).multi_get([("a",)]) == [1]
    assert found.location() == "memory:found-again"


def test_a_pickled_factory_finds_the_same_map():
    factory = MemoryMapState.transactional()
    factory.make_state(Config(), 0, 1).multi_put([("a",)], [1])

    copy = pickle.loads(pickle.dumps(factory))

    assert copy == factory
    assert copy.make_state(Config(), 0, 1).multi_get([("a",)]) == [1]


def test_items_gives_every_key_back_as_a_tuple_with_its_record():
    backing = MemoryMap()
    backing.multi_put([["a", 1], ()], ["x", "y"])

    assert sorted(backing.items()) == [((), "y"), (("a", 1), "x")]


def test_two_drivers_racing_for_the_head_from_many_threads_get_it_once():
    backing = MemoryMap()
    barrier = threading.Barrier(8)
    won = []

    def race(epoch):
        new = Head(Stamp(Writer(OWNER, epoch), 1, 0))
        barrier.wait()
        try:
            backing.move_head(None, new)
        except FencedError:
            return
        won.append(new)

    threads = [threading.Thread(target=race, args=(epoch,)) for epoch in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert won == [backing.read_head()]


def test_a_moved_head_is_named_to_the_one_who_comes_late():
    backing = MemoryMap("memory state 1")
    Batches(OpaqueMap(backing)).claim()

    with pytest.raises(FencedError, match=r"memory state 1: the head has moved"):
        backing.move_head(None, Head(Stamp(Writer(OWNER, 1), 1, 0)))
