"""An intake: what has become of the tuples of one wave, at once or later."""

from __future__ import annotations

import numpy as np
import pytest

from waterspout._tuples import Origin
from waterspout.errors import AckError
from waterspout.topology import Fields, Tuple
from waterspout.topology._ports import ACKED, FAILED
from waterspout.waves.frames import Frame, pack, unpack
from waterspout.waves.intake import Intake, Outcome


def ids(*numbers: int):
    return np.array(numbers, np.uint64)


class Taken:
    """Frames as a task takes them: an intake and its tuples."""

    def __init__(self, *frames: Frame) -> None:
        self.intake = Intake(frames)
        self.tuples: list[Tuple] = []
        for frame in frames:
            origin = Origin("source", frame.stream, 1, Fields("n"), self.intake, self.intake.done)
            self.intake.add(origin)
            for values in frame.values:
                self.tuples.append(Tuple(values, origin, len(self.tuples)))

    def ack(self, n: int) -> None:
        self.tuples[n]._origin.done[n] = ACKED

    def fail(self, n: int) -> None:
        self.tuples[n]._origin.done[n] = FAILED

    def close_books(self) -> tuple[dict[int, int], list[tuple[int, int]], bool]:
        outcome = Outcome()
        still_open = self.intake.close_books(outcome)
        acked: dict[int, int] = {}
        for roots, edges in zip(outcome.acked_roots, outcome.acked_edges, strict=True):
            for root, edge in zip(roots.tolist(), edges.tolist(), strict=True):
                if root:
                    acked[root] = acked.get(root, 0) ^ edge
        return acked, outcome.failed, still_open


def values(*numbers: int) -> list[tuple[int]]:
    return [(n,) for n in numbers]


@pytest.fixture
def taken() -> Taken:
    """Two frames: trees 10 and 20, one in both, one in none; then tree 30."""
    return Taken(
        Frame(
            1,
            "default",
            5,
            values(0, 1, 2, 3),
            ids(10, 20, 0, 0),
            ids(1, 2, 0, 0),
            {2: {10: 4, 20: 8}},
        ),
        Frame(2, "default", 5, values(4), ids(30), ids(16)),
    )


def test_acks_are_reported_with_the_ids_of_all_trees(taken):
    for n in range(5):
        taken.ack(n)

    assert taken.close_books() == ({10: 1 ^ 4, 20: 2 ^ 8, 30: 16}, [], False)


def test_fails_are_reported_with_the_tuple_that_failed(taken):
    for n in range(5):
        taken.fail(n)

    acked, failed, still_open = taken.close_books()
    assert (acked, sorted(failed), still_open) == (
        {},
        [(10, 0), (10, 2), (20, 1), (20, 2), (30, 4)],
        False,
    )


def test_what_is_neither_is_kept_and_may_be_ended_later(taken):
    taken.ack(0)
    assert taken.close_books() == ({10: 1}, [], True)

    taken.ack(2)
    assert taken.close_books() == ({10: 4, 20: 8}, [], True)

    taken.fail(1)
    taken.ack(4)
    assert taken.close_books() == ({30: 16}, [(20, 1)], False)


def test_a_kept_tuple_without_a_tree_keeps_no_intake(taken):
    for n in (0, 1, 2, 4):
        taken.ack(n)

    assert taken.close_books()[2] is False

    taken.ack(3)


def test_an_open_tuple_without_a_tree_beside_those_of_several_trees():
    taken = Taken(
        Frame(1, "default", 5, values(0), None, None, {0: {10: 4, 20: 8}}),
        Frame(-1, "__tick", 5, values(1)),
    )
    taken.ack(0)

    assert taken.close_books() == ({10: 4, 20: 8}, [], False)


def test_an_open_tuple_of_several_trees_is_kept():
    taken = Taken(Frame(1, "default", 5, values(0), None, None, {0: {10: 4, 20: 8}}))
    assert taken.close_books() == ({}, [], True)
    taken.ack(0)

    assert taken.close_books() == ({10: 4, 20: 8}, [], False)


def test_kept_tuples_are_the_same_after_pickling(taken):
    taken.close_books()

    intake, tuples = unpack(pack((taken.intake, taken.tuples)))
    tuples[1]._origin.done[1] = ACKED
    outcome = Outcome()

    assert intake.close_books(outcome) is True
    assert [roots.tolist() for roots in outcome.acked_roots] == [[20]]
    assert intake.roots_of(tuples[2]) == (10, 20)


def test_roots_of_a_tuple_are_known_now_and_later(taken):
    before = [taken.intake.roots_of(given) for given in taken.tuples]
    taken.close_books()

    assert before == [(10,), (20,), (10, 20), (), (30,)]
    assert [taken.intake.roots_of(given) for given in taken.tuples] == before


def test_a_tuple_that_ended_in_an_earlier_wave_is_no_anchor(taken):
    taken.ack(0)
    taken.close_books()

    with pytest.raises(AckError, match="was acked or failed in an earlier wave"):
        taken.intake.roots_of(taken.tuples[0])


def test_a_cut_forgets_what_was_not_delivered(taken):
    taken.intake.cut(2)
    for n in range(2):
        taken.ack(n)

    assert taken.close_books() == ({10: 1, 20: 2}, [], False)


def test_resets_name_all_trees_of_a_tuple(taken):
    taken.intake.reset(taken.tuples[2])
    taken.intake.reset(taken.tuples[3])
    taken.intake.reset(taken.tuples[4])

    assert taken.intake.resets == [10, 20, 30]


def test_the_rest_is_acked_and_what_failed_stays_failed(taken):
    taken.fail(1)

    taken.intake.ack_rest(0, 5)

    assert taken.close_books() == ({10: 1 ^ 4, 20: 8, 30: 16}, [(20, 1)], False)


def test_without_trees_nothing_is_kept_and_acks_are_allowed_later():
    taken = Taken(Frame(1, "default", 5, values(0, 1)))
    taken.ack(0)

    assert not taken.intake.is_tracked
    assert taken.close_books() == ({}, [], False)
    taken.ack(1)
    assert taken.intake.roots_of(taken.tuples[1]) == ()
