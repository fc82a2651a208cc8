"""A function as a chain of bolts: a request is done when all its tuples are, wherever they ran."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drpc.reach import (
    EXPECTED,
    CountAggregator,
    GetFollowers,
    GetTweeters,
    PartialUniquer,
)
from tests.drpc.test_core import said
from waterspout import BasicBolt, Bolt, Config
from waterspout.drpc._calls import DrpcErrorKind
from waterspout.drpc._linear import LinearDRPCTopologyBuilder
from waterspout.drpc._service import DrpcService
from waterspout.errors import TopologyError
from waterspout.testing import LocalWaves
from waterspout.topology import Topology
from waterspout.transactional import BatchBolt


def reach(*parallelism: int) -> Topology:
    """The chain of Storm's example, with so many tasks of each bolt."""
    one, two, three, four = parallelism
    builder = LinearDRPCTopologyBuilder("reach")
    builder.add_bolt(GetTweeters(), one)
    builder.add_bolt(GetFollowers(), two).shuffle_grouping()
    builder.add_bolt(PartialUniquer(), three).fields_grouping("id", "follower")
    builder.add_bolt(CountAggregator(), four).fields_grouping("id")
    return builder.create_topology()


def asked(topology: Topology, *args: str, keep_alive: bool = True, **options: Any) -> list[Any]:
    """Ask all at once, and return what each was told."""
    conf = Config(**options)
    service = DrpcService(conf)
    (spout,) = topology.spouts
    function = spout.component.function
    spout.component.connect(service.open_line(function))
    run = LocalWaves(topology, conf, keep_alive=keep_alive)
    told: list[Any] = []
    ids = [service.call(function, each, told.extend) for each in args]
    run.finish()
    run.close()
    found = {answer.id: said(answer) for answer in told}
    assert len(found) == len(told), "somebody was told twice"
    assert service.functions()[0]["working"] == 0
    return [found[id] for id in ids]


@pytest.mark.parametrize("parallelism", [(1, 1, 1, 1), (2, 3, 4, 2)])
@pytest.mark.parametrize("collapse", [0, 2000], ids=["spread", "collapsed"])
def test_the_reach_of_storms_pages(parallelism, collapse):
    told = asked(reach(*parallelism), *EXPECTED, wave_collapse_tuples=collapse)

    assert told == [[[people]] for people in EXPECTED.values()]


def test_requests_go_on_over_many_waves_and_lost_workers():
    """Nothing is reached in time but the first tuple of a task, and no bolt stays alive."""
    told = asked(
        reach(1, 2, 3, 1),
        *EXPECTED,
        keep_alive=False,
        wave_budget_secs=1e-9,
        wave_collapse_tuples=0,
        message_timeout_secs=10_000,
    )

    assert told == [[[people]] for people in EXPECTED.values()]


class Spread(BasicBolt):
    """As many tuples as the argument says."""

    output_fields = ("id", "number")

    def execute(self, tuple, collector):
        for number in range(int(tuple[1])):
            collector.emit([tuple[0], number])


class Total(BatchBolt):
    """Their sum."""

    output_fields = ("id", "total")

    def prepare(self, conf, context, collector, id):
        self.collector, self.id, self.total = collector, id, 0

    def execute(self, tuple):
        self.total += tuple[1]

    def finish_batch(self):
        self.collector.emit([self.id, self.total])


@settings(max_examples=settings().max_examples // 2)
@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    tasks=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    grouping=st.sampled_from(["shuffle", "fields", "all", "global", "none"]),
    collapse=st.sampled_from([0, 2000]),
)
def test_every_request_has_its_own_total_however_its_tuples_are_dealt_out(
    counts, tasks, grouping, collapse
):
    builder = LinearDRPCTopologyBuilder("total")
    builder.add_bolt(Spread(), tasks[0])
    middle = builder.add_bolt(Total(), tasks[1])
    fields = ["number"] if grouping == "fields" else []
    getattr(middle, f"{grouping}_grouping")(*fields)
    builder.add_bolt(Total()).global_grouping()

    told = asked(builder.create_topology(), *map(str, counts), wave_collapse_tuples=collapse)

    copies = tasks[1] if grouping == "all" else 1
    assert told == [[[copies * sum(range(count))]] for count in counts]


class Odd(BasicBolt):
    """Does what the argument says."""

    output_fields = ("id", "result")

    def execute(self, tuple, collector):
        id, what = tuple.values
        match what:
            case "raise":
                raise ValueError("no")
            case "other id":
                collector.emit(["another", 1])
            case "none":
                return
            case "two":
                collector.emit([id, 1])
                collector.emit([id, 2])
            case _:
                collector.emit([id, what])


@pytest.mark.parametrize(
    ("what", "where", "why"),
    [
        ("raise", "bolt0", "ValueError: no"),
        (
            "other id",
            "bolt0",
            "EmitError: 'bolt0' emitted 'another' as the first value; it must be the id of the "
            "request, '1': the first field of its input",
        ),
        (
            "none",
            "join-result",
            "FailedException: bolt 'bolt0' emitted no result for the request; it must emit one",
        ),
        (
            "two",
            "join-result",
            "FailedException: bolt 'bolt0' emitted 2 results for the request; it must emit one",
        ),
    ],
)
def test_a_request_that_goes_wrong_is_told_why_and_harms_no_other(what, where, why):
    builder = LinearDRPCTopologyBuilder("odd")
    builder.add_bolt(Odd(), 2)

    told = asked(builder.create_topology(), what, "fine")

    assert told == [(DrpcErrorKind.FAILED, where, why), [["fine"]]]


class Remembers(BasicBolt):
    """Has a connection that cannot travel, made by `prepare`, and a count that can."""

    output_fields = ("id", "count")
    transient = ("connection",)

    def prepare(self, conf, context):
        self.connection = (each for each in "abc")
        self.count = 0

    def execute(self, tuple, collector):
        next(self.connection)
        self.count += 1
        collector.emit([tuple[0], self.count])


@pytest.mark.parametrize("keep_alive", [True, False])
def test_what_a_bolt_remembers_goes_on_without_its_connection(keep_alive):
    builder = LinearDRPCTopologyBuilder("count")
    builder.add_bolt(Remembers())
    topology = builder.create_topology()
    conf = Config()
    service = DrpcService(conf)
    topology.spouts[0].component.connect(service.open_line("count"))
    run = LocalWaves(topology, conf, keep_alive=keep_alive)
    told: list[Any] = []

    for _ in range(3):
        service.call("count", "", told.extend)
        run.finish()
    run.close()

    assert [said(answer) for answer in told] == [[[1]], [[2]], [[3]]]


def test_a_request_that_has_failed_elsewhere_is_forgotten():
    class OneFails(BasicBolt):
        output_fields = ("id", "number")

        def execute(self, tuple, collector):
            if tuple[1] == 1:
                raise ValueError("no")
            collector.emit(tuple.values)

    builder = LinearDRPCTopologyBuilder("total")
    builder.add_bolt(Spread())
    builder.add_bolt(OneFails(), 2).shuffle_grouping()
    builder.add_bolt(Total()).global_grouping()

    told = asked(builder.create_topology(), "3", "1")

    assert told == [(DrpcErrorKind.FAILED, "bolt1", "ValueError: no"), [[0]]]


class Rich(Bolt):
    """A bolt that acks by itself."""

    def execute(self, tuple):
        pass


class Three(BasicBolt):
    """Emits too much for a last bolt."""

    output_fields = ("id", "result", "more")

    def execute(self, tuple, collector):
        pass


class Two(Three):
    """Emits on two streams."""

    output_fields = None
    streams = {"default": ("id", "result"), "more": ("id", "result")}  # noqa: RUF012


def build(*bolts: Any) -> Topology:
    builder = LinearDRPCTopologyBuilder("odd")
    for bolt in bolts:
        builder.add_bolt(bolt)
    return builder.create_topology()


@pytest.mark.parametrize(
    ("bolts", "why"),
    [
        ([], "'odd' has no bolt: call add_bolt"),
        (
            [Three()],
            "the last bolt, 'bolt0' (Three), must emit one stream of two fields, the id of the "
            "request and the result; it declares default (id, result, more)",
        ),
        (
            [Two()],
            "the last bolt, 'bolt0' (Two), must emit one stream of two fields, the id of the "
            "request and the result; it declares default (id, result); more (id, result)",
        ),
        (
            [Rich()],
            "'bolt0' is a Rich; give an object of a class derived from BatchBolt or BasicBolt: "
            "nobody else can tell when a request is done",
        ),
        (
            [Odd(), Odd()],
            "'bolt1' takes nothing of 'bolt0'; add a grouping, such as .shuffle_grouping()",
        ),
    ],
    ids=["no bolt", "three fields", "two streams", "a rich bolt", "no grouping"],
)
def test_what_cannot_be_a_chain_is_refused_when_built(bolts, why):
    with pytest.raises(TopologyError, match=re.escape(why)):
        build(*bolts)


@pytest.mark.parametrize("fields", [["number"], ["id", "number"]])
def test_a_last_bolt_of_several_tasks_gets_a_request_on_one_of_them(fields):
    builder = LinearDRPCTopologyBuilder("total")
    builder.add_bolt(Spread())
    builder.add_bolt(Total(), 2).fields_grouping(*fields)

    with pytest.raises(TopologyError) as refused:
        builder.create_topology()

    assert str(refused.value) == (
        "the last bolt, 'bolt1', runs as 2 tasks, so all tuples of a request must come to one of "
        'them: group it by the id alone, .fields_grouping("id")'
    )


def test_a_request_without_any_tuple_has_a_result_of_one_task():
    builder = LinearDRPCTopologyBuilder("total")
    builder.add_bolt(Spread())
    builder.add_bolt(Total(), 3).fields_grouping("id")

    assert asked(builder.create_topology(), "0", "0", "3") == [[[0]], [[0]], [[3]]]
