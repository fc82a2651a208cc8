"""Run a topology in this process, without Spark: for unit tests of topologies."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, overload

from waterspout._config import Config, Options, as_config
from waterspout._letters import DeadLetter
from waterspout._serde import encode_value
from waterspout.coordination.batch_clock import clock_for
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.coordination.events import Listener
from waterspout.coordination.loop import BatchLoop, BatchSetup
from waterspout.coordination.preflight import checked_plan
from waterspout.coordination.progress import ErrorSummary, WaveTotals
from waterspout.coordination.recording import Recorder
from waterspout.coordination.sizing import sizing_policy
from waterspout.coordination.store import CoordinationStore, MemoryCoordinationStore
from waterspout.coordination.wave_loop import WaveLoop, WaveSetup
from waterspout.drpc._calls import DrpcRequest
from waterspout.drpc._functions import Commits, functions_of
from waterspout.errors import TopologyError, UserCodeError
from waterspout.testing._batch_bolts import LocalBatches
from waterspout.testing._capture import CapturedRun
from waterspout.testing._engine import InProcessEngine
from waterspout.testing._waves import InProcessWaves
from waterspout.topology._graph import Topology
from waterspout.transactional._builder import TransactionalTopology
from waterspout.trident._topology import TridentTopology
from waterspout.trident.drpc.rewriting import by_request
from waterspout.trident.drpc.running import InDriver
from waterspout.trident.isolation.rewriting import letters_location, with_letters
from waterspout.trident.isolation.store import LettersLocation
from waterspout.trident.plan.plan import Plan
from waterspout.trident.runtime.states import open_headed_states
from waterspout.trident.windowing.build import windows_by_time

__all__ = ["LocalRun", "LocalWaves", "run_in_process"]

# How far the clock of LocalWaves moves at first where nothing happens, and at most.
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.05, 10.0
_PENDING_MAX = 3  # batches in flight, where batch_sizing chooses


class LocalRun:
    """A topology driven by hand: `step` does one thing, `finish` all there is to do.

    What a run on Spark checks before it starts is checked here too (`strict`, sources, stores), but
    for pickling: nothing travels. Without a `store` all that the topology keeps for itself ends
    with this run. With one, the next run goes on where this one stops; the list of the files that
    a `FileSpout` has read is kept with it.

    `wall` is the clock of windows by time, in seconds since 1970; `clock` that of the loop, for
    pauses and timeouts. Batches are as large as their spouts make them: only with
    `Config(batch_sizing=True)` do they size themselves, as on Spark.
    """

    def __init__(
        self,
        topology: TridentTopology,
        config: Config | None = None,
        *,
        store: CoordinationStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        listener: Listener | None = None,
        letters: LettersLocation | None = None,
    ) -> None:
        if isinstance(topology, Topology):
            raise _other_kind(topology)
        conf = config or Config()
        # Windows are kept as long as the ledger is.
        bare = topology.plan(conf, in_memory=store is None)
        if letters is None:
            letters = LettersLocation() if store is None else letters_location(bare, conf)
        self._location = letters
        self.plan: Plan = checked_plan(with_letters(bare, conf, letters), conf)
        self.engine = InProcessEngine(self.plan, conf)
        self._states = open_headed_states(self.plan, conf)
        setup = BatchSetup(
            pins_batches=self.plan.pins_batches,
            topology=self.plan.name,
            fingerprint=self.plan.fingerprint(),
            spouts={i: node.spout for i, node in self.plan.sources.items()},
            states=self._states,
            store=store or MemoryCoordinationStore(self.plan.name),
            engine=self.engine,
            config=conf,
            clock=clock_for(windows_by_time(self.plan), wall),
            sizing=sizing_policy(conf, pending_max=_PENDING_MAX, otherwise=False),
        )
        self.loop = BatchLoop(setup, clock, listener)
        self.loop.start()
        runners = [
            InDriver(by_request(call, self.plan), conf, _without_waiting)
            for call in self.plan.calls
        ]
        commits = Commits(lambda: self.loop.ledger, any_stream=bool(self.plan.sources))
        self.functions = functions_of(runners, commits, lambda: False)

    def execute(self, function: str, args: str = "", *, min_txid: int | None = None) -> list[Any]:
        """Call a DRPC function; return the tuples of its answer, as a client gets them.

        May be called between any two steps, and after `close`. It sees the batches that have
        committed by then: one that `min_txid` asks for and that is not there is an error.
        """
        if function not in self.functions:
            known = ", ".join(sorted(self.functions)) or "none"
            raise TopologyError(
                f"{self.plan.name!r} has no DRPC function {function!r}; it has {known}"
            )
        deadline = None if min_txid is None else time.monotonic()
        (answer,) = self.functions[function].answer([DrpcRequest("1", args, min_txid, deadline)])
        if answer.error is not None:
            where = f" in {answer.error.operation}" if answer.error.operation else ""
            raise UserCodeError(f"{function}({args!r}) failed{where}: {answer.error.message}")
        return [list(row) for row in answer.tuples or ()]

    @property
    def letters(self) -> list[DeadLetter]:
        """The dead letters of the committed batches, oldest first."""
        return self._location.letters()

    def replay_letters(self, *letters: DeadLetter, **values: Any) -> None:
        """Ask for dead letters to be sent through again, with these values of their fields."""
        wanted = []
        for letter in letters:
            row = {**(letter.row or {}), **values}
            content = encode_value([row[name] for name in letter.schema.names])
            wanted.append(replace(letter, content=content))
        self._location.requests().add("replay", wanted)

    def drop_letters(self, *letters: DeadLetter) -> None:
        """Ask for dead letters to be dropped."""
        self._location.requests().add("drop", letters)

    def step(self, choose: Callable[[int], int] = lambda n: 0) -> None:
        """Let the loop look once, then one phase go on by one step."""
        self.loop.step()
        self.engine.step(choose)

    def finish(self, max_steps: int = 1_000_000) -> None:
        """Step until the sources have nothing more and every batch is committed."""
        self.loop.look_anew()
        for _ in range(max_steps):
            self.step()
            if self.loop.is_idle and not self.engine.waiting:
                self.loop.step()
                if self.loop.is_idle:
                    return
        raise TimeoutError(f"{self.plan.name} was not done after {max_steps} steps")

    def close(self) -> None:
        """Give up the lease and close the states."""
        self.loop.close()
        for state in self._states.values():
            state.close()


class LocalWaves(CapturedRun):
    """A topology of spouts and bolts driven by hand, in simulated time.

    What its components emit is kept (`emitted`), and so are the dead letters and the errors, also
    after `close`. Nobody waits: where nothing happens any more but a timeout or a pause, the clock
    moves on. A bolt that forgets to ack ends a test at once, with its messages in the letters.
    `keep_alive=False` makes every bolt anew for each wave, as if its worker had died.
    """

    def __init__(
        self,
        topology: Topology,
        config: Config | None = None,
        *,
        store: CoordinationStore | None = None,
        letters: DeadLetters | None = None,
        keep_alive: bool = True,
        workers: int = 2,
    ) -> None:
        if not isinstance(topology, Topology) or isinstance(topology, TransactionalTopology):
            raise _other_kind(topology)
        conf = config or Config()
        super().__init__(topology.name)
        if letters is None:  # an empty table is not None
            letters = DeadLetters(None, limit=conf.dead_letters_max)
        self._letters = letters
        self._recorder = Recorder(topology.name, WaveTotals())
        self._kept: list[DeadLetter] | None = None
        setup = WaveSetup(
            self._capturing(topology),
            InProcessWaves(workers, keep_alive=keep_alive),
            store or MemoryCoordinationStore(topology.name),
            self._letters,
            conf,
        )
        self.loop = WaveLoop(setup, lambda: self._now, self._recorder)
        self.loop.start()

    @property
    def letters(self) -> list[DeadLetter]:
        """The dead letters, oldest first."""
        return self._letters.all() if self._kept is None else list(self._kept)

    @property
    def errors(self) -> list[ErrorSummary]:
        """The errors of components, oldest first, each with its count, as `Run.errors`."""
        return list(self._recorder.snapshot("").errors)

    def replay_letters(self, *letters: DeadLetter) -> int:
        """Ask for dead letters to be sent through again (all, if none is given); return how many.

        The values stay as they are.
        """
        self.advance(1.0)  # the loop looks for them now and then
        return self._letters.want([letter.id for letter in letters] or None)

    def step(self) -> None:
        """Let the loop do once what is due: ask spouts, run a wave, tell the spouts."""
        self.loop.step()

    def finish(self, max_steps: int = 1_000_000) -> None:
        """Step until the spouts have nothing more and every message is acked or put aside."""
        pause_s = _PAUSE_MIN_S
        for _ in range(max_steps):
            before = self.loop.waves
            self.step()
            if self.loop.is_idle:
                return
            if self.loop.waves > before:
                pause_s = _PAUSE_MIN_S
            else:
                self.advance(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        raise TimeoutError(f"{self.name} was not done after {max_steps} steps")

    def close(self) -> None:
        """Close bolts and spouts and give up the lease."""
        if self._kept is None:
            self._kept = self._letters.all()
            self.loop.close()
            self._release_bolt()


def _without_waiting(deadline: float) -> Callable[[str], None]:
    """Return what takes the place of a wait: nobody drives the run meanwhile."""

    def refuse(why: str) -> None:
        raise TimeoutError(why)

    return refuse


def _other_kind(topology: Any) -> TopologyError:
    name = getattr(topology, "name", "?")
    if isinstance(topology, TransactionalTopology):
        return TopologyError(f"{name!r} is a transactional topology; drive it with LocalBatches")
    if isinstance(topology, Topology):
        return TopologyError(
            f"{name!r} is a topology of spouts and bolts; drive it with LocalWaves"
        )
    return TopologyError(f"{name!r} is no topology of spouts and bolts; drive it with LocalRun")


@overload
def run_in_process(topology: TridentTopology, config: Options = None) -> LocalRun: ...


@overload
def run_in_process(  # type: ignore[overload-overlap]
    topology: TransactionalTopology, config: Options = None
) -> LocalBatches: ...


@overload
def run_in_process(topology: Topology, config: Options = None) -> LocalWaves: ...


def run_in_process(
    topology: TridentTopology | Topology, config: Options = None
) -> LocalRun | LocalBatches | LocalWaves:
    """Run a topology until its sources have nothing more. Needs no Spark and no Java.

    Read the results of a Trident topology from its states: `state.get(key)`. The test of a
    topology of spouts and bolts, or of a transactional one, looks at what they have emitted:

    >>> from waterspout import BasicBolt, TopologyBuilder
    >>> from waterspout.testing import FeederSpout
    >>> class Split(BasicBolt):
    ...     output_fields = ("word",)
    ...
    ...     def execute(self, tuple, collector):
    ...         for word in tuple["sentence"].split():
    ...             collector.emit([word])
    >>> builder, spout = TopologyBuilder(), FeederSpout("sentence", replay=True)
    >>> _ = builder.set_spout("sentences", spout)
    >>> _ = builder.set_bolt("split", Split()).shuffle_grouping("sentences")
    >>> spout.feed(["to be"], msg_id=1)
    >>> spout.feed([None], msg_id=2)
    >>> run = run_in_process(builder.create_topology())
    >>> run.emitted("split"), spout.tracker.acks
    ([('to',), ('be',)], {1: 1, 2: 1})
    >>> [(letter.values, letter.failed_in, letter.failures) for letter in run.letters]
    [((None,), 'split', 4)]
    """
    conf = as_config(config)
    run: LocalRun | LocalBatches | LocalWaves
    if isinstance(topology, TransactionalTopology):
        run = LocalBatches(topology, conf)
    elif isinstance(topology, Topology):
        run = LocalWaves(topology, conf)
    else:
        run = LocalRun(topology, conf)
    try:
        run.finish()
    finally:
        run.close()
    return run
