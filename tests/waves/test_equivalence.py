"""Collapsed or spread, alive or made anew, however cut: the same results, the same acks."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.waves.driving import COLLAPSED, SPREAD, Driven, ListLog, forget_all, seen, seen_log
from waterspout.testing import FeederSpout
from waterspout.topology import Bolt, TopologyBuilder

GROUPINGS = ("shuffle", "fields", "all", "global", "none", "local_or_shuffle")


class Work(Bolt):
    """Counts by key; what it emits, fails and holds follows from the tuple's own values."""

    output_fields = ("key", "path")

    def __init__(self, name: str, *, keyed: bool, holds: bool) -> None:
        self._name, self._keyed, self._holds = name, keyed, holds
        self._counts: Counter[int] = Counter()
        self._held: list[Any] = []

    def execute(self, tuple):
        key, path = tuple.values
        if self._keyed:
            self._counts[key] += 1
        # Apart: which path comes first depends on how a topology is run, the count does not.
        seen("executed").extend([(self._name, key, path), (self._name, key, self._counts[key])])
        if len(path) < 4:
            for n in range(key % 3):
                self.collector.emit([key + n, path + self._name], tuple)
        if (key + len(path)) % 11 == 0:
            raise ValueError("as its values say")
        if self._holds and key % 5 == 0:
            self._held.append(tuple)  # until the next one comes, in this wave or later
            if len(self._held) < 3:
                return
            for held in self._held:
                self.collector.ack(held)
            self._held = []
        else:
            self.collector.ack(tuple)


@st.composite
def plans(draw) -> list[tuple[int, list[tuple[int, str]]]]:
    """Bolts by number of tasks and inputs (0: the spout; a later one: a cycle)."""
    count = draw(st.integers(1, 4))
    plan = []
    for number in range(1, count + 1):
        forward = draw(st.lists(st.integers(0, number - 1), min_size=1, max_size=2, unique=True))
        back = draw(st.lists(st.integers(number, count), max_size=1))
        inputs = [(source, draw(st.sampled_from(GROUPINGS))) for source in forward]
        inputs += [(source, "fields") for source in back if draw(st.integers(0, 3)) == 0]
        plan.append((draw(st.integers(1, 3)), inputs))
    return plan


def run(
    plan: Any, keys: list[int], *, log: bool = False, holds: bool = False, **options: Any
) -> tuple[Any, ...]:
    """Run a plan; return all that must not depend on how it was run."""
    forget_all()
    feeder = FeederSpout(["key", "path"])
    builder = TopologyBuilder()
    if log:
        seen_log("keys").update({0: list(keys[::2]), 1: list(keys[1::2])})
        builder.set_spout("b0", Pairs("keys"), 2)
    else:
        builder.set_spout("b0", feeder)
    for number, (tasks, inputs) in enumerate(plan, 1):
        # Counts by key do not depend on the order only where one task has all of a key.
        keyed = all(grouping in ("fields", "global") for _, grouping in inputs)
        keyed = keyed and len(inputs) == 1
        declarer = builder.set_bolt(
            f"b{number}", Work(str(number), keyed=keyed, holds=holds), tasks
        )
        for source, grouping in inputs:
            fields = ["key"] if grouping == "fields" else []
            getattr(declarer, f"{grouping}_grouping")(f"b{source}", *fields)
    driven = Driven(builder.create_topology("t"), message_timeout_secs=20, max_replays=0, **options)
    for n, key in enumerate(keys):
        feeder.feed([key, ""], msg_id=n)
    driven.until_idle(tick=0.5)
    letters = Counter(letter.values for letter in driven.letters.all())
    return Counter(seen("executed")), feeder.tracker.acks, letters, driven.counts.emitted


class Pairs(ListLog):
    output_fields = ("key", "path")

    def read(self, partition, start, end):
        for offset, (key,) in super().read(partition, start, end):
            yield offset, [key, ""]


@settings(max_examples=50)
@given(
    plan=plans(),
    keys=st.lists(st.integers(1, 30), max_size=25),
    log=st.booleans(),
    holds=st.booleans(),
)
def test_however_a_topology_is_run_its_results_are_the_same(plan, keys, log, holds):
    ways = [
        {"wave_collapse_tuples": COLLAPSED, "keep_alive": True},
        {"wave_collapse_tuples": SPREAD, "keep_alive": False, "workers": 2},
        {"wave_collapse_tuples": 6, "keep_alive": True, "workers": 3, "ackers": 3},
        {"wave_collapse_tuples": SPREAD, "keep_alive": True, "workers": 1, "max_spout_pending": 3},
    ]

    results = [run(plan, keys, log=log, holds=holds, **way) for way in ways]

    executed = [result[0] for result in results]
    assert executed[1:] == executed[:1] * 3
    if not holds:  # who is held, and so times out, depends on who shares a task
        assert results[1:] == results[:1] * 3


@settings(max_examples=25)
@given(plan=plans(), keys=st.lists(st.integers(1, 30), max_size=25))
def test_without_ackers_the_same_tuples_are_executed(plan, keys):
    assert run(plan, keys, ackers=0)[0] == run(plan, keys, ackers=1)[0]


class Tag(Bolt):
    """Emits each number with the task that it came through."""

    output_fields = ("task", "n")

    def prepare(self, conf, context, collector):
        self.collector, self._task = collector, context.this_task_id

    def execute(self, tuple):
        self.collector.emit([self._task, tuple["n"]], tuple)
        self.collector.ack(tuple)


class SlowRecord(Bolt):
    """Notes what it gets from whom; a look at the clock takes its time."""

    def prepare(self, conf, context, collector):
        self.collector, self._task = collector, context.this_task_id

    def execute(self, tuple):
        times[-1].now += 0.001
        seen("order").append((tuple["task"], self._task, tuple["n"]))
        self.collector.ack(tuple)


times: list[SimpleNamespace] = []


@pytest.mark.parametrize("shape", [COLLAPSED, SPREAD, 100])
@pytest.mark.parametrize("grouping", ["shuffle", "fields"])
def test_tuples_from_one_task_to_another_keep_their_order_over_cut_waves(
    monkeypatch, shape, grouping
):
    passed = SimpleNamespace(now=0.0, monotonic=lambda: passed.now)
    times.append(passed)
    for module in ("waves.bolts", "waves.over_waves", "testing._waves"):
        monkeypatch.setattr(f"waterspout.{module}.time", passed)
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("tag", Tag(), 3).shuffle_grouping("source")
    fields = ["n"] if grouping == "fields" else []
    getattr(builder.set_bolt("slow", SlowRecord(), 2), f"{grouping}_grouping")("tag", *fields)
    driven = Driven(builder.create_topology("t"), wave_budget_secs=0.02, wave_collapse_tuples=shape)
    for n in range(1500):
        feeder.feed([n], msg_id=n)
        if n % 100 == 0:
            driven.step()
    driven.until_idle()

    assert max(facts["backlog"] for facts in driven.heard.waves) > 0
    assert sorted(n for *_, n in seen("order")) == list(range(1500))
    for pair in {(a, b) for a, b, _ in seen("order")}:
        numbers = [n for a, b, n in seen("order") if (a, b) == pair]
        assert numbers == sorted(numbers)
