"""Seeded schedules of failures over a topology with dead letters and replays, one thread.

Every row is, in the end, in the state or in the letters, and in one of them once: whatever
crashed, whichever attempts were lost, whoever asked for letters at whatever moment.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.semantics.simulation import Dice, Ids, UnreliableMap, UnreliableState
from tests.soaking import sampled
from waterspout import Config, faults
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.spouts._base import SpoutKind
from waterspout.testing import LocalRun, MemoryLog, SimulatedCrash
from waterspout.trident import TridentTopology
from waterspout.trident.isolation.store import LettersLocation

CONFIG = Config(
    max_spout_pending=3,
    max_retries=1000,
    retry_backoff_millis=1,
    retry_backoff_max_millis=20,
    cancel_wait_secs=0.01,
)


def parse(text: str) -> int:
    return int(text)


def share(n: int) -> int:
    return 12 // n


class World:
    """What outlives a crash, and those who ask for letters."""

    def __init__(self, seed: int, place: LettersLocation) -> None:
        rng = self.random = random.Random(seed)
        self.place = place

        def sometimes(chance: float) -> float:
            return chance if rng.random() < 0.5 else 0.0

        self.dice = Dice(
            rng,
            crash=sometimes(0.01),
            fail=sometimes(0.02),
            error=sometimes(0.02),
            lost_write=sometimes(0.05),
            half_write=sometimes(0.1),
            lost_answer=sometimes(0.05),
            outage=sometimes(0.2),
            zombies=rng.random() < 0.5,
        )
        numbers = iter(range(10_000))
        self.rows = [
            [(rng.choice("1234x0yz"), next(numbers)) for _ in range(rng.randrange(1, 9))]
            for _ in range(rng.randrange(1, 4))
        ]
        kind = rng.choice([SpoutKind.OPAQUE, SpoutKind.TRANSACTIONAL])
        self.log = MemoryLog(
            "text string, id bigint", self.rows, kind=kind, take=lambda _: rng.randrange(0, 4)
        )
        self.state = UnreliableState(UnreliableMap(self.dice))
        self.ledger = SharedMemory()
        self.now = 0.0
        self.dropped: set[int] = set()

    def start(self) -> LocalRun:
        topology = TridentTopology("simulated")
        rows = topology.new_stream("log", self.log)
        numbers = rows.each("text", parse, "n bigint", on_error="dead_letter")
        shares = numbers.each("n", share, "share bigint", on_error="dead_letter")
        shares.group_by("share").persistent_aggregate(
            self.state, "id", Ids(), out="ids array<bigint>"
        )
        return LocalRun(
            topology,
            CONFIG,
            store=MemoryCoordinationStore("simulated", self.ledger),
            clock=lambda: self.now,
            letters=self.place,
        )

    def somebody_asks(self) -> None:
        """Ask for a letter that is there, or was there a moment ago."""
        rng = self.random
        known = self.place.letters()
        if not known:
            return
        letter = rng.choice(known)
        if rng.random() < 0.2:
            if self.place.requests().add("drop", [letter]):
                self.dropped.add(letter.row["id"])
            return
        if rng.random() < 0.7:
            text, number = '"4"', letter.row["id"]
            row = f"[{text},{number}]" if "n" not in letter.row else f"[{text},{number},4]"
            letter = replace(letter, content=row)
        self.place.requests().add("replay", [letter])

    def found(self) -> tuple[Counter[int], Counter[int]]:
        scanned = self.state.make_state(Config(), 0, 1).scan()
        counted = Counter(n for chunk in scanned for _, ids in chunk for n in ids)
        return counted, Counter(letter.row["id"] for letter in self.place.letters())


def drive(world: World, max_steps: int = 2000) -> None:
    rng, dice = world.random, world.dice
    old, run = [], None
    faults.install(dice.at_point)
    try:
        for step in range(max_steps):
            dice.on = step < max_steps // 2  # then heal, and let it drain
            world.now += 0.005
            try:
                if run is None:
                    run = world.start()
                if dice.on and rng.random() < 0.05:
                    world.somebody_asks()
                world.log.disabled = {
                    part for part in range(len(world.rows)) if dice.hits(dice.outage)
                }
                run.step(rng.randrange)
                for engine in old:
                    if rng.random() < 0.2:
                        step_of_a_dead_driver(engine, rng)
                if not dice.on and run.loop.is_idle and not run.engine.waiting:
                    return
            except SimulatedCrash:
                if run is not None and dice.zombies:
                    old.append(run.engine)
                run = None
    finally:
        faults.install(None)
    raise AssertionError("not drained")


def step_of_a_dead_driver(engine, rng) -> None:
    engine.report = lambda event: None
    with contextlib.suppress(SimulatedCrash):
        engine.step(rng.randrange)


@pytest.mark.soak
@pytest.mark.parametrize("first", sampled(range(0, 60, 20), [0]))
def test_every_row_is_counted_once_or_a_letter_once(first, tmp_path_factory):
    for seed in range(first, first + 20):
        place = LettersLocation(tmp_path_factory.mktemp("letters") if seed % 5 == 0 else None)
        world = World(seed, place)

        drive(world)

        counted, aside = world.found()
        expected = Counter(number for rows in world.rows for _, number in rows)
        expected -= Counter(world.dropped)
        assert counted + aside == expected, f"seed {seed}: {counted} and {aside}"
