"""Runs a drawn case to its end, judges what came of it, and makes one that is wrong smaller.

python -m tests.semantics.drawn_runs --seed 17        one case, shown, and made smaller if wrong
python -m tests.semantics.drawn_runs --count 1000     many, and what is wrong among them
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.semantics.drawn_cases import (
    NON_TRANSACTIONAL,
    OPAQUE,
    Case,
    Disaster,
    Update,
    draw,
    draw_rows,
)
from tests.semantics.drawn_oracle import Oracle
from tests.semantics.drawn_shrinking import shrunk
from tests.semantics.drawn_sources import Feed
from tests.semantics.drawn_world import NAME, Unreachable, World, build
from tests.semantics.simulation import Dice
from waterspout import Config, faults
from waterspout.coordination.batch_clock import CLOCK
from waterspout.coordination.rollback import roll_back
from waterspout.errors import (
    ConfigError,
    DamagedStoreError,
    FailedException,
    FencedError,
    ForeignStoreError,
    OutageError,
    SourceError,
    StateMismatchError,
    TopologyError,
    WaterspoutError,
)
from waterspout.spouts import _finding
from waterspout.state._head import Head
from waterspout.testing import LocalRun, SimulatedCrash
from waterspout.testing._engine import InProcessEngine
from waterspout.trident import TridentTopology
from waterspout.trident.plan.verdicts import verdict_of
from waterspout.trident.runtime.states import open_headed_states

MAX_STEPS = 3000
DOCUMENTED = (DamagedStoreError, ForeignStoreError, SourceError, StateMismatchError, TopologyError)
"""How a run may stop that met a store which does not fit."""

_SCRATCH = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None


@dataclass
class Outcome:
    """What became of a case."""

    case: Case
    wrong: list[str] = field(default_factory=list)
    stopped: BaseException | None = None
    crashes: int = 0
    fired: int = 0
    exact: int = 0
    weak: int = 0
    disaster_happened: bool = False
    rolled_back: bool = False
    batches: int = 0

    def numbers(self) -> dict[str, int]:
        """Return what is added up over many cases."""
        return {
            "wrong": bool(self.wrong),
            "stopped": self.stopped is not None,
            "disasters": self.disaster_happened,
            "rolled back": self.rolled_back,
            "crashes": self.crashes,
            "batches": self.batches,
            "exact": self.exact,
            "weak": self.weak,
        }

    def text(self) -> str:
        """Return all that helps to understand it."""
        return "\n".join([self.case.text(), *self.wrong])


class Kill:
    """Passes kill points: counts them, crashes, and does what only an operator can do."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._disaster = world.case.schedule.disaster
        self._copy: Any = None
        self._heads: list[Head | None] = []
        self.passed = 0
        self.happened = False
        self.due = False

    def __call__(self, name: str, context: Mapping[str, object]) -> None:
        self.passed += 1
        disaster = self._disaster
        if disaster is not None and not self.happened:
            if self.passed == disaster.copied_at:
                self._take_copy(disaster)
            if self.passed == disaster.at:
                if disaster.what == "failover":
                    self.strike(running=True)
                else:
                    self.due = True
                    raise SimulatedCrash("the machine is taken down")
        dice, only_at = self._world.dice, self._world.case.schedule.crash_at
        if not only_at:
            dice.at_point(name, context)
        elif name == only_at and dice.hits(dice.crash):
            raise SimulatedCrash(name)

    def strike(self, *, running: bool = False) -> None:
        """Let the disaster happen, if there is one and it has not."""
        disaster, self.due = self._disaster, False
        world = self._world
        if disaster is None or self.happened or world.plan is None:
            return
        match disaster.what:
            case "restored" | "failover":
                if self._copy is None or self._goes_unseen(disaster, running):
                    return
                world.put_back(self._place(disaster), self._copy)
            case "ledger restored":
                if self._copy is None:
                    return
                world.restore_ledger(self._copy)
            case "emptied":
                place = self._place(disaster)
                head = world.head(disaster.target)
                if head is None or not head.witnesses or place.store == "files":
                    return  # nobody can tell; and files have checksums
                world.empty(place)
            case what:
                _lose_list(world.list_of_files(disaster.target), what, self._copy)
        self.happened = True

    def _goes_unseen(self, disaster: Disaster, running: bool) -> bool:
        """Whether the store loses writes of a batch before all states have answered the settling.

        Nobody can tell a store that loses what it has acknowledged from one that never wrote it.
        """
        ledger = self._world.store().peek()
        if ledger is None:
            return False
        marked = (ledger.current - 1, ledger.committed_attempt)
        for then, now in zip(self._heads, self._world.heads(self._place(disaster)), strict=True):
            if then is None or now is None or then.stamp != now.stamp:
                continue
            is_marked = (now.stamp.txid, now.stamp.attempt) == marked
            if not ledger.settled if is_marked else running:
                return True
        return False

    def _take_copy(self, disaster: Disaster) -> None:
        world = self._world
        if disaster.what in ("restored", "failover"):
            self._heads = world.heads(self._place(disaster))
            self._copy = world.copied(self._place(disaster))
        elif disaster.what == "ledger restored":
            self._copy = (world.ledger.document, world.ledger.epoch)
        elif disaster.what == "list restored":
            path = world.list_of_files(disaster.target)
            self._copy = {p.name: p.read_bytes() for p in path.parent.glob(f"{path.name}*")}

    def _place(self, disaster: Disaster) -> Any:
        update = self._world.case.things[disaster.target]
        assert isinstance(update, Update)
        return update.place


def _lose_list(path: Path, what: str, copy: dict[str, bytes] | None) -> None:
    there = list(path.parent.glob(f"{path.name}*"))
    if what == "list restored" and copy is None:
        return
    for file in there:
        file.unlink()
    if what == "list emptied":
        path.touch()
    for name, content in (copy or {}).items() if what == "list restored" else ():
        (path.parent / name).write_bytes(content)


class Runner:
    """One case from its first driver to its last."""

    def __init__(self, case: Case, folder: Path) -> None:
        schedule = case.schedule
        dice = Dice(
            random.Random(schedule.seed),
            crash=schedule.crash,
            fail=schedule.fail,
            error=schedule.error,
            lost_write=schedule.lost_write,
            half_write=schedule.half_write,
            lost_answer=schedule.lost_answer,
            outage=schedule.outage,
            away=schedule.away,
        )
        self.world = world = World(case, dice, folder)
        dice.clock = lambda: world.now
        self.outcome = Outcome(case)
        self._kill = Kill(self.world)
        self._old: list[InProcessEngine] = []
        self._run: LocalRun | None = None
        self._topology: TridentTopology | None = None

    def go(self) -> Outcome:
        """Run two chapters, with a restart and late rows in between; judge the end."""
        outcome, world = self.outcome, self.world
        faults.install(self._kill)
        try:
            self._chapter()
            self._drop_driver()
            self._kill.strike()
            self._roll_back()
            world.bring_late_rows()
            self._chapter()
            if self._kill.happened:
                self._drop_driver()
                self._chapter()  # who struck at the very end is met by the next driver
        except WaterspoutError as error:
            outcome.stopped = error
        except RuntimeError as error:
            # A state was refused until the tries were used up, and the last one failed otherwise.
            if not world.case.shares_a_store or str(error) != "processing":
                raise
            outcome.stopped = ForeignStoreError("two states in one store")
        finally:
            faults.install(None)
            self._drop_driver()
        world.dice.on = False
        outcome.fired = world.dice.fired
        outcome.disaster_happened = self._kill.happened
        outcome.batches = len(world.batches)
        self._judge()
        return outcome

    def _chapter(self) -> None:
        """Run until everything is read and at rest, with a new driver after each crash."""
        world = self.world
        world.dice.on = True
        for step in range(MAX_STEPS):
            if world.dice.fired >= world.case.schedule.most or step > MAX_STEPS // 2:
                world.dice.on = False  # heal, and let it drain
            world.now += 0.005
            try:
                if self._run is None and not self._starts():
                    continue
                assert self._run is not None
                self._one_step(self._run)
                if self._is_done(self._run):
                    return
            except (SimulatedCrash, Unreachable):
                self.outcome.crashes += 1
                if self._run is not None and world.case.schedule.zombies:
                    self._old.append(self._run.engine)
                self._drop_driver()
                if self._kill.due:
                    self._kill.strike()
        self.outcome.wrong.append("it did not come to its end")

    def _roll_back(self) -> None:
        """Take the last batch back, if that was drawn and can be done."""
        world, plan = self.world, self.world.plan
        while plan is not None and world.case.schedule.rolls_back:
            world.now += 0.005
            states = open_headed_states(plan, Config())
            kinds = {s.name: s.factory.kind for s in plan.states.values() if not s.static}
            try:
                roll_back(NAME, plan.fingerprint(), world.store(), states, kinds)
                self.outcome.rolled_back = True
            except (SimulatedCrash, Unreachable, OutageError, FailedException, RuntimeError):
                self.outcome.crashes += 1
                continue
            except ConfigError:
                pass  # there is nothing to go back to
            return

    def _starts(self) -> bool:
        """Start a driver; it ends at once where a store is away, and somebody starts another."""
        try:
            self._run = self._start()
        except OutageError:
            self.outcome.crashes += 1
            return False
        return True

    def _start(self) -> LocalRun:
        schedule, world = self.world.case.schedule, self.world
        if self._topology is None:
            self._topology = build(world)
        topology = self._topology
        config = Config(
            home=str(world.folder / "home"),
            max_spout_pending=None if schedule.sized else schedule.in_flight,
            max_retries=20,
            retry_backoff_millis=1,
            retry_backoff_max_millis=20,
            cancel_wait_secs=0.01,
            strict=schedule.strict,
            batch_sizing=schedule.sized,
            batch_interval_millis=100,
            staged_max_rows=5,
        )
        if world.plan is None:
            world.plan = topology.plan(config)
        now, wall = (lambda: world.now), (lambda: 1e9 + world.now)
        return LocalRun(topology, config, store=world.store(), clock=now, wall=wall)

    def _one_step(self, run: LocalRun) -> None:
        world, dice = self.world, self.world.dice
        out = dice.outage if dice.on else 0.0
        for feed in world.feeds.values():
            feed.switch(lambda: dice.random.random() < out)
        if world.statics and dice.on and dice.random.random() < world.case.schedule.change:
            world.change_statics()
        run.step(self._choosing(run.engine))
        for engine in self._old:
            # The dead driver's tasks go on for a while; nobody listens to them any more.
            if dice.random.random() < 0.2:
                engine.report = lambda event: None
                try:
                    engine.step(self._choosing(engine))
                except SimulatedCrash:
                    self.outcome.crashes += 1

    def _choosing(self, engine: InProcessEngine) -> Any:
        def choose(number: int) -> int:
            chosen = self.world.dice.random.randrange(number)
            attempt = engine._jobs[chosen].attempt
            self.world.running = (attempt.txid, attempt.attempt_id)
            return chosen

        return choose

    def _is_done(self, run: LocalRun) -> bool:
        if not run.loop.is_idle or run.engine.waiting:
            return False
        if run.loop._settle_at is not None:
            # A store could not be told of the last batch; until it is, readers do not see it.
            self.world.now = max(self.world.now, run.loop._settle_at)
            return False
        for feed in self.world.feeds.values():
            feed.switch(lambda: False)
        return not self._unread() and run.loop._looks_idle()

    def _unread(self) -> list[str]:
        """Return what of the sources is in no committed batch."""
        return [
            left for feed in self.world.feeds.values() for left in feed.unread(self._held(feed))
        ]

    def _held(self, feed: Feed) -> list[Any]:
        return [held[feed.name] for _, (_, held) in sorted(self.world.batches.items())]

    def _drop_driver(self) -> None:
        """Let a driver go as the end of its process would."""
        run, self._run = self._run, None
        if run is not None:
            for planner in run.loop._planners.values():
                planner.close()
            for state in run._states.values():
                state.close()

    def _judge(self) -> None:
        outcome, case = self.outcome, self.world.case
        exact = self._verdicts()
        outcome.exact = sum(exact.values())
        outcome.weak = len(exact) - outcome.exact
        if outcome.stopped is not None:
            self._judge_stop(outcome.stopped)
            return
        if case.shares_a_store and outcome.batches:
            outcome.wrong.append("two states were written to one store, and nobody refused")
        if case.schedule.strict and self._refused_by_strict():
            outcome.wrong.append("strict let states pass that are not exactly-once")
        oracle = self._recounted()
        for i, sure in exact.items():
            self._judge_state(i, sure, oracle.states[i])

    def _refused_by_strict(self) -> bool:
        plan = self.world.plan
        return plan is not None and not all(
            verdict_of(plan, update).exact for update in plan.updates.values()
        )

    def _judge_stop(self, error: BaseException) -> None:
        case, refused = self.world.case, isinstance(error, TopologyError)
        if refused and "in a circle" in str(error):
            return
        strict = case.schedule.strict and self._refused_by_strict()
        if refused and strict and "strict" in str(error):
            return
        if case.shares_a_store and isinstance(error, DOCUMENTED):
            return
        spread = any(update.must_be_refused for update in case.updates.values())
        if refused and spread and "declares no keys" in str(error):
            return
        fits = isinstance(error, (*DOCUMENTED, FencedError)) and not refused
        if self._kill.happened and fits:
            return
        self.outcome.wrong.append(f"it stopped for no reason: {error!r}")

    def _verdicts(self) -> dict[int, bool]:
        """Return which states are exactly-once, as the library says."""
        plan = self.world.plan
        if plan is None:
            return {}
        sure = {
            i: verdict_of(plan, plan.updates[name]).exact for i, name in self.world.names.items()
        }
        updates = self.world.case.updates
        kinds = {source.kind for source in self.world.sources.values()}
        best = NON_TRANSACTIONAL not in kinds and all(
            u.kind == OPAQUE and u.place.store != "two methods" for u in updates.values()
        )
        for i, update in updates.items():
            never = update.kind == NON_TRANSACTIONAL or update.place.store == "two methods"
            if best and not sure[i]:
                self.outcome.wrong.append(f"{i} is not exactly-once, though all states are opaque")
            if never and sure[i]:
                self.outcome.wrong.append(f"{i} is exactly-once, though it cannot be")
        return sure

    def _judge_state(self, i: int, sure: bool, expected: Mapping[Any, Any]) -> None:
        update = self.world.case.updates[i]
        found = self.world.content(i)
        if () in found and not found[()]:
            del found[()]  # of no rows
        if found == expected:
            return
        if sure or self.world.case.schedule.is_calm:
            verdict = "exactly-once" if sure else "not exactly-once, but nothing happened"
            self.outcome.wrong.append(
                f"state {i} ({update.how}, {verdict})\n  holds {found}\n  not   {dict(expected)}"
            )

    def _recounted(self) -> Oracle:
        """Count again what the committed batches hold; each row must be in one of them, once."""
        world, oracle = self.world, Oracle(self.world.case)
        if sorted(world.batches) != list(range(1, len(world.batches) + 1)):
            self.outcome.wrong.append(f"batches are missing: {sorted(world.batches)}")
        for txid, (attempt, held) in sorted(world.batches.items()):
            rows = {i: feed.rows(held[feed.name]) for i, feed in world.feeds.items()}
            statics = world.static_seen.get((txid, attempt), {})
            oracle.count(rows, statics, held.get(CLOCK, {}).get("time", 0))
        if left := self._unread():
            self.outcome.wrong.append(f"not read: {left}")
        for feed in world.feeds.values():
            self.outcome.wrong += feed.misread(self._held(feed))
        return oracle


@contextmanager
def _listing_at_once() -> Iterator[None]:
    """Let files be listed whenever they are asked for."""
    rest, _finding._REST_PER_LISTING = _finding._REST_PER_LISTING, 0
    try:
        yield
    finally:
        _finding._REST_PER_LISTING = rest


def run(case: Case) -> Outcome:
    """Run a case."""
    folder = Path(tempfile.mkdtemp(prefix="drawn-", dir=_SCRATCH))
    try:
        with _listing_at_once():
            return Runner(case, folder).go()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def first_wrong(
    seeds: range, totals: Counter[str] | None = None, drawn: Callable[[int], Case] = draw
) -> str:
    """Return the first case that goes wrong, made smaller, and how to see it again; or nothing."""
    for seed in seeds:
        outcome = run(drawn(seed))
        if totals is not None:
            totals.update(outcome.numbers())
        if outcome.wrong:
            rows = " --rows" if drawn is draw_rows else ""
            again = f"python -m tests.semantics.drawn_runs --seed {seed}{rows}"
            return f"{shrunk(outcome, run).text()}\n{again}"
    return ""


def main() -> int:
    """Run what was asked for; 1 if something is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--rows", action="store_true", help="cases of draw_rows")
    given = parser.parse_args()
    drawn = draw_rows if given.rows else draw
    logging.disable(logging.CRITICAL)
    if given.seed is not None:
        case = drawn(given.seed)
        print(case.text())
        outcome = run(case)
        print(f"stopped: {outcome.stopped!r}, {outcome.crashes} crashes", *outcome.wrong, sep="\n")
        if outcome.wrong:
            print("smaller:", shrunk(outcome, run).text(), sep="\n")
        return bool(outcome.wrong)
    totals: Counter[str] = Counter()
    began = time.process_time()
    for seed in range(given.first, given.first + given.count):
        outcome = run(drawn(seed))
        totals.update(outcome.numbers())
        if outcome.wrong:
            print(seed, outcome.wrong[0], flush=True)
    took = time.process_time() - began
    print(dict(totals), f"{1000 * took / given.count:.1f} ms each")
    return bool(totals["wrong"])


if __name__ == "__main__":
    sys.exit(main())
