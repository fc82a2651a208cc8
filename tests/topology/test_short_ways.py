"""The short ways of a task's collector do what the collectors do that everybody can read."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterspout._tuples import Fields, Origin, Tuple
from waterspout.errors import AckError, EmitError
from waterspout.testing import FeederSpout
from waterspout.topology import BasicBolt, Bolt, Direct, Topology, TopologyBuilder
from waterspout.topology._collector import BasicCollector, OutputCollector, restoring
from waterspout.topology._ports import NONE_GIVEN, Port
from waterspout.topology._short_ways import bind
from waterspout.waves.outlets import make_outlets

GROUPINGS = ["shuffle", "one field", "several fields", "all", "two subscribers", "nobody"]
TUPLES = 4


class Emits(Bolt):
    def __init__(self, width: int) -> None:
        self.streams = {
            "default": [f"f{n}" for n in range(width)],
            "other": ["x"],
            "direct": Direct("x"),
        }

    def execute(self, tuple): ...


class Takes(BasicBolt):
    def execute(self, tuple, collector): ...


def topology(grouping: str, width: int) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("s", FeederSpout("n"))
    builder.set_bolt("a", Emits(width)).shuffle_grouping("s")
    taker = builder.set_bolt("b", Takes(), 3).shuffle_grouping("a", "other")
    taker.direct_grouping("a", "direct")
    match grouping:
        case "shuffle":
            taker.shuffle_grouping("a")
        case "one field":
            taker.fields_grouping("a", f"f{width - 1}")
        case "several fields":
            taker.fields_grouping("a", *[f"f{n}" for n in range(width)])
        case "all":
            taker.all_grouping("a")
        case "two subscribers":
            taker.fields_grouping("a", "f0")
            builder.set_bolt("c", Takes(), 2).shuffle_grouping("a")
    return builder.create_topology("t")


class Task:
    """A collector with a port, and what comes of calls; tuples are numbered."""

    def __init__(self, made: Topology, collector: Any, connect: Any) -> None:
        self._made, self.collector, self._connect = made, collector, connect
        self.task = made.tasks["a"][0]
        self.begin()

    def begin(self) -> None:
        """Begin a wave."""
        self.outlets = make_outlets(self._made, self.task, 1)
        done = bytearray(TUPLES)
        intake = SimpleNamespace(
            task=self.task,
            is_tracked=True,
            reasons={},
            roots_of=lambda each: (each._index + 1,),
        )
        origin = Origin("s", "default", 1, Fields("n"), intake, done)
        self.tuples = [Tuple((n,), origin, n) for n in range(TUPLES)]
        self.port = Port("a", self.outlets, task=self.task, done=done)
        self._connect(self.collector, self.port)

    def at_hand(self, number: int | None) -> None:
        self.port.given = NONE_GIVEN if number is None else self.tuples[number]
        self.port.current = -1 if number is None else number

    def call(self, method: str, *given: Any) -> Any:
        try:
            return getattr(self.collector, method)(*given)
        except (EmitError, AckError) as error:
            return str(error)

    def found(self) -> Any:
        sent = {
            stream: (
                outlet.take_counts(),
                {task: (box.rows, box.anchors) for task, box in outlet.boxes.items()},
            )
            for stream, outlet in self.outlets.items()
        }
        return sent, bytes(self.port.done), self.port.specials


def connect_plainly(collector: Any, port: Port) -> None:
    collector.port = port


def both(grouping: str, width: int, kind: Any) -> tuple[Task, Task]:
    made = topology(grouping, width)
    return (
        Task(made, kind(Port("a", {})), bind),
        Task(made, kind(Port("a", {})), connect_plainly),
    )


value = st.one_of(st.integers(0, 9), st.sampled_from(["a", "b", None, 2.5]), st.just([1]))
row = st.lists(value, max_size=3)
values_ = st.one_of(row, row, row.map(tuple), st.sampled_from(["text", 5, None, {"a": 1}]))
number = st.integers(0, TUPLES - 1)
anchors_ = st.one_of(st.just("at hand"), number, st.none(), st.lists(number, max_size=3))
streams_ = st.sampled_from(["default", "default", "other", "direct", "unknown"])
step = st.one_of(
    st.tuples(st.just("emit"), values_, anchors_, streams_),
    st.tuples(st.just("emit"), row, st.just("at hand"), st.just("default")),
    st.tuples(st.just("ack"), st.one_of(st.just("at hand"), number)),
    st.tuples(st.just("fail"), number),
    st.tuples(st.just("next"), st.one_of(number, st.none())),
    st.tuples(st.just("wave")),
)


def resolved(task: Task, anchors: Any) -> Any:
    if anchors == "at hand":
        return None if task.port.given is NONE_GIVEN else task.port.given
    if isinstance(anchors, list):
        return [task.tuples[n] for n in anchors]
    return None if anchors is None else task.tuples[anchors]


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("width", [1, 2])
@given(steps=st.lists(step, max_size=25))
def test_a_bolt_gets_there_by_either_way(grouping, width, steps):
    tasks = both(grouping, width, OutputCollector)
    for each in tasks:
        each.at_hand(0)
    for what, *given_ in steps:
        answers = []
        for task in tasks:
            if what == "emit":
                values, anchors, stream = given_
                answers.append(task.call("emit", values, resolved(task, anchors), stream))
            elif what == "wave":
                answers.append(task.found())
                task.port.given = NONE_GIVEN
                task.begin()
                task.at_hand(1)
            elif what == "next":
                task.at_hand(given_[0])
            else:
                answers.append(task.call(what, resolved(task, given_[0])))
        assert answers[1:] == answers[:-1]

    assert tasks[0].found() == tasks[1].found()


@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("width", [1, 2])
@given(
    steps=st.lists(
        st.one_of(st.tuples(values_, streams_), st.tuples(row, st.just("default")), number),
        max_size=25,
    )
)
def test_a_basic_bolt_gets_there_by_either_way(grouping, width, steps):
    tasks = both(grouping, width, BasicCollector)
    for each in tasks:
        each.at_hand(0)
    for what in steps:
        answers = []
        for task in tasks:
            if isinstance(what, int):
                task.at_hand(what)
            else:
                answers.append(task.call("emit", *what))
        assert answers[1:] == answers[:-1]

    assert tasks[0].found() == tasks[1].found()


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_an_emit_that_a_bolt_has_kept_goes_into_the_wave_that_runs(grouping):
    task = Task(topology(grouping, 1), OutputCollector(Port("a", {})), bind)
    emit, ack = task.collector.emit, task.collector.ack
    first = task.outlets["default"]
    task.at_hand(0)
    emit([1], task.port.given)
    task.port.given = NONE_GIVEN
    task.begin()
    task.at_hand(2)

    emit([2], task.port.given)
    ack(task.port.given)

    assert first.take_counts()[0] == task.outlets["default"].take_counts()[0] == 1
    assert bytes(task.port.done) == bytes([0, 0, 1, 0])


def test_the_collector_stays_what_it_is_and_does_not_travel():
    task = Task(topology("one field", 1), OutputCollector(Port("a", {})), bind)
    other = OutputCollector(Port("a", {}))

    assert isinstance(task.collector, OutputCollector)
    assert type(task.collector).__name__ == "OutputCollector"
    with restoring(other):
        assert pickle.loads(pickle.dumps(task.collector)) is other


def test_a_second_ack_is_refused_by_the_short_way_too():
    task = Task(topology("shuffle", 1), OutputCollector(Port("a", {})), bind)
    task.at_hand(1)
    task.collector.ack(task.tuples[1])

    with pytest.raises(AckError, match="was acked or failed already"):
        task.collector.ack(task.tuples[1])


def test_between_two_waves_nothing_goes_the_short_way():
    task = Task(topology("shuffle", 1), OutputCollector(Port("a", {})), bind)
    task.at_hand(1)
    kept = task.port.given
    task.port.given = NONE_GIVEN
    task.collector.port = other = Port("a", make_outlets(topology("shuffle", 1), task.task, 1))
    task.collector.emit([5])

    assert kept is task.tuples[1]
    assert task.outlets["default"].take_counts() == (0, 0)
    assert other.outlets["default"].take_counts() == (1, 1)
