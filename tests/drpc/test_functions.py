"""The functions of a Trident topology: deadlines, waits for a batch, outages, the end of a run."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import pytest

from tests.trident.test_drpc import OPERATIONS, run_of
from waterspout.coordination.events import BatchCommitted
from waterspout.drpc._calls import DrpcErrorKind, DrpcRequest
from waterspout.drpc._functions import Commits, _locks, functions_of
from waterspout.errors import OutageError
from waterspout.state import MemoryMapState
from waterspout.testing import LocalRun
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Ledger
from waterspout.trident import MapGet, TridentTopology


def committed(ledger, txid):
    attempt = TransactionAttempt(txid, 0)
    return ledger.emit(attempt, {}).begin(attempt).commit(attempt).settle()


def counting():
    return run_of(OPERATIONS["aggregate"][0]).functions["f"]


def test_a_request_whose_time_is_up_is_not_run():
    ran = []
    function = run_of(lambda topology, stream: stream.peek(ran.append)).functions["f"]

    (answer,) = function.answer([DrpcRequest("1", "a", deadline=time.monotonic() - 1)])

    assert answer.error.kind is DrpcErrorKind.TIMED_OUT
    assert ran == []


def test_a_request_waits_for_others_no_longer_than_its_deadline():
    function = counting()

    with function.lock:
        (answer,) = function.answer([DrpcRequest("1", "a", deadline=time.monotonic() + 0.02)])

    assert answer.error.kind is DrpcErrorKind.TIMED_OUT
    assert answer.error.message == "TimeoutError: other requests were not done in time"


def test_a_run_that_has_ended_says_so():
    runner = counting().runner
    over = functions_of([runner], Commits(lambda: Ledger("t")), lambda: True)["f"]

    (answer,) = over.answer([DrpcRequest("1", "a")])

    assert answer.error.kind is DrpcErrorKind.SHUTDOWN


def test_whoever_waits_for_a_batch_is_woken_when_it_has_committed():
    ledger, found = [Ledger("t")], []
    commits = Commits(lambda: ledger[0])
    waiting = threading.Thread(
        target=lambda: found.append(commits.wait_for(1, time.monotonic() + 60))
    )
    waiting.start()

    ledger[0] = committed(ledger[0], 1)
    commits(BatchCommitted("t", TransactionAttempt(1, 0), None))
    waiting.join(60)

    assert found == [True]
    assert commits.txid == 1


def test_those_who_wait_for_a_batch_do_not_hold_up_those_who_do_not():
    runner, ledger = counting().runner, committed(Ledger("t"), 1)
    function = functions_of([runner], Commits(lambda: ledger), lambda: False)["f"]
    soon = time.monotonic() + 0.05

    late, now, old = function.answer(
        [
            DrpcRequest("1", "a", min_txid=2, deadline=soon),
            DrpcRequest("2", "a b"),
            DrpcRequest("3", "a b c", min_txid=1),
        ]
    )

    assert (late.error.kind, late.txid) == (DrpcErrorKind.TIMED_OUT, 1)
    assert [(answer.tuples, answer.txid) for answer in (now, old)] == [([[2]], 1), ([[3]], 1)]


def test_a_batch_of_a_topology_without_batches_does_not_come():
    (answer,) = counting().answer([DrpcRequest("1", "a", min_txid=1)])

    assert answer.error.kind is DrpcErrorKind.TIMED_OUT
    assert answer.error.message == "no stream of this topology has batches"


@dataclass(frozen=True)
class Away(MemoryMapState):
    """A store that cannot be reached, and knows how often that was tried."""

    tries: list[int] = field(default_factory=list, compare=False)

    def make_state(self, conf, partition_index, num_partitions):
        self.tries.append(1)
        raise OutageError("the store", "it does not answer")


def test_a_store_that_is_away_is_asked_once_for_all_requests():
    topology, away = TridentTopology("asked"), Away()
    state = topology.new_static_state(away)
    topology.new_drpc_stream("f").state_query(state, "args", MapGet(), "n bigint")
    function = LocalRun(topology).functions["f"]
    away.tries.clear()

    answers = function.answer([DrpcRequest(str(i), "a") for i in range(3)])

    assert [answer.error.kind for answer in answers] == [DrpcErrorKind.UNAVAILABLE] * 3
    assert {answer.error.operation for answer in answers} == {"state_query(MapGet)"}
    assert len(away.tries) == 1


@pytest.mark.parametrize("many", [1, 3])
def test_answers_come_in_the_order_of_the_requests(many):
    requests = [DrpcRequest(str(i), "w " * i) for i in range(many)]

    answers = counting().answer(requests)

    assert [(a.id, a.tuples) for a in answers] == [(str(i), [[i]]) for i in range(many)]


def test_functions_that_a_third_one_links_by_their_operations_take_turns_too():
    first, second, both, alone, none = _locks([{1}, {2}, {1, 2}, {3}, set()])

    assert first is second is both
    assert len({id(lock) for lock in (first, alone, none)}) == 3
