"""Tuple trees against a shadow set: no early, no missing and no double callback."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from tests.semantics.shadow import ShadowBolt, World, shadow_topology, worlds
from tests.soaking import soaked
from tests.waves.driving import COLLAPSED, SPREAD, Driven, LateWaves
from waterspout.acking.tracker import AckTracker, TreeReport
from waterspout.acking.xor import combine, draw, generator
from waterspout.testing import FeederSpout
from waterspout.topology import BasicBolt, Bolt, TopologyBuilder
from waterspout.waves.balance import Balance
from waterspout.waves.engine import WaveDone, WaveFailed
from waterspout.waves.shape import WaveShape

TIMEOUT = 30.0


class ForgetfulWaves(LateWaves):
    """Runs every n-th wave to its end and then says that it failed."""

    def __init__(self, world: World, *, keep_alive: bool, every: int, looks: int) -> None:
        super().__init__(2, keep_alive=keep_alive, looks=looks)
        self._world, self._every, self._count = world, every, 0

    def poll(self, wait_s: float) -> WaveDone | WaveFailed | None:
        self._world.mark()  # it runs in here; what spouts emit meanwhile is not taken back
        ended = super().poll(wait_s)
        if isinstance(ended, WaveDone):
            self._count += 1
            if self._count % self._every == 0:
                self._world.roll_back()
                return WaveFailed(RuntimeError("the result is lost"))
        return ended


def run_shadow(world: World, driven: Driven, step_s: float = 0.3) -> None:
    """Step to the end; after each wave every spout must know all it can know."""
    world.clock = driven.clock
    waves = 0
    for step in range(100_000):
        driven.step()
        if len(driven.heard.waves) > waves:
            waves = len(driven.heard.waves)
            assert world.missing() == []
        assert world.wrong == []
        driven.clock.pass_by(step_s)
        world.draining = world.left <= 0
        if world.draining and driven.loop.is_idle:
            break
        assert step < 20_000, "never idle"
    driven.loop.close()


def shadow_run(seed: int, messages: int, **options) -> World:
    name = f"{seed} {options}"
    world = worlds[name] = World(seed, messages, timeout=TIMEOUT)
    try:
        every, looks = options.pop("lose_every", 10**9), options.pop("looks", 0)
        keep_alive = options.pop("keep_alive")
        options["engine"] = ForgetfulWaves(world, keep_alive=keep_alive, every=every, looks=looks)
        driven = Driven(
            shadow_topology(name),
            message_timeout_secs=TIMEOUT,
            max_replays=1_000_000,
            **options,
        )
        run_shadow(world, driven, 0.3 / (1 + looks))
    finally:
        del worlds[name]
    return world


@pytest.mark.parametrize("ackers", [soaked(1), 3])
@pytest.mark.parametrize("shape", [COLLAPSED, SPREAD])
@pytest.mark.parametrize("keep_alive", [True, soaked(False)])
def test_each_emission_is_told_once_and_never_before_its_tree_is_done(keep_alive, shape, ackers):
    world = shadow_run(
        7 + ackers,
        300,
        keep_alive=keep_alive,
        wave_collapse_tuples=shape,
        ackers=ackers,
        max_spout_pending=40,
    )

    told = [emission.told for emission in world.emissions.values()]
    assert {len(each) for each in told} == {1}
    assert 50 < told.count(["ack"]) < len(told)
    deeds = [
        "twice",
        "many",
        "none",
        "never",
        "reset",
        "raise",
        "ack and raise",
        "failed exception",
    ]
    deeds += ["held, then acked", "held, then failed"]
    assert [deed for deed in deeds if not world.done[deed]] == []


@pytest.mark.parametrize("shape", [COLLAPSED, SPREAD])
@pytest.mark.parametrize("keep_alive", [True, soaked(False)])
def test_waves_whose_result_is_lost_change_no_callback(keep_alive, shape):
    world = shadow_run(
        3,
        100,
        keep_alive=keep_alive,
        wave_collapse_tuples=shape,
        lose_every=2,
        max_spout_pending=20,
    )

    assert {len(emission.told) for emission in world.emissions.values()} == {1}


@pytest.mark.parametrize("seed", [0, soaked(1), soaked(2)])
def test_trees_in_one_large_wave_after_the_other(seed):
    world = shadow_run(seed, 300, wave_collapse_tuples=SPREAD, keep_alive=False)

    assert {len(emission.told) for emission in world.emissions.values()} == {1}


@pytest.mark.parametrize("every", [10**9, 3])
@pytest.mark.parametrize("keep_alive", [True, soaked(False)])
def test_waves_that_begin_before_the_spouts_are_told_change_no_callback(keep_alive, every):
    world = shadow_run(
        5,
        300,
        keep_alive=keep_alive,
        wave_collapse_tuples=SPREAD,
        wave_max_tuples=12,
        lose_every=every,
        looks=4,
    )

    told = [emission.told for emission in world.emissions.values()]
    assert {len(each) for each in told} == {1}
    assert 50 < told.count(["ack"]) < len(told)


@pytest.mark.parametrize("keep_alive", [True, soaked(False)])
def test_tasks_that_change_their_shards_with_every_wave_change_no_callback(keep_alive, monkeypatch):
    places = np.random.default_rng(9)

    def dealt_anew(balance: Balance, shape: WaveShape) -> WaveShape:
        return shape.with_places(
            {
                task: shard
                for stage in shape.stages
                for component in stage.components
                if shape.follows_keys(component)
                for task, shard in zip(
                    shape.topology.tasks[component],
                    places.permutation(
                        [shape.slots[task].shard for task in shape.topology.tasks[component]]
                    ).tolist(),
                    strict=True,
                )
            }
        )

    monkeypatch.setattr(Balance, "improved", dealt_anew)
    world = shadow_run(
        6, 200, keep_alive=keep_alive, wave_collapse_tuples=SPREAD, max_spout_pending=40, looks=2
    )

    assert {len(emission.told) for emission in world.emissions.values()} == {1}


class FanOut(BasicBolt):
    output_fields = ("n",)

    def __init__(self, times: int) -> None:
        self._times = times

    def execute(self, tuple, collector):
        for n in range(self._times):
            collector.emit([tuple[0] * self._times + n])


class KeepLast(Bolt):
    """Acks all but the last of `count` tuples, which waits for a tick."""

    configuration: ClassVar = {"topology.tick.tuple.freq.secs": 10}

    def __init__(self, count: int) -> None:
        self._count, self._got, self._kept = count, 0, None

    def execute(self, tuple):
        if tuple.is_tick:
            if self._kept is not None:
                self.collector.ack(self._kept)
                self._kept = None
            return
        self._got += 1
        if self._got == self._count:
            self._kept = tuple
        else:
            self.collector.ack(tuple)


@pytest.mark.parametrize("shape", [COLLAPSED, SPREAD])
def test_a_tree_of_100_000_nodes_is_complete_exactly_at_its_last_ack(shape):
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("hundreds", FanOut(250), 2).shuffle_grouping("source")
    builder.set_bolt("thousands", FanOut(400), 4).fields_grouping("hundreds", "n")
    builder.set_bolt("last", KeepLast(100_000)).global_grouping("thousands")
    driven = Driven(builder.create_topology("big"), wave_collapse_tuples=shape, keep_alive=False)
    feeder.feed([0], msg_id="m")
    driven.step(10)

    assert driven.heard.waves[0]["executed"] == {"hundreds": 1, "thousands": 250, "last": 100_000}
    assert (feeder.tracker.acks, feeder.tracker.fails) == ({}, {})

    driven.clock.pass_by(10)
    driven.step(2)

    assert (feeder.tracker.acks, feeder.tracker.fails) == ({"m": 1}, {})


class ArrayTrees:
    """Random trees as arrays: open tuples with their tree, and how many are open in each tree."""

    def __init__(self, seed: int, trees: int) -> None:
        self._random = np.random.default_rng(seed)
        self._ids = generator([seed])
        self.roots = draw(self._ids, trees)
        self.opened = np.zeros(trees, bool)
        self.told = np.zeros(trees, np.int8)
        self.open = np.zeros(trees, np.int64)
        self._tree = np.empty(0, np.int64)
        self._edge = np.empty(0, np.uint64)
        self.acks = 0

    def begin(self, count: int):
        """Begin trees of one to three tuples; return what a spout would report."""
        fresh = np.flatnonzero(~self.opened)[:count]
        self.opened[fresh] = True
        tree, edge = self._created(np.repeat(fresh, self._random.integers(1, 4, len(fresh))))
        known, values = combine([self.roots[tree]], [edge])
        return known, values

    def wave(self, share: float, growth: float):
        """Ack a share of all open tuples, each of which has had children before that."""
        chosen = self._random.random(len(self._tree)) < share
        tree, edge = self._tree[chosen], self._edge[chosen]
        parents = tree[self._random.random(len(tree)) < growth]
        self._tree, self._edge = self._tree[~chosen], self._edge[~chosen]
        born_tree, born_edge = self._created(parents)
        np.subtract.at(self.open, tree, 1)
        self.acks += len(tree)
        # In pieces, as several tasks would report them.
        cut = len(tree) // 3
        pieces = [(tree[:cut], edge[:cut]), (tree[cut:], edge[cut:]), (born_tree, born_edge)]
        reports = [combine([self.roots[t]], [e]) for t, e in pieces]
        return combine([r for r, _ in reports], [v for _, v in reports])

    def _created(self, tree):
        edge = draw(self._ids, len(tree))
        np.add.at(self.open, tree, 1)
        self._tree = np.concatenate([self._tree, tree])
        self._edge = np.concatenate([self._edge, edge])
        return tree, edge

    def check(self, acked) -> None:
        """Compare what was acked now with what is complete now."""
        order = np.argsort(self.roots)
        places = order[np.searchsorted(self.roots, acked, sorter=order)]
        complete = np.flatnonzero(self.opened & (self.open == 0) & (self.told == 0))
        assert np.array_equal(np.sort(places), complete)
        self.told[complete] += 1


def many_acks(trees: int, ackers: int, *, share: float = 0.4, growth: float = 0.8) -> int:
    shadow = ArrayTrees(5, trees)
    tracker = AckTracker(ackers, None, 0.0)
    while not shadow.opened.all() or shadow.open.any():
        roots, values = shadow.begin(max(1, trees // 20))
        tracker.open(roots, values, np.ones(len(roots), np.int32))
        assert len(tracker) == np.count_nonzero(shadow.opened & (shadow.told == 0))
        report = shadow.wave(share, growth)
        shadow.check(tracker.apply(TreeReport(*report)).acked.roots)
    assert len(tracker) == 0
    assert (shadow.told == 1).all()
    return shadow.acks


@pytest.mark.parametrize("ackers", [soaked(1), 3])
def test_hundred_thousands_of_acks_in_arrays(ackers):
    assert many_acks(20_000, ackers) > 150_000


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_ten_million_acks(capsys):
    in_arrays = many_acks(600_000, 1) + many_acks(500_000, 3)
    worlds_run = [
        shadow_run(seed, 4_000, wave_collapse_tuples=shape, keep_alive=keep, ackers=3)
        for seed, (shape, keep) in enumerate([(COLLAPSED, True), (SPREAD, True), (SPREAD, False)])
    ]
    by_bolts = sum(world.acks for world in worlds_run)
    trees = sum(len(world.emissions) for world in worlds_run)
    with capsys.disabled():
        print(f"\n{in_arrays:,} acks in arrays, {by_bolts:,} by bolts in {trees:,} trees")

    assert in_arrays + by_bolts >= 10**7
    assert all(len(e.told) == 1 for world in worlds_run for e in world.emissions.values())


def test_the_shadow_itself_notices_an_early_ack():
    world = World(0, 0, timeout=1.0)
    root = world.message(task=1)
    world.created(7, [root], [2, 3])
    world.acked(7, 2)

    world.told("ack", root, 1)

    assert world.wrong == [f"{root}: acked early, open: Counter({{(7, 3): 1}})"]
    assert ShadowBolt("x").held == []


def test_the_shadow_notices_ids_that_are_not_random(monkeypatch):
    alike = lambda ids, count: np.ones(count, np.uint64)  # noqa: E731
    for drawing in ("outlets.draw", "outlets.keyed_ids", "frames.keyed_ids"):
        monkeypatch.setattr(f"waterspout.waves.{drawing}", alike)

    with pytest.raises(AssertionError, match="acked early"):
        shadow_run(1, 100, keep_alive=True)
