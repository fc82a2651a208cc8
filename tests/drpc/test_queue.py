"""The queue of one function: whatever happens in whatever order, each caller is told once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from waterspout.drpc._calls import DrpcErrorKind, DrpcRequest
from waterspout.drpc._queue import QueueLimits, RequestQueue


def queue(waiting: int = 3, working: int = 2) -> RequestQueue:
    return RequestQueue("words", QueueLimits(waiting, working))


def admitted(queue: RequestQueue, *ids: str, **wants: Any) -> None:
    for id in ids:
        assert queue.admit(DrpcRequest(id, "cat", **wants)) is None


def taken(queue: RequestQueue, now: float = 0.0, committed: int | None = None) -> list[str]:
    return [request.id for request in queue.take(now, committed)]


def test_requests_that_wait_are_taken_together_in_their_order_as_many_as_there_is_room_for():
    waiting = queue()
    admitted(waiting, "a", "b", "c")

    assert taken(waiting) == ["a", "b"]
    assert taken(waiting) == []
    assert waiting.answer("a")
    assert taken(waiting) == ["c"]


def test_one_more_than_may_wait_is_refused_and_leaves_no_trace():
    full = queue(waiting=1)
    admitted(full, "a")

    refused = full.admit(DrpcRequest("b", "cat"))

    assert refused is not None
    assert refused.kind is DrpcErrorKind.UNAVAILABLE
    assert refused.message == (
        "1 requests wait for 'words', which is as many as may; ask again later, or raise "
        "drpc_queue_size"
    )
    assert taken(full) == ["a"]
    admitted(full, "b")


def test_a_caller_who_goes_away_frees_its_place():
    full = queue(waiting=1)
    admitted(full, "a")

    assert full.abandon("a")

    admitted(full, "b")
    assert taken(full) == ["b"]


def test_work_for_a_caller_who_has_gone_keeps_its_place_until_it_is_done():
    busy = queue(waiting=2, working=1)
    admitted(busy, "a", "b")
    assert taken(busy) == ["a"]

    assert busy.abandon("a")

    assert taken(busy) == []  # nobody can call back what is being done
    assert not busy.answer("a")
    assert taken(busy) == ["b"]


def test_of_two_answers_the_first_one_counts():
    busy = queue()
    admitted(busy, "a")
    taken(busy)

    assert [busy.answer("a"), busy.answer("a"), busy.answer("unknown")] == [True, False, False]


def test_a_request_that_must_see_a_later_batch_holds_nobody_up():
    waiting = queue()
    admitted(waiting, "later", min_txid=7)
    admitted(waiting, "now")

    assert taken(waiting, committed=6) == ["now"]
    assert taken(waiting, committed=7) == ["later"]


@pytest.mark.parametrize(
    ("wants", "take", "why"),
    [
        ({}, False, "the request waited its time for 'words', which is busy with others"),
        ({"min_txid": 7}, False, "batch 7 was not committed in time for 'words'"),
        ({}, True, "'words' was not done with the request in time"),
    ],
    ids=["waiting", "waiting for a batch", "worked on"],
)
def test_who_is_late_is_told_what_it_has_waited_for(wants, take, why):
    late = queue()
    admitted(late, "a", deadline=5.0, **wants)
    if take:
        taken(late)

    assert late.next_deadline == 5.0
    assert late.expire(4.9) == []
    (told,) = late.expire(5.0)

    assert told.error is not None
    assert (told.error.kind, told.error.message) == (DrpcErrorKind.TIMED_OUT, why)
    assert late.expire(6.0) == []
    assert not late.answer("a")


def test_what_is_late_already_is_not_worked_on():
    late = queue()
    admitted(late, "a", deadline=5.0)

    assert taken(late, now=5.0) == []
    assert [told.id for told in late.expire(5.0)] == ["a"]


def test_the_end_is_told_to_all_who_wait_and_to_who_comes_later():
    ending = queue(working=1)
    admitted(ending, "a", "b")
    taken(ending)

    told = ending.close()

    assert [(one.id, one.error and one.error.kind) for one in told] == [
        ("b", DrpcErrorKind.SHUTDOWN),
        ("a", DrpcErrorKind.SHUTDOWN),
    ]
    assert ending.close() == []
    refused = ending.admit(DrpcRequest("c", "cat"))
    assert refused is not None
    assert (refused.kind, refused.message) == (
        DrpcErrorKind.SHUTDOWN,
        "the run of 'words' has ended",
    )


def test_deadlines_of_requests_that_are_over_do_not_pile_up():
    busy = queue()
    for number in range(5000):
        admitted(busy, str(number), deadline=1000.0 + number)
        taken(busy)
        busy.answer(str(number))
        busy.expire(0.0)

    assert len(busy._deadlines) < 300


class QueueMachine(RuleBasedStateMachine):
    """Any interleaving of callers, workers, batches, time, and the end."""

    @initialize(waiting=st.integers(1, 4), working=st.integers(1, 3))
    def start(self, waiting, working):
        self.limits = QueueLimits(waiting, working)
        self.queue = RequestQueue("words", self.limits)
        self.now, self.committed, self.closed = 0.0, 0, False
        self.requests: dict[str, DrpcRequest] = {}
        self.waiting: list[str] = []
        self.working: set[str] = set()
        self.told: dict[str, str] = {}

    def tell(self, id: str, what: str) -> None:
        assert id not in self.told, f"{id} is told {what} after {self.told[id]}"
        self.told[id] = what
        if id in self.waiting:
            self.waiting.remove(id)

    @rule(wants=st.none() | st.integers(0, 4), lasts=st.none() | st.integers(0, 4))
    def ask(self, wants, lasts):
        id = str(len(self.requests))
        deadline = None if lasts is None else self.now + lasts
        request = DrpcRequest(id, "cat", wants, deadline)
        refused = self.queue.admit(request)
        assert (refused is None) == (
            not self.closed and len(self.waiting) < self.limits.waiting_max
        )
        self.requests[id] = request
        if refused is None:
            self.waiting.append(id)
        else:
            self.told[id] = "refused"

    @rule()
    def take(self):
        room = self.limits.working_max - len(self.working)
        fits = [
            id
            for id in self.waiting
            if (self.requests[id].min_txid or 0) <= self.committed
            and not self.is_late(self.requests[id])
        ]
        found = [request.id for request in self.queue.take(self.now, self.committed)]
        assert found == fits[:room]
        self.working.update(found)
        self.waiting = [id for id in self.waiting if id not in found]

    def is_late(self, request: DrpcRequest) -> bool:
        return request.deadline is not None and request.deadline <= self.now

    @rule(data=st.data())
    def answer(self, data):
        if self.requests:
            id = data.draw(st.sampled_from(sorted(self.requests)), "answered")
            reaches = id in self.working and id not in self.told
            assert self.queue.answer(id) == reaches
            self.working.discard(id)
            if reaches:
                self.tell(id, "answer")

    @rule(data=st.data())
    def go_away(self, data):
        if self.requests:
            id = data.draw(st.sampled_from(sorted(self.requests)), "gone")
            assert self.queue.abandon(id) == (id not in self.told)
            if id not in self.told:
                self.tell(id, "nothing: it has gone")

    @rule(seconds=st.integers(1, 3))
    def time_passes(self, seconds):
        self.now += seconds

    @rule()
    def expire(self):
        late = {id for id, one in self.requests.items() if self.is_late(one)} - set(self.told)
        assert {told.id for told in self.queue.expire(self.now)} == late
        for id in late:
            self.tell(id, "late")

    @rule()
    def batch_commits(self):
        self.committed += 1

    @rule()
    def close(self):
        left = set(self.requests) - set(self.told)
        assert {told.id for told in self.queue.close()} == left
        self.closed = True
        for id in left:
            self.tell(id, "the end")

    @invariant()
    def counts_are_those_of_the_model(self):
        if hasattr(self, "queue"):
            assert self.queue.waiting == len(self.waiting) <= self.limits.waiting_max
            assert self.queue.working == len(self.working) <= self.limits.working_max

    def teardown(self):
        if hasattr(self, "queue"):
            self.close()
            assert set(self.told) == set(self.requests)


TestEveryInterleaving = QueueMachine.TestCase
TestEveryInterleaving.settings = settings(
    max_examples=2 * settings().max_examples,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
