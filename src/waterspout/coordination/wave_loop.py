"""The wave loop: asks the spouts, runs waves, and tells the spouts what has become of it.

    collect   ask spouts for tuples, while they have room and nothing is in the way
    run       one wave at a time; meanwhile the next one is collected, and made ready if it is full
    finish    begin that one; apply the wave's report to the trees, tell the spouts

One thread calls `step`. A wave that fails as a whole has changed nothing and is run again; one that
kills its workers again and again is run in pieces, until the tuple that does it stands alone and is
failed.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace

from waterspout import faults
from waterspout._config import Config
from waterspout.coordination.commands.messages import Change
from waterspout.coordination.commands.obedience import Standing
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.coordination.driven import DrivenLoop, Lag
from waterspout.coordination.events import (
    ErrorReported,
    Listener,
    ProgressBetweenWaves,
    TuplesCounted,
    WaveFinished,
    WaveRetried,
    WaveStarted,
)
from waterspout.coordination.outages import WAVE
from waterspout.coordination.progress import WaveProgress
from waterspout.coordination.spout_tasks import Counts, SpoutTasks
from waterspout.coordination.store import CoordinationStore, acquire_when_free, grown
from waterspout.errors import (
    BoltCrash,
    DataLossError,
    LeaseLostError,
    OutageError,
    WorkerLostError,
)
from waterspout.topology._component import BasicBolt, Bolt
from waterspout.topology._graph import SYSTEM_TASK, TICK_STREAM, Topology
from waterspout.topology._pickling import require_picklable
from waterspout.waves.balance import Balance
from waterspout.waves.bolts import ErrorNote
from waterspout.waves.counting import by_component
from waterspout.waves.engine import Wave, WaveDone, WaveEngine, WaveFailed, assemble
from waterspout.waves.frames import Frame, anchored
from waterspout.waves.garbage import no_collection
from waterspout.waves.isolation import AfterFailure, Guilty, Isolation, Load
from waterspout.waves.memory import Memories
from waterspout.waves.over_waves import WaveHeader
from waterspout.waves.pacing import Pacing
from waterspout.waves.shape import WaveShape, check_widths, collapsed, spread
from waterspout.waves.shards import ShardInput

__all__ = ["WaveLoop", "WaveSetup"]

log = logging.getLogger(__name__)

# How long the first tuple at hand waits for company while no wave runs.
_GATHER_S = 0.02


@dataclass(frozen=True, slots=True)
class WaveSetup:
    """What a loop works on."""

    topology: Topology
    engine: WaveEngine
    store: CoordinationStore
    letters: DeadLetters
    config: Config


@dataclass(frozen=True, slots=True)
class _Ready:
    """What the spouts have emitted, with its trees, before its wave begins."""

    frames: list[Frame]
    suspects: list[list[Frame]]
    """Messages that have killed their worker before, each alone."""

    @property
    def tuples(self) -> int:
        """How many there are."""
        return sum(map(len, self.frames)) + sum(len(f) for each in self.suspects for f in each)


class WaveLoop(DrivenLoop):
    """Drives one core topology. `start` takes the lease; `close` gives it up."""

    def __init__(
        self, setup: WaveSetup, clock: Callable[[], float], listener: Listener | None = None
    ) -> None:
        super().__init__(setup.topology.name, setup.config, clock, listener)
        self._setup = setup
        self._conf = setup.config
        self._engine = setup.engine
        self._pacing = Pacing(setup.config)
        outline = setup.topology.outline()
        self._change = Change()
        self._shapes = (collapsed(outline), spread(outline, setup.engine.workers))
        self._balance = Balance()
        self._memories = Memories()
        self._waiting: list[Frame] = []
        self._isolation = Isolation(setup.config.max_retries)
        self._ahead: _Ready | None = None
        self._running: tuple[Wave, Load] | None = None
        self._began = 0.0
        """When the wave that runs began to run."""
        self._asked_at = clock()
        self._gathering_since: float | None = None
        self._is_early = False
        self._next_started: WaveStarted | None = None
        """Told when the wave before is: this one began first."""
        self._run_again_at: float | None = None
        self._ticks = _ticks(setup.topology, setup.config)
        self._tick_at: dict[int, float] = {}
        self.waves = 0
        self._told = Counts()

    def start(self) -> None:
        """Take the lease, open the spouts, and go on from the stored positions."""
        setup = self._setup
        _check(setup.topology, setup.config)
        graph, retire = setup.topology.fingerprint(), setup.config.retire
        acquire_when_free(setup.store, graph, retire)
        try:
            ledger, _ = grown(setup.store, graph, retire)
            now = self._clock()
            self._tick_at = {task: now + period for task, period in self._ticks.items()}
            self._header = self._make_header()
            self.spouts = SpoutTasks(
                setup.topology,
                setup.config,
                ledger,
                setup.letters,
                self._clock,
                self.events.publish,
                self._waits,
            )
            self.spouts.open(self._header.components)
        except BaseException:
            setup.store.release()
            raise

    def wake(self) -> None:
        self._engine.wake()

    def close(self) -> None:
        if self._running is not None:
            self._engine.cancel()
        elif self.error is None and self._memories and self._has_cleanups():
            self._clean_up()
        if hasattr(self, "spouts"):
            self.spouts.close()
            if self.error is None:
                try:
                    self.spouts.store_progress(self._setup.store, now=True)
                except Exception as error:
                    log.warning("positions of %s not stored: %s", self._setup.topology.name, error)
        self._setup.letters.close()
        self._setup.store.release()

    def standing(self) -> Standing:
        pending, collected = self.spouts.pending, self._collected
        busy = self._running is not None or self._waiting or self._isolation.has_pieces
        messages = "1 message was" if pending == 1 else f"{pending:,} messages were"
        return Standing(
            is_drained=not (busy or pending or collected),
            done=f"wave {self.waves}" if self.waves else "no wave",
            left=f"{messages} not acked: it is up to their spouts to emit them again"
            if pending
            else "",
            facts={"waves": self.waves, "acked": self.spouts.counts.acked, "pending": pending},
        )

    def check_change(self, change: Change) -> None:
        check_widths(self._setup.topology, change.parallelism)

    def change(self, change: Change) -> None:
        self._change = change.over(self._change)
        outline = self._setup.topology.outline()
        self._shapes = (self._shapes[0], spread(outline, self.workers, self.widths))
        self._balance = Balance()
        if change.pending is not None:
            self.spouts.set_max_pending(change.pending)

    @property
    def workers(self) -> int:
        """Into how many Spark tasks a stage is divided at most."""
        return self._change.workers or self._engine.workers

    @property
    def widths(self) -> Mapping[str, int]:
        """The components that run in fewer of them."""
        return self._change.parallelism

    def _round(self, wait_s: float) -> None:
        self._obey()
        # Between waves only: while one runs, nothing in it can be acked, and nothing sent again. If
        # it fails, no time has passed for its messages, nor until all of it was run again.
        if self._running is None or self._isolation.is_on:
            self.spouts.expire(held=self._isolation.is_on)
        with no_collection():
            at_once = self._collect()
            if self._running is None:
                at_once = self._start_wave() or at_once
            elif self.spouts.collected >= self._pacing.size:
                self._make_ready()
        # Somebody may wait for the loop to be idle: tell them before waiting for news.
        at_once = at_once or (not self.is_idle and self._looks_idle())
        ended = self._engine.poll(0.0 if at_once else self._until_due(wait_s))
        if ended is not None:
            with no_collection():
                self._finish(ended)
        self._start_again_if_due()
        self.spouts.store_progress(self._setup.store)
        self.is_idle = self._looks_idle()
        # What happened between waves, where no wave follows: timeouts, as a rule.
        if self.is_idle and self.spouts.counts != self._told:
            self.events.publish(ProgressBetweenWaves(self.name, self._progress(self.waves)))

    def _activate_spouts(self, active: bool) -> None:
        self.spouts.activate(active)

    def _looks_idle(self) -> bool:
        if self._running is not None or self._waiting or self._ahead is not None:
            return False
        if self._isolation.has_pieces:
            return False
        asleep = not self.active and not self.spouts.pending and not self.spouts.collected
        return asleep or self.spouts.is_idle

    def _until_due(self, wait_s: float) -> float:
        """Shorten a wait to the end of the pause before a wave runs again."""
        left = wait_s if self._run_again_at is None else self._run_again_at - self._clock()
        return min(wait_s, max(0.0, left))

    def _collect(self) -> bool:
        """Ask the spouts, unless they must wait; return whether to ask again at once."""
        throttled = self._pacing.look(sum(map(len, self._waiting)))
        if not self.active or throttled or self._isolation.has_pieces or self._ahead is not None:
            return False
        self.spouts.look_for_replays()
        self._asked_at = self._clock()
        return self.spouts.ask(self._pacing.size)

    @property
    def _collected(self) -> int:
        """Tuples of the spouts that are in no wave yet."""
        return self.spouts.collected + (0 if self._ahead is None else self._ahead.tuples)

    def _make_ready(self) -> None:
        """Hand out what a full wave needs while another one runs.

        Nobody is asked for more until it has begun. While a wave that failed is looked into, the
        next one waits at the spouts, as it was.
        """
        if self._ahead is None and not self._isolation.is_on:
            self._ahead = _Ready(*self.spouts.hand_out(self.waves + 1))

    def _handed_out(self) -> _Ready:
        """Return all that was emitted and is in no wave yet: first what was made ready."""
        ahead, self._ahead = self._ahead or _Ready([], []), None
        frames, suspects = self.spouts.hand_out(self.waves + 1)
        return _Ready([*ahead.frames, *frames], [*ahead.suspects, *suspects])

    def _start_wave(self) -> bool:
        """Begin a wave if there is anything to do; return whether to look again at once."""
        if self._isolation.has_pieces:
            # Whole memories: what is looked for must not be left for a wave with others in it.
            self._start(self._isolation.take(), complete=True)
            return False
        now = self._clock()
        collected = self._collected
        throttled = not self.active or self._pacing.throttled
        apart = self.spouts.reads_apart()
        self._isolation.put_apart(Load(reads=[read], is_suspect=True) for read in apart)
        reads = self.spouts.plan_reads(0 if throttled else self._pacing.size - collected)
        ticks = [] if throttled and self._waiting else self._due_ticks(now)
        if not (collected or self._waiting or ticks or reads):
            return self._isolation.has_pieces
        enough = self._ahead is not None or collected >= self._pacing.size
        if reads or self._waiting or ticks or self.spouts.dry or enough:
            self._gathering_since = None
        else:
            # The first tuples of a burst wait a little for company, since their spouts were asked.
            self._gathering_since = self._gathering_since or self._asked_at
            if now - self._gathering_since < _GATHER_S:
                return True
            self._gathering_since = None
        # What waits from earlier waves comes first: order between two tasks is kept.
        waiting, self._waiting = self._waiting, []
        given = self._handed_out()
        self._isolation.put_apart(Load(each, is_suspect=True) for each in given.suspects)
        load = Load([*waiting, *given.frames, *ticks], reads)
        if load.is_empty and self._isolation.has_pieces:
            return True
        self._start(load)
        return False

    def _start(self, load: Load, *, complete: bool = False) -> None:
        self.waves += 1
        seed = secrets.randbits(128)
        header = replace(self._header, number=self.waves, seed=seed, probe=load.is_probe)
        small = load.tuples <= self._conf.wave_collapse_tuples
        shape = self._shapes[0 if small else 1]
        self._run(Wave(shape, header, self._inputs(shape, load, complete=complete)), load)

    def _inputs(self, shape: WaveShape, load: Load, *, complete: bool) -> dict[int, ShardInput]:
        states = self._memories.given(complete=complete)
        inputs = assemble(shape, load.frames, states, load.reads)
        # A wave that takes up all bolts has to run, also where none of them has a memory yet.
        return inputs or ({0: ShardInput()} if load.is_probe else {})

    def _run(self, wave: Wave, load: Load) -> None:
        self._running = (wave, load)
        self._began = self._clock()
        number, attempt = wave.header.number, wave.header.attempt
        started = WaveStarted(self.name, number, attempt, load.tuples)
        if self._is_early:
            self._next_started = started
        else:
            self.events.publish(started)
        self._engine.start(wave)

    def _due_ticks(self, now: float) -> list[Frame]:
        due = []
        for task, at in self._tick_at.items():
            if now >= at:
                period = self._ticks[task]
                self._tick_at[task] = now + period
                due.append(Frame(SYSTEM_TASK, TICK_STREAM, task, [(period,)], born=self.waves + 1))
        return due

    def _finish(self, ended: WaveDone | WaveFailed) -> None:
        assert self._running is not None
        if isinstance(ended, WaveFailed):
            self._fail(ended.error)
            return
        wave, load = self._running
        began, self._running = self._began, None
        guilty = self._isolation.went_through(load)
        self._waits.answered(WAVE)
        faults.point("wave.done", wave=wave.header.number)
        for result in ended.results:
            self._memories.take_in(result.states, result.missed, result.worker)
            self._waiting += self.spouts.take_back(result.waiting)
            self._report(result.errors)
        was_full = load.tuples >= self._pacing.size
        undone = sum(result.undone for result in ended.results)
        if not any(result.missed for result in ended.results):  # else it tells nothing of bolts
            self._pacing.finished(load.tuples, ended.seconds, undone=undone)
        backlog = sum(map(len, self._waiting))
        self._pacing.look(backlog)
        moved = self._memories.moved()
        if guilty is None and was_full:
            self._go_on()
        self.spouts.finish_wave(ended.results, began)
        if guilty is not None:
            self._convict(guilty)
        counts = [each for result in ended.results for each in result.counts]
        self._balance.learn(counts)
        better = self._balance.improved(self._shapes[1])
        self._shapes = (self._shapes[0], better or self._shapes[1])
        progress = replace(
            self._progress(wave.header.number),
            tuples=load.tuples,
            executed=_summed(result.executed for result in ended.results),
            emitted=by_component(counts, "emitted"),
            transferred=by_component(counts, "transferred"),
            backlog=backlog,
            state_moved_bytes=moved,
            stages=len(wave.shape.stages),
            wave_s=ended.seconds,
            busy_s=sum(result.busy_s for result in ended.results),
        )
        if tasks := (*self.spouts.take_counts(), *counts):
            self.events.publish(TuplesCounted(self.name, tasks))
        self.events.publish(WaveFinished(self.name, progress))
        if self._next_started is not None:
            # Nobody comes by while no wave runs: trees that are too old are looked for here.
            self.spouts.expire(held=self._isolation.is_on)
            self.events.publish(self._next_started)
            self._next_started = None

    def _go_on(self) -> None:
        """Begin the next wave before the spouts are told of the one that has just ended.

        Workers need not wait for that where the next wave was full without anything it could bring:
        neither the place that acked messages leave nor those that failed, which go into the wave
        after it. Where there is less to do, the spouts come first.
        """
        if self._isolation.is_on or not self.active:
            return
        if self._ahead is not None or self.spouts.reads_freely:
            self._is_early = True
            try:
                self._start_wave()
            finally:
                self._is_early = False

    def _measure(self) -> Lag:
        return self.spouts.lag()

    def _progress(self, wave: int) -> WaveProgress:
        """Return how far the run is; acks and fails are those since the last call."""
        counts, before = self.spouts.counts, self._told
        self._told = replace(counts)
        return WaveProgress(
            name=self.name,
            timestamp=time.time(),
            wave=wave,
            acked=counts.acked - before.acked,
            failed=counts.failed - before.failed,
            timed_out=counts.timed_out,
            dead_letters=counts.dead_letters,
            pending=self.spouts.pending,
            throttled=self._pacing.throttled,
            next_wave_tuples=self._pacing.size,
            state_bytes=self._memories.size,
            lag=self._measured(),
        )

    def _report(self, notes: Iterable[ErrorNote]) -> None:
        for note in notes:
            self.events.publish(ErrorReported(self.name, **asdict(note)))

    def _fail(self, error: BaseException) -> None:
        """Run the wave again, or in pieces: its inputs are still here, no state has changed."""
        assert self._running is not None
        load = self._running[1]
        if isinstance(error, BoltCrash | LeaseLostError | DataLossError):
            raise error
        if isinstance(error, OutageError):
            self._run_again(error, self._waits.met(WAVE, error))
            return
        number = self._running[0].header.number
        match self._isolation.failed(load, error):
            case AfterFailure.AGAIN:
                failures = self._isolation.failures
                self._run_again(error, self._conf.retry_backoff.pause_s(failures))
            case AfterFailure.PIECES:
                self._running = None
                if not load.is_single:
                    text = "wave %d, of %d tuples, kills its workers and is run in two halves: %s"
                    log.warning(text, number, load.tuples, error)
            case AfterFailure.GIVE_UP if load.is_probe and isinstance(error, WorkerLostError):
                raise WorkerLostError(
                    f"{error}. It did so too when it had to take up the bolts only, and no tuple: "
                    "see whether prepare() of one kills it, or whether memory is short."
                ) from error
            case AfterFailure.GIVE_UP:
                raise error

    def _run_again(self, error: BaseException, pause_s: float) -> None:
        assert self._running is not None
        number = self._running[0].header.number
        log.warning("wave %d failed and is run again: %s", number, error)
        self.events.publish(WaveRetried(self.name, number, error, pause_s))
        self._run_again_at = self._clock() + pause_s

    def _start_again_if_due(self) -> None:
        if self._run_again_at is None or self._clock() < self._run_again_at:
            return
        assert self._running is not None
        self._run_again_at = None
        wave, load = self._running
        # New ids: late tasks of the lost attempt must not be able to meet those of this one.
        header = replace(wave.header, attempt=wave.header.attempt + 1, seed=secrets.randbits(128))
        # Whole memories: who has died may have been the one that kept them.
        inputs = self._inputs(wave.shape, load, complete=True)
        self._run(replace(wave, header=header, inputs=inputs), load)

    def _convict(self, guilty: Guilty) -> None:
        """Fail the message that kills its worker, alone as it is."""
        load, error = guilty.load, guilty.error
        task = load.reads[0].task if load.reads else load.frames[0].target
        component = self._setup.topology.component_of[task]
        why = f"its worker died: {error}"
        what = "message of" if load.reads else "tuple for"
        log.error("a %s %r kills its worker and is failed: %s", what, component, error)
        self._report([ErrorNote(component, task, str(error), "")])
        if load.reads:
            self.spouts.fail_unread(load.reads[0], why)
        else:
            self.spouts.fail_deadly(anchored(load.frames[0])[0], component, why)

    def _has_cleanups(self) -> bool:
        """Whether a bolt gives anything up at the end; a job for nothing takes its time."""
        nothing = (Bolt.cleanup, BasicBolt.cleanup)
        bolts = self._setup.topology.bolts
        return any(type(spec.component).cleanup not in nothing for spec in bolts)

    def _clean_up(self) -> None:
        """Let the bolts give up what they hold, in a wave in which nothing is executed."""
        shape = self._shapes[0]
        header = replace(self._header, number=self.waves + 1, closing=True)
        states = self._memories.given(complete=True)
        self._engine.start(Wave(shape, header, assemble(shape, [], states)))
        until = self._clock() + self._conf.cancel_wait_secs
        ended = None
        while ended is None and (left := until - self._clock()) > 0:
            ended = self._engine.poll(left)  # may return early: it was woken
        if isinstance(ended, WaveDone):
            for result in ended.results:
                self._report(result.errors)

    def _make_header(self) -> WaveHeader:
        return WaveHeader(
            run=secrets.token_hex(8),
            number=0,
            attempt=0,
            seed=0,
            budget_s=self._conf.wave_budget_secs,
            crash_on_error=self._conf.bolt_errors == "crash",
            conf=self._conf.to_dict(),
            components={
                spec.id: require_picklable(spec.component, f"component {spec.id!r}")
                for spec in self._setup.topology.components.values()
            },
        )


def _check(topology: Topology, conf: Config) -> None:
    """Let every component refuse options that it cannot work with."""
    options = conf.to_dict()
    for spec in topology.components.values():
        context = topology.context(topology.tasks[spec.id][0])
        spec.component._check_use(context, {**options, **spec.configuration})


def _ticks(topology: Topology, conf: Config) -> dict[int, float]:
    """Return the tick period of each bolt task that has one."""
    key = "topology.tick.tuple.freq.secs"
    periods = {}
    for spec in topology.bolts:
        period = spec.configuration.get(key, conf.tick_tuple_freq_secs)
        if period is not None:
            periods.update(dict.fromkeys(topology.tasks[spec.id], float(period)))
    return periods


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)
