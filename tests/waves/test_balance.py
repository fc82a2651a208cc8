"""Tasks are dealt to shards by what they have to do; nothing else depends on where they run."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waves.driving import SPREAD, Driven, Record, forget_all, seen
from tests.waves.test_shape import topology
from waterspout.testing import FeederSpout
from waterspout.topology import TopologyBuilder
from waterspout.topology._grouping import stable_hash
from waterspout.waves import balance
from waterspout.waves.balance import Balance
from waterspout.waves.counting import InputCounts, TaskCounts
from waterspout.waves.shape import WaveShape, spread


@pytest.fixture(autouse=True)
def _nothing_seen():
    forget_all()


def learned(loads: dict[int, int]) -> Balance:
    found = Balance()
    found.learn(
        TaskCounts("b", task, inputs={("a", "default"): InputCounts(executed=n)})
        for task, n in loads.items()
    )
    return found


def two_stages(tasks: int, workers: int) -> WaveShape:
    made = topology(("a", workers, [("shuffle", "s")]), ("b", tasks, [("fields", "a")]))
    return spread(made, workers)


def load_of_shards(shape: WaveShape, loads: dict[int, int]) -> Counter[int]:
    found: Counter[int] = Counter()
    for task, n in loads.items():
        found[shape.slots[task].shard] += n
    return found


def test_the_busiest_task_stands_beside_the_one_with_least_to_do():
    shape = two_stages(4, 2)
    tasks = shape.topology.tasks["b"]
    loads = dict(zip(tasks, (60_000, 100_000, 70_000, 170_000), strict=True))

    better = learned(loads).improved(shape)

    assert better is not None
    assert load_of_shards(shape, loads).most_common(1) == [(1, 270_000)]
    assert sorted(load_of_shards(better, loads).values()) == [170_000, 230_000]
    assert (better.stages, better.widths) == (shape.stages, shape.widths)


@pytest.mark.parametrize(
    "loads",
    [
        pytest.param((49_000, 0, 900, 0), id="too early to say"),
        pytest.param((100_000, 100_000, 90_000, 95_000), id="hardly better"),
        pytest.param((900_000, 1, 1, 1), id="one task has it all"),
    ],
)
def test_tasks_stay_where_they_are_if_nothing_is_won(loads):
    shape = two_stages(4, 2)

    assert learned(dict(zip(shape.topology.tasks["b"], loads, strict=True))).improved(shape) is None


def test_it_is_looked_into_less_and_less_often():
    shape = two_stages(4, 2)
    tasks = shape.topology.tasks["b"]
    found = Balance()
    looks = []
    for number in range(40):
        counts = [
            TaskCounts("b", task, inputs={("a", "default"): InputCounts(executed=n)})
            for task, n in zip(tasks, (0, 20_000, 0, 30_000), strict=True)
        ]
        found.learn(counts)
        if found.improved(shape) is not None:
            looks.append(number)

    assert looks == [0, 2, 6, 14, 30]


def test_tasks_that_may_take_any_tuple_stay():
    made = topology(("a", 4, [("shuffle", "s")]))
    shape = spread(made, 2)
    loads = dict(zip(made.tasks["a"], (0, 100_000, 0, 100_000), strict=True))

    assert learned(loads).improved(shape) is None


@given(
    loads=st.lists(st.integers(0, 10**6), min_size=1, max_size=12),
    workers=st.integers(1, 5),
)
def test_each_shard_keeps_as_many_tasks_and_the_busiest_has_less_to_do(loads, workers):
    shape = two_stages(len(loads), workers)
    by_task = dict(zip(shape.topology.tasks["b"], loads, strict=True))
    better = learned(by_task).improved(shape)

    if better is None:
        return
    before, after = (
        Counter(each.slots[task].shard for task in by_task) for each in (shape, better)
    )
    assert sorted(before.values()) == sorted(after.values())
    assert set(after) == set(before)
    most = [max(load_of_shards(each, by_task).values()) for each in (shape, better)]
    assert most[1] < 0.9 * most[0]
    others = set(shape.slots) - set(by_task)
    assert all(better.slots[task] == shape.slots[task] for task in others)


@pytest.mark.parametrize("keep_alive", [True, False])
def test_a_running_topology_deals_its_tasks_anew_and_loses_nothing(keep_alive, monkeypatch):
    monkeypatch.setattr(balance, "_FIRST", 50)
    feeder = FeederSpout("n")
    builder = TopologyBuilder()
    builder.set_spout("source", feeder)
    builder.set_bolt("count", Record("out"), 4).fields_grouping("source", "n")
    driven = Driven(
        builder.create_topology("t"), wave_collapse_tuples=SPREAD, keep_alive=keep_alive
    )
    sent: Counter[int] = Counter()
    # Two frequent keys of the second and of the fourth task: these begin in one shard.
    frequent = [next(n for n in range(99) if stable_hash((n,)) % 4 == task) for task in (1, 3)]
    for number in range(20):
        for n in range(40):
            value = n if n < 10 else frequent[n % 2]
            sent[value] += 1
            feeder.feed([value], msg_id=(number, n))
        driven.until_idle()

    assert Counter(values[0] for _, values in seen("out")) == sent
    assert len({(task, values) for task, values in seen("out")}) == len(sent)
    assert set(feeder.tracker.acks.values()) == {1}
    assert driven.loop._shapes[1].places
