"""Functions that are asked by many at once: batches, slow ones, time-outs, the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from waterspout import Config
from waterspout.drpc._calls import (
    DrpcAnswer,
    DrpcError,
    DrpcErrorKind,
    DrpcRequest,
)
from waterspout.drpc._service import DrpcService

WAIT_S = 30.0


class Shout:
    """Answers in capitals; `gate` holds it up, `batches` are those it was given."""

    def __init__(self, name: str = "shout") -> None:
        self.name = name
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)

    def answer(self, requests: Sequence[DrpcRequest]) -> list[DrpcAnswer]:
        self.batches.append([request.args for request in requests])
        self.entered.release()
        assert self.gate.wait(WAIT_S)
        return [DrpcAnswer(r.id, tuples=[[r.args.upper()]]) for r in requests]


class Calls:
    """Calls that wait for their answers, beside each other."""

    def __init__(self, service: DrpcService) -> None:
        self._service = service
        self._changed = threading.Condition()
        self.answers: dict[str, DrpcAnswer] = {}

    def call(self, function: str, args: str, **options: float | None) -> str:
        asked = self._service.call(function, args, self._deliver, **options)  # type: ignore[arg-type]
        assert isinstance(asked, str), asked
        return asked

    def _deliver(self, answers: list[DrpcAnswer]) -> None:
        with self._changed:
            for answer in answers:
                assert answer.id not in self.answers
                self.answers[answer.id] = answer
            self._changed.notify_all()

    def wait(self, *ids: str) -> list[DrpcAnswer]:
        with self._changed:
            assert self._changed.wait_for(lambda: self.answers.keys() >= set(ids), WAIT_S)
        return [self.answers[id] for id in ids]


@pytest.fixture
def make():
    """Services that are closed in the end."""
    made: list[DrpcService] = []

    def service(*functions: Shout, committed: Callable[[], int | None] = lambda: None, **options):
        made.append(DrpcService(Config(**options), committed=committed))
        for function in functions:
            made[-1].add(function)
        return made[-1]

    yield service
    for each in made:
        each.close()


def said(answer: DrpcAnswer) -> object:
    return answer.tuples if answer.error is None else (answer.error.kind, answer.error.message)


def test_an_answer_comes_back_to_its_caller(make):
    service = make(Shout())

    assert said(service.execute("shout", "cat")) == [["CAT"]]


def test_those_who_wait_are_the_next_batch(make):
    shout = Shout()
    service = make(shout)
    calls = Calls(service)
    shout.gate.clear()
    first = calls.call("shout", "a")
    assert shout.entered.acquire(timeout=WAIT_S)
    ids = [calls.call("shout", word) for word in "bcd"]

    shout.gate.set()

    assert [said(answer) for answer in calls.wait(first, *ids)] == [
        [["A"]],
        [["B"]],
        [["C"]],
        [["D"]],
    ]
    assert shout.batches == [["a"], ["b", "c", "d"]]


def test_a_slow_function_holds_up_its_own_callers_only(make):
    slow, quick = Shout("slow"), Shout("quick")
    service = make(slow, quick)
    calls = Calls(service)
    slow.gate.clear()
    waits = calls.call("slow", "a")
    assert slow.entered.acquire(timeout=WAIT_S)

    assert said(service.execute("quick", "b")) == [["B"]]

    slow.gate.set()
    assert said(calls.wait(waits)[0]) == [["A"]]


def test_a_caller_is_told_when_its_time_is_over_and_the_late_answer_reaches_nobody(make):
    shout = Shout()
    service = make(shout)
    calls = Calls(service)
    shout.gate.clear()
    late = calls.call("shout", "a", timeout_s=0.01)

    (told,) = calls.wait(late)

    assert told.error is not None
    assert told.error.kind is DrpcErrorKind.TIMED_OUT
    shout.gate.set()
    assert said(service.execute("shout", "b")) == [["B"]]
    assert service.functions() == [
        {
            "name": "shout",
            "waiting": 0,
            "working": 0,
            "answered": 1,
            "failed": 1,
            "refused": 0,
            "abandoned": 0,
        }
    ]


def test_a_time_out_that_comes_before_the_one_waited_for_is_not_missed(make):
    shout = Shout()
    service = make(shout)
    calls = Calls(service)
    shout.gate.clear()
    calls.call("shout", "a", timeout_s=1000.0)
    assert shout.entered.acquire(timeout=WAIT_S)
    late = calls.call("shout", "b", timeout_s=0.01)

    (told,) = calls.wait(late)

    assert said(told) == (
        DrpcErrorKind.TIMED_OUT,
        "the request waited its time for 'shout', which is busy with others",
    )
    shout.gate.set()


def test_a_caller_waits_no_longer_than_the_run_allows(make):
    shout = Shout()
    service = make(shout, drpc_request_timeout_secs=0.01)
    shout.gate.clear()

    told = service.execute("shout", "a", timeout_s=1000.0)

    assert told.error is not None
    assert told.error.kind is DrpcErrorKind.TIMED_OUT
    shout.gate.set()


def test_one_more_than_may_wait_is_refused(make):
    shout = Shout()
    service = make(shout, drpc_queue_size=1)
    calls = Calls(service)
    shout.gate.clear()
    first = calls.call("shout", "a")
    assert shout.entered.acquire(timeout=WAIT_S)
    second = calls.call("shout", "b")

    refused = service.call("shout", "c", lambda answers: None)

    assert isinstance(refused, DrpcError)
    assert refused.kind is DrpcErrorKind.UNAVAILABLE
    shout.gate.set()
    calls.wait(first, second)
    assert service.functions()[0]["refused"] == 1


def test_a_caller_who_goes_away_frees_its_place(make):
    shout = Shout()
    service = make(shout, drpc_queue_size=1)
    calls = Calls(service)
    shout.gate.clear()
    first = calls.call("shout", "a")
    assert shout.entered.acquire(timeout=WAIT_S)
    gone = calls.call("shout", "b")

    service.abandon("shout", gone)
    third = calls.call("shout", "c")

    shout.gate.set()
    calls.wait(first, third)
    assert shout.batches == [["a"], ["c"]]
    assert gone not in calls.answers


def test_a_request_that_must_see_a_batch_waits_for_it_and_holds_nobody_up(make):
    committed = [6]
    service = make(Shout(), committed=lambda: committed[0])
    calls = Calls(service)
    later = calls.call("shout", "later", min_txid=7)
    assert said(service.execute("shout", "now")) == [["NOW"]]
    assert later not in calls.answers

    committed[0] = 7
    service.look_again()

    assert said(calls.wait(later)[0]) == [["LATER"]]


def test_the_end_is_told_to_all_who_wait(make):
    shout = Shout()
    service = make(shout)
    calls = Calls(service)
    shout.gate.clear()
    working = calls.call("shout", "a")
    assert shout.entered.acquire(timeout=WAIT_S)
    waiting = calls.call("shout", "b")

    service.close()

    over = (DrpcErrorKind.SHUTDOWN, "the run of 'shout' has ended")
    assert [said(told) for told in calls.wait(working, waiting)] == [over, over]
    assert said(service.execute("shout", "c")) == over
    shout.gate.set()


def test_a_function_nobody_has_is_refused_with_those_there_are(make):
    service = make(Shout("b"), Shout("a"))

    told = service.execute("c", "")

    assert said(told) == (
        DrpcErrorKind.FAILED,
        "there is no function 'c'; this topology has: a, b",
    )


class Broken:
    """Raises, or forgets a request, though neither is allowed."""

    name = "broken"

    def answer(self, requests: Sequence[DrpcRequest]) -> list[DrpcAnswer]:
        if requests[0].args == "raise":
            raise ValueError("no")
        return []


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ("raise", "'broken' could not be asked: ValueError: no"),
        ("forget", "'broken' gave no answer"),
    ],
)
def test_a_function_that_breaks_its_contract_harms_nobody_for_long(make, args, why):
    service = make(Broken())

    for _ in range(2):
        assert said(service.execute("broken", args)) == (DrpcErrorKind.UNAVAILABLE, why)


def test_many_threads_are_each_told_their_own_answer_once(make):
    service = make(Shout("a"), Shout("b"), drpc_queue_size=1000)
    wrong: list[object] = []

    def ask(number: int) -> None:
        for each in range(20):
            word = f"{number}-{each}"
            told = service.execute("ab"[each % 2], word)
            if told.tuples != [[word]]:
                wrong.append(told)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)

    assert not wrong
    assert [f["answered"] for f in service.functions()] == [500, 500]
