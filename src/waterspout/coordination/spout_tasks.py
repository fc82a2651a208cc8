"""All spout tasks of a run: they are asked, handed over to waves, and told what has become of it.

The order matters: dead letters are stored before their messages are acked, and positions after.
"""

from __future__ import annotations

import logging
import secrets
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ParamSpec, TypeVar

import numpy as np

from waterspout import faults
from waterspout._config import Config
from waterspout._letters import DeadLetter
from waterspout.acking.tracker import AckTracker, Decided, TreeReport, Trees
from waterspout.acking.xor import Ids, combine, generator, no_ids
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.coordination.driven import without_harm
from waterspout.coordination.events import (
    ErrorReported,
    Event,
    MessageDeadLettered,
    SpoutPaused,
    TreesDecided,
)
from waterspout.coordination.outages import LEDGER, Waits, outage_of
from waterspout.coordination.store import CoordinationStore
from waterspout.errors import DataLossError, EmitError, OutageError, SpoutCrash
from waterspout.topology._graph import Topology
from waterspout.transactional._ledger import Ledger
from waterspout.waves.bolts import Errors, Failure
from waterspout.waves.counting import AckerCounts, TaskCounts
from waterspout.waves.failures import FailureCounts
from waterspout.waves.frames import Frame, Unfit, anchored, parted
from waterspout.waves.log_spouts import LogTask
from waterspout.waves.logs import LogRead
from waterspout.waves.outlets import cannot_travel
from waterspout.waves.over_waves import ShardResult
from waterspout.waves.spouts import PulledSpout, SpoutTask, TaskSettings

__all__ = ["Counts", "SpoutTasks"]

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=SpoutTask)

# How long the spouts are asked before a look is taken at all else, if they have not had enough.
_LOOK_S = 0.02
_LOOK_FOR_REPLAYS_S = 0.5
_STORE_POSITIONS_S = 1.0


@dataclass(slots=True)
class Counts:
    """Totals since the run began."""

    emitted: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    dead_letters: int = 0


class SpoutTasks:
    """The spouts' side of a wave loop, and the trees of their messages."""

    def __init__(
        self,
        topology: Topology,
        conf: Config,
        ledger: Ledger,
        letters: DeadLetters,
        clock: Callable[[], float],
        publish: Callable[[Event], None],
        waits: Waits,
    ) -> None:
        self._topology = topology
        self._conf = conf
        self._ledger = ledger
        self._letters = letters
        self._clock = clock
        self._publish = publish
        self._waits = waits
        self._tracked = conf.ackers > 0
        self._ids = generator([secrets.randbits(128)])
        timeout = conf.message_timeout_secs if conf.enable_message_timeouts else None
        self.tracker = AckTracker(max(1, conf.ackers), timeout, clock())
        self._tasks: dict[int, SpoutTask] = {}
        self._failing: dict[str, FailureCounts] = {}
        self._crashes: dict[tuple[int, str], int] = {}
        self._asleep_until: dict[int, float] = {}
        self._replaying: set[str] = set()
        self._asked = self._planned = 0
        self._unasked: deque[PulledSpout] = deque()
        self._more = False
        self._look_at = self._store_at = clock()
        self.counts = Counts()
        self._sent: dict[int, TaskCounts] = {}
        self._acker = AckerCounts()
        self.dry = False
        """Whether the last look found nothing, and nothing was told to a spout since."""

    def open(self, pickled: Mapping[str, bytes]) -> None:
        """Make the tasks and open their spouts."""
        conf = self._conf.to_dict()
        for spec in self._topology.spouts:
            failing = FailureCounts(self._ledger.failing.get(spec.id))
            self._failing[spec.id] = failing
            for task in self._topology.tasks[spec.id]:
                settings = TaskSettings(
                    conf,
                    self._tracked,
                    self._conf.max_replays,
                    self._reporter(spec.id, task),
                    failing,
                    self._clock,
                )
                made: SpoutTask
                if spec.read_on_executors:
                    stored = self._ledger.positions.get(spec.id, {})
                    made = LogTask(self._topology, task, settings, stored)
                else:
                    made = PulledSpout(self._topology, task, settings, pickled[spec.id])
                self._tasks[task] = made
        for each in self._tasks.values():
            self._guarded(each, each.open)

    def close(self) -> None:
        """Close the spouts; what they raise is reported."""
        for each in self._tasks.values():
            each.close()

    def activate(self, active: bool) -> None:
        """Tell the spouts that they will, or will not, be asked for a while."""
        for each in self._tasks.values():
            self._guarded(each, each.activate, active)

    def set_max_pending(self, n: int) -> None:
        """Let each task have so many messages on the way from now on."""
        for each in self._tasks.values():
            each.set_max_pending(n)

    @property
    def pending(self) -> int:
        """Messages that are neither acked nor failed."""
        return sum(each.pending for each in self._tasks.values()) if self._tracked else 0

    @property
    def collected(self) -> int:
        """Tuples that were emitted and are in no wave yet."""
        return sum(each.emitted for each in self._tasks.values())

    @property
    def reads_freely(self) -> bool:
        """Whether there are logs, and what is acked makes no room in them that was not there."""
        logs = [each for each in self._tasks.values() if isinstance(each, LogTask)]
        return bool(logs) and not any(each.is_limited for each in logs)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on the way and nothing was left to be had."""
        return (
            self.dry
            and not self.pending
            and not self.collected
            and not self._asleep_until
            and not self._replaying
            and not any(
                each.has_delayed for each in self._tasks.values() if isinstance(each, LogTask)
            )
            and all(
                self._guarded(each, each.is_drained)
                for each in self._tasks.values()
                if isinstance(each, PulledSpout)
            )
        )

    def lag(self) -> dict[str, dict[str, int]]:
        """Return how much waits at each spout that can tell."""
        found: dict[str, dict[str, int]] = {}
        for each in self._tasks.values():
            name = each.component
            if isinstance(each, LogTask):
                before = found.get(name, {"offsets": 0})
                found[name] = {"offsets": before["offsets"] + each.lag()}
            elif isinstance(each, PulledSpout) and name not in found and not self._is_down(each):
                waiting = without_harm(each.lag, each.component)
                found[name] = {} if waiting is None else {"messages": waiting}
        return found

    def ask(self, limit: int) -> bool:
        """Ask the spouts once around, for `limit` tuples in all; return whether more may come.

        Spouts that sleep when they are asked, as many of Storm do, hold up everything else. Such a
        look ends early, and the next one goes on where it has ended.
        """
        until = self._clock() + _LOOK_S
        if not self._unasked:
            self._asked += 1  # another one is first each time, or a small wave is all of one spout
            pulled = [each for each in self._tasks.values() if isinstance(each, PulledSpout)]
            self._unasked.extend(_from(pulled, self._asked))
            self._more = False
        while self._unasked:
            self._more = self._ask_one(self._unasked.popleft(), limit, until) or self._more
            if self._clock() >= until:
                break
        more = self._more or bool(self._unasked)
        self.dry = not more
        return more and self.collected < limit

    def _ask_one(self, each: PulledSpout, limit: int, until: float) -> bool:
        """Return whether a spout may have more."""
        if not self._is_awake(each):
            return False
        room = limit - self.collected
        if room <= 0:
            return True
        if not each.has_room:
            return False
        gave = self._guarded(each, each.ask, room, until)
        if gave is not None:
            self._works_again(each, "next_tuple")
            self._waits.noted(_part(each, "by itself"), each.outage())
        return bool(gave)

    def _stir(self) -> None:
        """Spouts were told something: those that had nothing may have something to emit now."""
        self.dry, self._more = False, True

    def plan_reads(self, room: int) -> list[LogRead]:
        """Return what is to be read on executors: about `room` messages, and all retries."""
        reads: list[LogRead] = []
        self._planned += 1
        logs = [each for each in self._tasks.values() if isinstance(each, LogTask)]
        awake = [each for each in _from(logs, self._planned) if self._is_awake(each)]
        for number, each in enumerate(awake):
            share = -(-room // (len(awake) - number))
            if share > 0 or each.has_retries:
                read = self._guarded(each, each.plan, share)
                if each.task not in self._asleep_until:
                    self._works_again(each, "partitions", "begin", "end", "advance")
                if read is not None:
                    reads.append(read)
                    room -= read.messages
        return reads

    def reads_apart(self) -> list[LogRead]:
        """Return what is to be read alone, for it has killed its worker."""
        logs = [each for each in self._tasks.values() if isinstance(each, LogTask)]
        return [read for each in logs if each.has_retries for read in each.plan_apart()]

    def hand_out(self, born: int) -> tuple[list[Frame], list[list[Frame]]]:
        """Return all that was emitted, as frames of a wave, and begin to track its messages.

        With it, apart, the frames of each message that has killed its worker.
        """
        frames: list[Frame] = []
        apart: list[list[Frame]] = []
        for each in self._tasks.values():
            if each.emitted:
                self.counts.emitted += each.emitted
                emission = each.hand_out(self._ids, born)
                mine = self._sent.setdefault(each.task, TaskCounts(each.component, each.task))
                mine.sent(*emission.counts)
                others, suspects = parted(emission.frames, emission.suspects)
                frames += others
                apart += suspects
                self._track(each.task, emission.roots, emission.values)
                self._fail_unfit(each, emission.unfit)
        return frames, apart

    def _fail_unfit(self, each: SpoutTask, unfit: Iterable[Unfit]) -> None:
        """Fail messages that cannot be sent to a worker."""
        errors = Errors(each.component, each.task)
        failures: dict[int, Failure] = {}
        for one in unfit:
            why = errors.add(cannot_travel(self._topology, one))
            for root in anchored(one.frame)[0].tolist():
                failures[root] = Failure(root, each.component, why)
        for note in errors.notes.values():
            self._publish(ErrorReported(self._topology.name, **asdict(note)))
        self._fail_all(failures)

    def _track(self, task: int, roots: Any, values: Any) -> None:
        if len(roots):
            tasks = np.full(len(roots), task, np.int32)
            with self._acker.working():
                refused = self.tracker.open(roots, values, tasks)
            self._acker.told(self._topology.component_of[task], "__ack_init", len(roots))
            self._fail(refused, lambda root: Failure(root, "__acker", "its random id was taken"))

    def _guarded(
        self, each: SpoutTask, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R | None:
        """Call a spout; one that raises is started anew, until it has raised too often."""
        try:
            return call(*args, **kwargs)
        except SpoutCrash as crash:
            self._rest(each, crash)
            return None

    def _works_again(self, each: SpoutTask, *methods: str) -> None:
        for method in methods:
            self._crashes.pop((each.task, method), None)
            self._waits.answered(_part(each, method))

    def _rest(self, each: SpoutTask, crash: SpoutCrash) -> None:
        cause = crash.__cause__
        assert cause is not None
        text = "".join(traceback.format_exception(cause))
        self._report(each.component, each.task, str(crash), text)
        if isinstance(cause, DataLossError):
            raise cause  # to wait would not bring it back
        # By method: that it can be asked says nothing about a spout whose `ack` raises.
        outage = outage_of(crash, each.component)
        if outage is not None:
            pause_s = self._waits.met(_part(each, crash.method), outage)
        else:
            key = (each.task, crash.method)
            crashes = self._crashes[key] = self._crashes.get(key, 0) + 1
            if crashes > self._conf.max_retries:
                raise crash
            pause_s = self._conf.retry_backoff.pause_s(crashes)
        self._asleep_until[each.task] = self._clock() + pause_s
        self._publish(SpoutPaused(self._topology.name, each.component, str(crash), pause_s))

    def _is_awake(self, each: SpoutTask) -> bool:
        """Whether a spout may be asked; one whose pause is over is started anew first."""
        until = self._asleep_until.get(each.task)
        if until is None:
            return True
        if self._clock() < until:
            return False
        del self._asleep_until[each.task]
        if isinstance(each, PulledSpout):
            self._guarded(each, each.restart)
            if each.task not in self._asleep_until:
                self._works_again(each, "open")
        return each.task not in self._asleep_until

    def take_counts(self) -> list[TaskCounts]:
        """Return what the spouts of the driver and the ackers have done since the last call."""
        sent, self._sent = self._sent, {}
        acker, self._acker = self._acker, AckerCounts()
        return [*sent.values(), *acker.counts()]

    def take_back(self, frames: Iterable[Frame]) -> list[Frame]:
        """Give the spouts what was sent back to them; return the frames that are for bolts.

        Called before acks and fails of the same wave are told.
        """
        others: list[Frame] = []
        for frame in frames:
            each = self._tasks.get(frame.target)
            if isinstance(each, PulledSpout):
                self._guarded(each, each.returned, frame)
            else:
                others.append(frame)
        return others

    def finish_wave(self, results: Sequence[ShardResult], began: float | None = None) -> None:
        """Apply what a wave has done to the trees, and tell the spouts of those that ended.

        `began` is when the wave did, on the clock of the run.
        """
        began = self._clock() if began is None else began
        self._stir()
        failures: dict[int, Failure] = {}
        reports: list[TreeReport] = []
        for result in results:
            for opened in result.opened:
                task = self._tasks[opened.task]
                assert isinstance(task, LogTask)
                self._track(opened.task, *task.opened(opened, began))
            failures.update({failure.root: failure for failure in result.failures})
            reports.append(result.report)
        roots, values = combine([r.roots for r in reports], [r.values for r in reports])
        report = TreeReport(
            roots,
            values,
            np.unique(np.concatenate([no_ids(), *(r.failed for r in reports)])),
            np.unique(np.concatenate([no_ids(), *(r.reset for r in reports)])),
        )
        decided = self._apply(report)
        if self._tracked:
            for each in (counts for result in results for counts in result.counts):
                self._acker.told(each.component, "__ack_ack", each.acks)
                self._acker.told(each.component, "__ack_fail", each.fails)
        self._ack(decided.acked)
        self._fail(decided.failed, lambda root: failures[root])

    def _apply(self, report: TreeReport) -> Decided:
        with self._acker.working():
            decided = self.tracker.apply(report)
        self._acker.decided(len(decided.acked), len(decided.failed))
        return decided

    def fail_deadly(self, roots: Ids, component: str, why: str) -> None:
        """Fail the messages of a tuple that kills its worker."""
        self._fail_all({r: Failure(r, component, why, deadly=True) for r in roots.tolist()})

    def _fail_all(self, failures: Mapping[int, Failure]) -> None:
        if failures:
            roots = np.unique(np.array(list(failures), np.uint64))
            decided = self._apply(TreeReport(failed=roots))
            self._ack(decided.acked)  # messages that nobody takes, emitted since the last wave
            self._fail(decided.failed, lambda root: failures[root])

    def fail_unread(self, read: LogRead, why: str) -> None:
        """Fail the one message of a log whose reading or processing kills its worker."""
        each = self._tasks[read.task]
        assert isinstance(each, LogTask)
        ((partition, offset, _),) = read.ranges
        self._stir()
        self._count_failed(each, 1)
        letter = self._guarded(each, each.failed_unread, partition, offset, "", why)
        if letter is not None:
            self._put_aside([letter])

    def expire(self, *, held: bool) -> None:
        """Fail the messages whose time is over; if `held`, none has passed since the last call."""
        trees = self.tracker.expire(self._clock(), held=held)
        if len(trees):
            self.counts.timed_out += len(trees)
            self._fail(trees, lambda root: Failure(root, "", "timed out"), timed_out=True)

    def _ack(self, trees: Trees) -> None:
        replayed: list[DeadLetter] = []
        for task, roots in _by_task(trees):
            each = self._tasks[task]
            self.counts.acked += len(roots)
            name = self._topology.name
            took = each.waited_s(roots, self._clock())
            event = TreesDecided(name, each.component, acked=len(roots), complete_s=took)
            self._publish(event)
            replayed += each.replayed(roots)
            if self._is_down(each):
                continue  # its source will give these messages again
            if self._guarded(each, each.acked, roots):
                self._works_again(each, "ack")
        if replayed:
            ids = [letter.id for letter in replayed]
            self._letters.remove(ids)
            self._replaying.difference_update(ids)

    def _fail(
        self, trees: Trees, reason: Callable[[int], Failure], *, timed_out: bool = False
    ) -> None:
        if not len(trees):
            return
        self._stir()
        letters: list[DeadLetter] = []
        for task, roots in _by_task(trees):
            each = self._tasks[task]
            self._count_failed(each, len(roots), timed_out=timed_out)
            for root in roots:
                if self._is_down(each) and not each.is_replay(root):
                    continue  # its source will give this message again
                failure, told = reason(root), each.told
                letter = self._guarded(each, each.failed, failure)
                if each.told > told:
                    self._works_again(each, "fail")
                if letter is not None:
                    letters.append(letter)
        if letters:
            self._put_aside(letters)

    def _count_failed(self, each: SpoutTask, count: int, *, timed_out: bool = False) -> None:
        self.counts.failed += count
        late = count if timed_out else 0
        name = self._topology.name
        self._publish(TreesDecided(name, each.component, failed=count, timed_out=late))

    def _is_down(self, each: SpoutTask) -> bool:
        """Whether a spout has crashed and will be started anew; a log's is not, it only pauses."""
        return isinstance(each, PulledSpout) and each.task in self._asleep_until

    def _put_aside(self, letters: list[DeadLetter]) -> None:
        """Store dead letters durably; only then are their messages acked away."""
        faults.point("letters.before", count=len(letters))
        self._letters.add(letters)
        faults.point("letters.after", count=len(letters))
        self._replaying.difference_update(letter.id for letter in letters)
        for letter in letters:
            if not letter.id:  # else it was one before, and its replay failed
                self.counts.dead_letters += 1
                self._publish(MessageDeadLettered(self._topology.name, letter))
        for letter in letters[:10]:
            log.warning(
                "message %s of spout %r failed %d times and is now a dead letter: %s%s",
                *(letter.message_id, letter.spout, letter.failures, letter.error),
                f" in {letter.failed_in!r}" if letter.failed_in else "",
            )
        for each in self._tasks.values():
            self._guarded(each, each.put_aside)

    def look_for_replays(self) -> None:
        """Send through again what somebody has asked for in the dead letters."""
        if self._clock() < self._look_at or not self._tracked:
            return
        self._look_at = self._clock() + _LOOK_FOR_REPLAYS_S
        for letter in self._letters.wanted():
            tasks = self._topology.tasks.get(letter.spout, ())
            each = self._tasks.get(tasks[0]) if tasks else None
            if each is not None and letter.id not in self._replaying:
                try:
                    each.replay(letter)
                    self._replaying.add(letter.id)
                except EmitError as error:
                    # It does not fit the topology as it is now; it stays where it is.
                    self._letters.unwant([letter.id])
                    text = f"dead letter {letter.id} cannot be replayed: {error}"
                    self._report(letter.spout, each.task, text, text)

    def store_progress(self, store: CoordinationStore, *, now: bool = False) -> None:
        """Store up to where logs are done, not too often, and how often messages have failed.

        That at once: a message is not sent again before it is known how often it was.
        """
        now = now or any(counts.has_news for counts in self._failing.values())
        if self._clock() < self._store_at and not now:
            return
        self._store_at = self._clock() + _STORE_POSITIONS_S
        logs = [each for each in self._tasks.values() if isinstance(each, LogTask)]
        # Over those stored before: a partition may be out of sight for a while.
        positions = {component: dict(p) for component, p in self._ledger.positions.items()}
        for each in logs:
            positions.setdefault(each.component, {}).update(each.positions())
        failing = {name: found for name, n in self._failing.items() if (found := n.stored())}
        before = self._ledger
        if (positions, failing) == (before.positions, before.failing):
            return
        faults.point("positions.before")
        ledger = replace(before, positions=positions, failing=failing)
        try:
            store.save(ledger)
        except OutageError as error:
            # Waves go on: positions that are stored later mean more messages after a crash.
            self._store_at = self._clock() + self._waits.met(LEDGER, error)
            return
        self._waits.answered(LEDGER)
        self._ledger = ledger
        faults.point("positions.after")
        for each in logs:
            if self._guarded(each, each.tell_committed, positions[each.component]):
                self._works_again(each, "committed")

    def _report(self, component: str, task: int, error: str, trace: str) -> None:
        self._publish(ErrorReported(self._topology.name, component, task, error, trace))

    def _reporter(self, component: str, task: int) -> Callable[[BaseException], None]:
        def report(error: BaseException) -> None:
            name = f"{type(error).__name__}: {error}"
            text = "".join(traceback.format_exception(error))
            self._report(component, task, name, text)

        return report


def _part(each: SpoutTask, method: str) -> str:
    """Return what a call of a task is called among the parts of a run that wait."""
    return f"spout {each.component} {each.task} {method}"


def _from(tasks: list[S], turn: int) -> list[S]:
    """Return the tasks in their order, beginning with another one at each turn."""
    start = turn % len(tasks) if tasks else 0
    return tasks[start:] + tasks[:start]


def _by_task(trees: Trees) -> list[tuple[int, list[int]]]:
    return [
        (task, trees.roots[trees.tasks == task].tolist())
        for task in np.unique(trees.tasks).tolist()
    ]
