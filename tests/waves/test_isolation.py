"""The search for messages that kill their worker, as a state machine."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waterspout.errors import WorkerLostError
from waterspout.waves.frames import Frame
from waterspout.waves.isolation import AfterFailure, Isolation, Load
from waterspout.waves.logs import LogRead

DIED = WorkerLostError("a worker died")


def load(*values: int) -> Load:
    return Load([Frame(1, "default", 2, [(value,) for value in values])])


def values_of(given: Load) -> list[int]:
    return [row[0] for frame in given.frames for row in frame.values]


class World:
    """Runs loads until nothing is left; some values kill, and may be let alone after a while."""

    def __init__(self, killers, *, max_retries=3, chance=()):
        self.isolation = Isolation(max_retries)
        self.killers = set(killers)
        self.chance = list(chance)
        self.guilty: list[int] = []
        self.done: list[int] = []
        self.runs: list[list[int] | None] = []

    def run(self, first: Load) -> World:
        waiting = [first]
        while waiting or self.isolation.has_pieces:
            current = waiting.pop() if waiting else self.isolation.take()
            while self._dies(current):
                step = self.isolation.failed(current, DIED)
                if step is not AfterFailure.AGAIN:
                    break
            else:
                self.done += values_of(current)
                guilty = self.isolation.went_through(current)
                if guilty is not None:
                    self.guilty += values_of(guilty.load)
                continue
            assert step is AfterFailure.PIECES
        return self

    def _dies(self, current: Load) -> bool:
        self.runs.append(None if current.is_probe else values_of(current))
        if self.chance and self.chance.pop(0):
            return True
        return bool(self.killers & set(values_of(current)))


@settings(max_examples=50)
@given(st.integers(1, 40), st.data())
def test_any_number_of_killers_is_found_and_nobody_else(total, data):
    killers = data.draw(st.sets(st.integers(0, total - 1)))
    world = World(killers).run(load(*range(total)))

    assert world.guilty == sorted(killers)
    assert world.done == [n for n in range(total) if n not in killers]
    assert not world.isolation.is_on


@settings(max_examples=50)
@given(st.data())
def test_a_worker_that_dies_by_chance_makes_nobody_guilty(data):
    # Twice in a row, in one single tuple, cannot be told from a killer: it is not drawn.
    chance = data.draw(st.lists(st.booleans(), max_size=12))
    chance = [died and not (n and chance[n - 1]) for n, died in enumerate(chance)]
    world = World((), chance=chance).run(load(*range(8)))

    assert (world.guilty, world.done) == ([], list(range(8)))


def test_how_often_what_is_run():
    world = World([2]).run(load(0, 1, 2, 3))

    assert world.runs == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1], [2, 3], [2], [2], None, [3]]


def test_a_suspect_is_run_alone_and_once():
    world = World([7])
    suspect = Load(load(7).frames, is_suspect=True)
    world.isolation.put_apart([suspect])
    world.run(load(0, 1))

    assert world.runs == [[0, 1], [7], None]
    assert world.guilty == [7]


def test_nobody_is_guilty_where_workers_die_without_a_tuple_too():
    isolation = Isolation(2)
    one = load(1)

    assert [isolation.failed(one, DIED) for _ in range(2)] == [
        AfterFailure.AGAIN,
        AfterFailure.PIECES,
    ]
    probe = isolation.take()
    assert (probe.is_probe, probe.is_empty) == (True, True)
    steps = [isolation.failed(probe, DIED) for _ in range(3)]
    assert steps == [AfterFailure.AGAIN, AfterFailure.AGAIN, AfterFailure.GIVE_UP]


@pytest.mark.parametrize("given", [load(1), load(1, 2), Load(is_probe=True), Load()])
def test_an_error_that_is_no_lost_worker_ends_the_run_after_the_retries(given):
    isolation = Isolation(1)

    assert isolation.failed(given, RuntimeError("a bug")) is AfterFailure.AGAIN
    assert isolation.failed(given, RuntimeError("a bug")) is AfterFailure.GIVE_UP


def test_it_is_on_from_the_first_death_until_all_was_run():
    isolation = Isolation(3)
    seen = [isolation.is_on]
    isolation.failed(load(1, 2), DIED)
    seen.append(isolation.is_on)
    isolation.failed(load(1, 2), DIED)
    for _ in range(2):
        piece = isolation.take()
        seen.append(isolation.is_on)
        isolation.went_through(piece)

    assert [*seen, isolation.is_on] == [False, True, True, True, False]


def test_a_load_of_both_kinds_is_divided_by_kind_first():
    read = LogRead(3, ((0, 10, 20),), tracked=True, messages=10)
    both = Load(load(1).frames, [read])

    frames, reads = both.halves()

    assert (frames.reads, reads.frames) == ([], [])
    assert [each.reads[0].ranges for each in reads.halves()] == [((0, 10, 15),), ((0, 15, 20),)]
