"""Batches that size themselves, in the loop: in process, by a clock that the rows move on."""

from __future__ import annotations

import pytest

from waterspout import Config
from waterspout.coordination.commands.messages import Change
from waterspout.coordination.events import (
    BatchCommitted,
    BatchEmitted,
    BatchFailed,
    BatchProcessed,
    BatchSized,
)
from waterspout.coordination.progress import BatchTotals
from waterspout.coordination.recording import Recorder
from waterspout.coordination.sizing import is_too_large, sizing_policy
from waterspout.errors import BatchTimeoutError
from waterspout.spouts._base import BatchPlanner, BatchSpout, SpoutKind
from waterspout.spouts.files import FileSpout
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout, LocalBatches, LocalRun, MemoryLog
from waterspout.transactional import (
    BatchBolt,
    MemoryTransactionalSpout,
    TransactionalTopologyBuilder,
)
from waterspout.trident import Count, TridentTopology

FIXED_S, ROW_S = 0.2, 0.01
SIZED = Config(batch_sizing=True, batch_interval_millis=2000, max_spout_pending=1)


class Timed:
    """A count of rows; each batch and each row of it take time, by a clock of our own."""

    def __init__(self, spout, config=SIZED, *, most=None):
        self.now, self.row_s, self.most = 0.0, ROW_S, most
        self.events = []
        self.recorder = Recorder("timed", BatchTotals())
        topology = TridentTopology("timed")
        rows = topology.new_stream("rows", spout)
        (field,) = rows.fields
        self.counts = (
            rows.filter(field, self._takes_time)
            .group_by(field)
            .persistent_aggregate(MemoryMapState.opaque(), Count(), out="times")
        )
        self._in_batch = 0
        self.run = LocalRun(topology, config, clock=lambda: self.now, listener=self._hear)

    def _hear(self, event):
        self.events.append(event)
        self.recorder(event)
        if isinstance(event, BatchEmitted):
            self.now += FIXED_S
            self._in_batch = 0

    def _takes_time(self, value):
        self.now += self.row_s
        self._in_batch += 1
        if self.most is not None and self._in_batch > self.most:
            raise MemoryError(f"{self._in_batch} rows")
        return True

    def finish(self):
        for _ in range(20_000):
            self.run.step()
            self.now += 1e-4
            if self.run.loop.is_idle and not self.run.engine.waiting:
                return self
        raise AssertionError("it did not come to its end")

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def sizes(self):
        return [event.progress.input_rows for event in self.of(BatchCommitted)]

    def counted(self, rows):
        return sum(self.counts.multi_get([(n,) for n in range(rows)]), start=0) if rows else 0


def log(rows, *, kind=SpoutKind.OPAQUE, take=10, sized=True):
    return MemoryLog("n bigint", [[(n,) for n in range(rows)]], kind=kind, take=take, sized=sized)


def test_a_backlog_becomes_batches_of_about_the_interval():
    timed = Timed(log(2000)).finish()

    aim = (SIZED.batch_interval_millis / 1000 - FIXED_S) / ROW_S
    assert timed.sizes[:6] == [10, 10, 20, 40, 80, 160]
    assert all(0.7 * aim < size < 1.4 * aim for size in timed.sizes[6:-1])
    assert timed.counted(2000) == 2000


def test_each_change_is_an_event_with_its_reason():
    timed = Timed(log(2000)).finish()

    told = [event.sizing for event in timed.of(BatchSized)]
    assert [sizing.targets["rows"] for sizing in told][:4] == [20, 40, 80, 160]
    assert told[0].units == {"rows": "rows"}
    assert told[0].reason.startswith("behind, and a batch takes 0.30 s")
    assert len({tuple(sizing.targets.items()) for sizing in told}) == len(told)


def test_progress_and_snapshot_tell_what_a_batch_held_and_what_comes_next():
    timed = Timed(log(2000)).finish()

    progress = [event.progress for event in timed.of(BatchCommitted)]
    snapshot = timed.recorder.snapshot("running")
    assert [dict(each.sizes) for each in progress[:3]] == [{"rows": 10}, {"rows": 10}, {"rows": 20}]
    assert dict(progress[1].targets) == {"rows": 20}
    assert progress[1].max_in_flight == 1
    assert "rows 20" in progress[1].reason
    assert snapshot.sizing == timed.of(BatchSized)[-1].sizing
    assert '"sizing": {"targets": {"rows":' in snapshot.json


def test_nothing_waits_to_fill_a_batch():
    timed = Timed(log(5, take=10)).finish()

    assert timed.sizes == [5]


@pytest.mark.parametrize("config", [Config(), Config(batch_sizing=False)])
def test_in_the_test_kit_batches_stay_as_they_are_planned_unless_asked(config):
    timed = Timed(log(100), config).finish()

    assert timed.sizes == [10] * 10
    assert timed.of(BatchSized) == []
    assert timed.of(BatchCommitted)[-1].progress.reason == ""
    assert timed.run.loop.coordinator.max_batches == 1


def test_a_size_that_was_said_stays():
    timed = Timed(FixedBatchSpout("n bigint", 7, list(range(70)))).finish()

    assert timed.sizes == [7] * 10
    assert [dict(event.progress.targets) for event in timed.of(BatchCommitted)] == [{}] * 10


def test_files_without_a_limit_become_larger_batches_and_with_one_they_do_not(tmp_path):
    for name in range(40):
        (tmp_path / f"f{name:02}").write_text("12345678\n" * 5)
    said, free = FileSpout(tmp_path, max_files=2), FileSpout(tmp_path)
    free.max_files = 2  # as if 64 MB were two files
    config = SIZED.replace(home=str(tmp_path / ".home"))

    pinned = Timed(said, config)
    grown = Timed(free, config)

    assert [n // 5 for n in pinned.finish().sizes] == [2] * 20
    assert [n // 5 for n in grown.finish().sizes][:4] == [2, 2, 4, 8]
    assert sum(grown.sizes) == 200


class _TwoArguments(BatchPlanner):
    """A planner as users wrote it before there were targets."""

    def is_ready(self, previous):
        return previous is None or previous["end"] < 20

    def plan(self, txid, previous):
        start = 0 if previous is None else previous["end"]
        return {"start": start, "end": start + 5}


def test_a_planner_that_knows_no_target_is_asked_as_before():
    spout = FixedBatchSpout("n bigint", 5, list(range(20)))
    spout.open = lambda context: _TwoArguments()

    timed = Timed(spout).finish()

    assert timed.sizes == [5, 5, 5, 5]
    assert timed.of(BatchSized) == []


def test_an_error_in_a_planner_with_a_target_is_not_taken_for_a_missing_parameter():
    spout = log(40)
    asked = []
    opened = spout.open

    def opening(context):
        planner = opened(context)
        plan = planner.plan

        def failing(txid, previous, target=None):
            asked.append(target)
            if len(asked) == 3:
                raise TypeError("plan() takes 2 positional arguments")
            return plan(txid, previous, target)

        planner.plan = failing
        return planner

    spout.open = opening
    timed = Timed(spout).finish()

    (failed,) = timed.of(BatchFailed)
    assert asked == [None, None, 20, 20]  # the last time again for the replay
    assert failed.attempt.txid == 3
    assert sum(timed.sizes) == 40


@pytest.mark.parametrize("kind", [SpoutKind.OPAQUE, SpoutKind.TRANSACTIONAL])
def test_after_an_attempt_that_was_too_large_an_opaque_batch_is_planned_smaller(kind):
    config = SIZED.replace(retry_backoff_millis=0, max_retries=2)
    timed = Timed(log(400, kind=kind), config, most=50)
    if kind is SpoutKind.TRANSACTIONAL:  # its batch stays what it was: only later ones shrink
        with pytest.raises(MemoryError):
            timed.finish()
        failed = timed.of(BatchFailed)
        assert {event.attempt.txid for event in failed} == {5}
    else:
        timed.finish()
        assert max(timed.sizes) <= 50
        assert timed.counted(400) == 400
    reasons = [event.sizing.reason for event in timed.of(BatchSized)]
    assert "an attempt was too large (out of memory): from now on rows 40 rows" in reasons


def test_over_the_mark_of_staged_rows_no_batch_begins_and_under_the_low_one_they_do():
    config = Config(batch_sizing=True, max_spout_pending=4, staged_max_rows=20)
    timed = Timed(log(200, take=8, sized=False), config)
    staged, most, began_over = {}, 0, 0

    def watch(event):
        nonlocal most, began_over
        match event:
            case BatchEmitted():
                began_over += sum(staged.values()) >= 18
            case BatchProcessed(attempt=attempt):
                staged[attempt] = 8
                most = max(most, sum(staged.values()))
            case BatchCommitted(attempt=attempt):
                del staged[attempt]

    timed.run.loop.events.subscribe(watch)
    last = lambda n: n - 1  # the newest phase first: commits come last  # noqa: E731
    for _ in range(2000):
        timed.run.step(last)
        timed.now += 0.01
        if timed.run.loop.is_idle and not timed.run.engine.waiting:
            break

    throttled = [event.sizing.throttled for event in timed.of(BatchSized)]
    assert began_over == 0
    assert most <= 4 * 8
    assert True in throttled
    assert throttled[-1] is False
    assert sum(timed.sizes) == 200


def test_how_many_are_in_flight_follows_from_the_times_and_can_be_said_while_it_runs():
    config = Config(batch_sizing=True, batch_interval_millis=100)
    timed = Timed(log(3000, take=1), config)
    for _ in range(400):
        timed.run.step()
        timed.now += 0.01

    chosen = timed.run.loop.coordinator.max_batches
    timed.run.loop.change(Change(pending=1))
    for _ in range(200):
        timed.run.step()
        timed.now += 0.01

    assert chosen in (2, 3)
    assert timed.run.loop.coordinator.max_batches == 1
    assert timed.of(BatchSized)[-1].sizing.max_in_flight == 1


def test_a_transactional_topology_chooses_how_many_are_in_flight_as_well():
    class Pass(BatchBolt):
        output_fields = ("tx", "n")

        def execute(self, tuple):
            self.collector.emit([self.id, tuple["n"]])

    spout = MemoryTransactionalSpout([[(n,) for n in range(40)]], "n", 1)
    builder = TransactionalTopologyBuilder("bolts", "rows", spout)
    builder.set_bolt("pass", Pass()).shuffle_grouping("rows")
    heard = []
    run = LocalBatches(builder.build_topology(), Config(batch_sizing=True), listener=heard.append)

    run.finish()

    assert [n for _, n in sorted(run.emitted("pass"))] == list(range(40))
    assert max(e.sizing.max_in_flight for e in heard if isinstance(e, BatchSized)) > 1
    assert all(dict(e.progress.targets) == {} for e in heard if isinstance(e, BatchCommitted))


def test_the_bounds_follow_from_the_options():
    conf = Config(batch_interval_millis=500, staged_max_rows=1000)

    policy = sizing_policy(conf, pending_max=3, otherwise=True)

    assert policy is not None
    assert (policy.aim_s, policy.pending, policy.pending_max) == (0.5, None, 3)
    assert (policy.staged_high, policy.staged_low) == (900, 400)
    assert sizing_policy(conf, pending_max=3, otherwise=False) is None
    assert sizing_policy(conf.replace(batch_sizing=False), pending_max=3, otherwise=True) is None
    pinned = sizing_policy(conf.replace(max_spout_pending=8), pending_max=3, otherwise=True)
    assert pinned is not None
    assert (pinned.pending, pinned.pending_max) == (8, 8)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BatchTimeoutError("late"), True),
        (MemoryError(), True),
        (RuntimeError("java.lang.OutOfMemoryError: Java heap space"), True),
        (RuntimeError("MemoryError: cannot allocate"), True),
        (RuntimeError("connection refused"), False),
        (ValueError("bad"), False),
    ],
)
def test_what_counts_as_too_large(error, expected):
    assert is_too_large(error) is expected


def test_spouts_of_users_need_not_know_any_of_it():
    assert BatchPlanner.size_of(_TwoArguments(), {}) is None
    assert BatchPlanner.left_more(_TwoArguments(), {}) is None
    assert issubclass(FixedBatchSpout, BatchSpout)


class Trickle(BatchPlanner):
    """Rows that come one in a hundredth of a second, also while a batch is stored."""

    def __init__(self, clock):
        self._clock = clock

    def is_ready(self, previous):
        return self._due() > (0 if previous is None else previous["end"])

    def plan(self, txid, previous, target=None):
        start = 0 if previous is None else previous["end"]
        return {"start": start, "end": min(self._due(), start + (target or 100))}

    def size_of(self, metadata):
        return metadata["end"] - metadata["start"]

    def lag(self, previous):
        return {"rows": self._due() - previous["end"]}

    def _due(self):
        return min(500, int(self._clock() * 100))


def test_what_comes_while_a_batch_is_on_its_way_is_no_backlog():
    spout = FixedBatchSpout("n bigint", 1, list(range(500)))
    spout.open = lambda context: Trickle(context.clock)
    timed = Timed(spout)
    timed.row_s = 0.0

    timed.now = 0.01
    for _ in range(6000):
        timed.run.step()
        timed.now += 1e-3

    assert sum(timed.sizes) == 500
    assert timed.of(BatchSized) == []  # each batch has taken all that there was
