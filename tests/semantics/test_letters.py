"""Dead letters of Trident under crashes: each bad row once, each replay once, whatever happens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from tests.semantics.simulation import Ids
from tests.soaking import stepped
from waterspout import Config, FailedException, faults
from waterspout._letters import Asked
from waterspout.coordination.rollback import roll_back
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import StateMismatchError
from waterspout.faults import BATCH_POINTS
from waterspout.spouts._base import SpoutKind
from waterspout.state import MemoryMapState
from waterspout.testing import LocalRun, MemoryLog, SimulatedCrash
from waterspout.trident import TridentTopology
from waterspout.trident.isolation.store import LettersLocation
from waterspout.trident.runtime.states import open_state

CONFIG = Config(max_spout_pending=2, retry_backoff_millis=0, cancel_wait_secs=0.0)
ROWS = [[("1", 1), ("x", 2), ("2", 3)], [("y", 4), ("1", 5)]]
GOOD = {1: [1, 5], 2: [3]}
BAD = [("x", 2), ("y", 4)]
KINDS = [SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE]


def parse(text: str) -> int:
    return int(text)


class CrashAt:
    """Crashes at the n-th kill point that is passed, then at the m-th after that, and so on."""

    def __init__(self, *counts: int) -> None:
        self._counts = list(counts)
        self._passed = 0
        self.seen: list[str] = []

    def __call__(self, name, context):
        self.seen.append(name)
        self._passed += 1
        if self._counts and self._passed == self._counts[0]:
            self._counts.pop(0)
            self._passed = 0
            raise SimulatedCrash(name)

    @property
    def all_fired(self) -> bool:
        return not self._counts


@dataclass
class World:
    """What outlives a crash."""

    place: LettersLocation
    kind: SpoutKind = SpoutKind.TRANSACTIONAL
    isolating: bool = True
    ledger: SharedMemory = field(default_factory=SharedMemory)
    state: MemoryMapState = field(default_factory=MemoryMapState)
    now: float = 0.0
    operation: object = parse

    def __post_init__(self):
        self.log = MemoryLog("text string, id bigint", ROWS, kind=self.kind, take=2)

    def topology(self) -> TridentTopology:
        topology = TridentTopology("simulated")
        rows = topology.new_stream("log", self.log)
        aside = "dead_letter" if self.isolating else "fail"
        numbers = rows.each("text", self.operation, "n bigint", on_error=aside).name("parse")
        kept = numbers.filter("n", lambda n: n >= 0).name("positive")
        kept.group_by("n").persistent_aggregate(self.state, "id", Ids(), out="ids array<bigint>")
        return topology

    def start(self) -> LocalRun:
        return LocalRun(
            self.topology(),
            CONFIG,
            store=MemoryCoordinationStore("simulated", self.ledger),
            clock=lambda: self.now,
            letters=self.place,
        )

    def run(self, hook=None, *, between=lambda: None) -> LocalRun:
        """Run to the end, starting again after each crash, as a supervisor would."""
        faults.install(hook)
        try:
            while True:
                self.now += 1
                try:
                    between()
                    run = self.start()
                    run.finish(max_steps=2000)
                    return run
                except SimulatedCrash:
                    continue
        finally:
            faults.install(None)

    @property
    def counted(self) -> dict[int, list[int]]:
        scanned = self.state.make_state(Config(), 0, 1).scan()
        return {key[0]: sorted(ids) for chunk in scanned for key, ids in chunk}

    @property
    def letters(self):
        return self.place.letters()

    def aside(self) -> list[tuple[object, ...]]:
        return sorted((*letter.values, letter.failures) for letter in self.letters)


def worlds(tmp_path_factory, **more):
    """Make worlds whose letters are in files, each in a folder of its own."""
    return World(LettersLocation(tmp_path_factory.mktemp("letters")), **more)


def points_of(world: World, **more) -> int:
    hook = CrashAt()
    world.run(hook, **more)
    return len(hook.seen)


FIRST = sorted((*row, 1) for row in BAD)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_every_named_point_is_passed(kind, tmp_path_factory):
    hook = CrashAt()

    world = worlds(tmp_path_factory, kind=kind)
    world.run(hook)

    assert set(hook.seen) == set(BATCH_POINTS)
    assert (world.counted, world.aside()) == (GOOD, FIRST)


@stepped(3)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_a_crash_at_every_point_gives_each_bad_row_one_letter(kind, tmp_path_factory, step):
    for n in range(1, points_of(worlds(tmp_path_factory, kind=kind)) + 1, step):
        hook = CrashAt(n)

        world = worlds(tmp_path_factory, kind=kind)
        world.run(hook)

        assert hook.all_fired
        assert (world.counted, world.aside()) == (GOOD, FIRST), f"{n} ({hook.seen[n - 1]})"


@stepped(4)
def test_a_second_crash_during_every_recovery_changes_nothing(step):
    pairs = 0
    for n in range(1, points_of(World(LettersLocation())) + 1, 3 * step):
        for m in range(1, 1000, 7):
            hook = CrashAt(n, m)
            world = World(LettersLocation())
            world.run(hook)
            if not hook.all_fired:
                break
            pairs += 1
            assert (world.counted, world.aside()) == (GOOD, FIRST), f"{n} and then {m}"
    assert pairs > 80 // step


def ask(world: World) -> None:
    """Ask as several people would: one letter mended, the other as it was."""
    mended, same = sorted(world.letters, key=lambda letter: letter.row["id"])
    world.place.requests().add("replay", [replace(mended, content='["1",2]'), same])


MENDED = {1: [1, 2, 5], 2: [3]}
AGAIN = [("y", 4, 2)]


@stepped(3)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)
def test_a_crash_at_every_point_of_a_replay_replays_once(kind, tmp_path_factory, step):
    def asked() -> World:
        world = worlds(tmp_path_factory, kind=kind)
        world.run()
        ask(world)
        return world

    points = points_of(asked())
    assert points > 10
    for n in range(1, points + 1, step):
        hook = CrashAt(n)

        world = asked()
        world.run(hook)

        assert hook.all_fired
        assert (world.counted, world.aside()) == (MENDED, AGAIN), f"{n} ({hook.seen[n - 1]})"
        assert "open" not in {asked.state for asked in world.place.requests().asked().values()}


@stepped(3)
def test_who_asks_again_and_again_during_crashes_gets_one_replay(tmp_path_factory, step):
    """The worst a slow command can do: it has seen the letters before, and asks at any time."""

    def asked() -> tuple[World, object]:
        world = worlds(tmp_path_factory)
        world.run()
        (letter,) = [one for one in world.letters if one.row["id"] == 2]
        mended = replace(letter, content='["1",2]')
        return world, lambda: world.place.requests().add("replay", [mended])

    world, again = asked()
    for n in range(1, points_of(world, between=again) + 1, step):
        world, again = asked()

        world.run(CrashAt(n), between=again)
        world.run(between=again)

        assert world.counted == MENDED, n
        assert world.aside() == [("y", 4, 1)]


@stepped(6)
def test_a_second_crash_during_a_replay_replays_once(step):
    def asked() -> World:
        world = World(LettersLocation())
        world.run()
        ask(world)
        return world

    pairs = 0
    for n in range(1, points_of(asked()) + 1, 2 * step):
        for m in range(1, 1000, 3):
            hook = CrashAt(n, m)
            world = asked()
            world.run(hook)
            if not hook.all_fired:
                break
            pairs += 1
            assert (world.counted, world.aside()) == (MENDED, AGAIN), f"{n} and then {m}"
    assert pairs > 40 // step


def test_a_crash_at_every_point_of_a_drop_drops_once(tmp_path_factory):
    def asked() -> World:
        world = worlds(tmp_path_factory)
        world.run()
        world.place.requests().add("drop", world.letters[:1])
        return world

    for n in range(1, points_of(asked()) + 1):
        world = asked()

        world.run(CrashAt(n))

        assert world.counted == GOOD
        assert len(world.letters) == 1, n


def test_a_replayed_batch_that_fails_replays_its_letters_with_it(tmp_path_factory):
    """An attempt that is lost while it carries a replay must leave nothing behind."""
    world = worlds(tmp_path_factory)
    world.run()
    calls = Counter()

    def moody(text):
        calls[text] += 1
        if text == "7" and calls[text] < 4:
            raise FailedException("not yet")
        return int(text)

    world.operation = moody
    (letter,) = [one for one in world.letters if one.row["id"] == 2]
    world.place.requests().add("replay", [replace(letter, content='["7",2]')])
    world.run()

    assert calls["7"] == 4
    assert (world.counted, world.aside()) == ({**GOOD, 7: [2]}, [("y", 4, 1)])


def test_a_letter_keeps_its_history_over_replays(tmp_path_factory):
    world = worlds(tmp_path_factory)
    world.run()
    first = {letter.position: letter for letter in world.letters}

    for _ in range(2):
        world.place.requests().add("replay", world.letters)
        world.run()

    for letter in world.letters:
        before = first[letter.position]
        assert (letter.failures, letter.first_failed) == (3, before.first_failed)
        assert letter.last_failed >= before.last_failed
        assert letter.txid > before.txid


@pytest.mark.soak
def test_many_requests_are_spread_over_batches():
    world = World(LettersLocation())
    world.log = MemoryLog("text string, id bigint", [[("x", i) for i in range(2500)]], take=2500)
    world.run()
    world.place.requests().add(
        "replay", [replace(one, content=f'["1",{one.row["id"]}]') for one in world.letters]
    )

    run = world.run()

    assert run.loop.ledger.current == 5
    assert (world.counted, world.letters) == ({1: list(range(2500))}, [])


def test_a_batch_that_is_taken_back_takes_its_letters_and_replays_with_it(tmp_path_factory):
    world = worlds(tmp_path_factory)
    world.run()
    ask(world)
    world.run().close()
    assert (world.counted, world.aside()) == (MENDED, AGAIN)

    plan = world.start().plan
    states = {name: open_state(spec, CONFIG, 0, None) for name, spec in plan.states.items()}
    kinds = {name: spec.factory.kind for name, spec in plan.states.items()}
    store = MemoryCoordinationStore("simulated", world.ledger)
    roll_back("simulated", plan.fingerprint(), store, states, kinds)

    assert (world.counted, world.aside()) == (GOOD, FIRST)
    world.run()
    assert (world.counted, world.aside()) == (GOOD, FIRST), "nobody asks any more"
    ask(world)
    world.run()
    assert (world.counted, world.aside()) == (MENDED, AGAIN)


def test_isolation_can_be_switched_on_where_a_bad_row_stops_an_old_topology(tmp_path_factory):
    world = worlds(tmp_path_factory, isolating=False)
    with pytest.raises(ValueError, match="invalid literal"):
        world.run()

    world.isolating = True
    world.run()

    assert (world.counted, world.aside()) == (GOOD, FIRST)


def test_isolation_can_be_switched_off_and_letters_wait(tmp_path_factory):
    world = worlds(tmp_path_factory)
    world.run()

    world.isolating = False
    world.place.requests().add("replay", world.letters)
    world.run()

    assert (world.counted, world.aside()) == (GOOD, FIRST)
    reason = "the topology has no operation parse that puts rows aside"
    assert {letter.asked for letter in world.letters} == {Asked("replay", "refused", reason)}
    world.isolating = True
    ask(world)
    world.run()
    assert (world.counted, world.aside()) == (MENDED, AGAIN)


def test_a_drop_is_carried_out_where_nothing_isolates_any_more(tmp_path_factory):
    world = worlds(tmp_path_factory)
    world.run()

    world.isolating = False
    world.place.requests().add("drop", world.letters)
    world.run()

    assert world.letters == []


def test_letters_that_were_wiped_are_found_out(tmp_path_factory):
    world = worlds(tmp_path_factory)
    world.run()
    for file in world.place.folder.iterdir():
        file.unlink()

    with pytest.raises(StateMismatchError, match="dead letters"):
        world.run()


def test_letters_of_an_older_copy_are_found_out(tmp_path_factory):
    world = worlds(tmp_path_factory)
    run = world.start()
    while run.loop.ledger.current < 2:
        run.step()
    run.close()
    before = {file: file.read_bytes() for file in world.place.folder.iterdir()}
    world.run()
    for file in world.place.folder.iterdir():
        file.unlink()
    for file, content in before.items():
        file.write_bytes(content)

    with pytest.raises(StateMismatchError, match="dead letters"):
        world.run()
