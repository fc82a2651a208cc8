"""Partitions of opaque spouts that cannot be reached are left out, and said; a loss is an error."""

from __future__ import annotations

import pytest

from tests.transactional.test_emitters import (
    Opaque,
    OpaquePinning,
    Partitioned,
    Pinning,
    StormOpaque,
    batches,
    broker,
    local,
    planner,
    ranges,
)
from waterspout import FailedException
from waterspout._backoff import Backoff
from waterspout.coordination.events import (
    BatchCommitted,
    BatchFailed,
    PartitionReachable,
    PartitionUnreachable,
)
from waterspout.errors import DataLossError, SourceError
from waterspout.transactional._away import (
    PartitionsAway,
    away_error,
    is_away,
    read_away_error,
)


class BrokerError(Exception):
    """What a client raises that has errors of its own."""


AWAY = [ConnectionError, TimeoutError, OSError, BrokerError, RuntimeError, SourceError]


@pytest.mark.parametrize("error", [*AWAY, FailedException])
@pytest.mark.parametrize("emitter", [OpaquePinning, StormOpaque])
def test_whatever_a_client_raises_leaves_its_partition_out_and_it_catches_up(emitter, error):
    source = broker([1, 2, 3], [4, 5, 6])
    planned = planner(Opaque("b", emitter))
    first = planned.plan(1, None)
    source.errors = {1: error("no route")}
    second = planned.plan(2, first)
    told = dict(planned.unreachable())
    source.errors = {}

    assert ranges(second) == [[[0, 2], [2, 3]], [[0, 2], None]]
    assert told == {1: f"{error.__name__}: no route"}
    assert ranges(planned.plan(3, second)) == [[[2, 3], None], [[0, 2], [2, 3]]]
    assert planned.unreachable() == {}


@pytest.mark.parametrize("error", [TypeError, KeyError, ValueError, ZeroDivisionError])
@pytest.mark.parametrize("emitter", [OpaquePinning, StormOpaque])
def test_an_error_of_the_code_is_not_taken_for_a_partition_that_is_away(emitter, error):
    broker([1], [2]).errors = {1: error("oops")}

    with pytest.raises(error):
        planner(Opaque("b", emitter)).plan(1, None)


@pytest.mark.parametrize("emitter", [OpaquePinning, StormOpaque])
def test_data_that_is_lost_ends_the_run_and_is_never_nothing(emitter):
    source = broker([1, 2, 3], [4, 5, 6])
    run = local(Opaque("b", emitter), max_retries=100)
    run.finish()
    source.partitions[0].append(7)
    source.errors = {1: DataLossError("offsets 2 to 9 have expired")}

    with pytest.raises(DataLossError, match="have expired"):
        run.finish()


@pytest.mark.parametrize("emitter", [OpaquePinning, StormOpaque])
def test_a_file_that_was_read_and_is_gone_is_lost_and_one_that_is_not_there_yet_is_not(emitter):
    source = broker([1, 2, 3], [4, 5, 6])
    planned = planner(Opaque("b", emitter))
    source.errors = {1: FileNotFoundError(2, "No such file", "b.log")}

    first = planned.plan(1, None)
    assert ranges(first) == [[None, [0, 2]], [None, None]]
    source.errors = {0: FileNotFoundError(2, "No such file", "a.log")}
    with pytest.raises(
        DataLossError, match=r"partition 0 of spout 'spout' was read up to .*a\.log"
    ):
        planned.plan(2, first)


def test_a_lost_partition_of_a_transactional_spout_ends_the_run_at_once():
    source = broker([1, 2, 3])
    run = local(Partitioned("b", Pinning), max_retries=100)
    source.errors = {0: DataLossError("it has expired")}

    with pytest.raises(DataLossError):
        run.finish()
    assert source.asked == [None]


def test_the_run_says_which_partition_is_away_and_when_it_is_back():
    source = broker([1, 2], [3, 4], take=1)
    heard = []
    run = local(Opaque("b", OpaquePinning), listener=heard.append)
    source.errors = {1: ConnectionRefusedError("no route")}

    run.finish()
    source.errors = {}
    run.finish()

    away = [e for e in heard if isinstance(e, PartitionUnreachable)]
    back = [e for e in heard if isinstance(e, PartitionReachable)]
    assert [(e.component, e.partition, e.error) for e in away] == [
        ("spout", 1, "ConnectionRefusedError: no route")
    ]
    assert [(e.component, e.partition) for e in back] == [("spout", 1)]
    assert batches(run) == [("1:0", [1]), ("2:0", [2]), ("3:0", [3]), ("4:0", [4])]
    progress = [e.progress.unreachable for e in heard if isinstance(e, BatchCommitted)]
    first = {"spout/1": "ConnectionRefusedError: no route"}
    assert progress == [first, first, {}, {}]


class ReadsInVain(OpaquePinning):
    """Can be planned, and not be read: its metadata comes from elsewhere."""

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        error = self.broker.unreadable.get(partition)
        if error is not None:
            raise error
        super().emit_partition_batch(attempt, collector, partition, metadata)


def test_a_partition_that_a_task_cannot_read_is_left_out_of_the_next_attempt():
    source = broker([1, 2], [3, 4])
    source.unreadable = {1: ConnectionResetError("by peer")}
    heard = []
    # A crash would end the run at once.
    run = local(Opaque("b", ReadsInVain), listener=heard.append, max_retries=0)

    for _ in range(30):
        run.step()
    committed = batches(run)
    source.unreadable = {}
    run.finish()

    assert committed[0] == ("1:1", [1, 2])
    assert [ns for _, ns in batches(run) if ns] == [[1, 2], [3, 4]]
    (told, *_) = [str(e.error) for e in heard if isinstance(e, BatchFailed)]
    assert told == "partition 1 of 'spout' cannot be reached: ConnectionResetError: by peer"
    (away, *_) = [e for e in heard if isinstance(e, PartitionUnreachable)]
    assert (away.partition, away.error) == (1, "ConnectionResetError: by peer")


def test_an_error_of_a_transactional_emitter_stays_what_it_is():
    source = broker([1])
    source.unreadable = {0: ConnectionResetError("by peer")}

    class InVain(ReadsInVain, Pinning):
        pass

    with pytest.raises(ConnectionResetError):
        local(Partitioned("b", InVain), max_retries=0).finish()


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_partition_that_takes_long_to_fail_does_not_hold_up_the_others():
    clock = Clock()
    away = PartitionsAway(Backoff(0.1), clock)
    clock.now = 3.0
    away.asked_in_vain(1, TimeoutError("30 s"), began=0.0)

    away.begin_look()
    assert [away.may_ask(0), away.may_ask(1)] == [True, False]
    assert away.left_alone
    clock.now = 33.0
    away.begin_look()
    assert away.may_ask(1)
    assert not away.left_alone


def test_one_that_cannot_be_read_is_back_only_when_a_batch_of_it_has_committed():
    clock = Clock()
    away = PartitionsAway(Backoff(0.125), clock)

    pauses = []
    for _ in range(3):
        away.read_in_vain(2, "reset")
        pauses.append(away._away[2].until - clock.now)
        clock.now = away._away[2].until
        assert [away.may_ask(2), away.may_ask(2)] == [False, True]
        away.answered(2)
    assert pauses == [0.125, 0.25, 0.5]
    assert away.errors == {2: "reset"}
    away.committed(2)
    assert away.errors == {}


def test_what_is_told_of_a_partition_of_another_spout_is_not_taken():
    error = FailedException(str(away_error("it's", 12, "gone\nfor lunch")))

    assert read_away_error(error, "it's") == (12, "gone\nfor lunch")
    assert read_away_error(error, "other") is None
    assert read_away_error(RuntimeError(str(error)), "it's") is None
    assert is_away(error)
