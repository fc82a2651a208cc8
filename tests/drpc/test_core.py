"""Requests through a core topology: each is answered once, or told why not."""

from __future__ import annotations

from typing import Any

import pytest

from waterspout import BasicBolt, Bolt, Config, TopologyBuilder
from waterspout.drpc._calls import DrpcAnswer, DrpcErrorKind
from waterspout.drpc._service import DrpcService
from waterspout.drpc._spout import DRPCSpout, ReturnResults
from waterspout.errors import ConfigError, FailedException, TopologyError
from waterspout.testing import LocalWaves
from waterspout.topology import Topology


class Shout(BasicBolt):
    """The argument in capitals; some arguments misbehave."""

    output_fields = ("result", "return_info")

    def execute(self, tuple, collector):
        args, info = tuple.values
        match args:
            case "raise":
                raise ValueError("no such word")
            case "fail":
                raise FailedException("not today")
            case "nothing":
                return
            case "twice":
                collector.emit(["first", info])
                collector.emit(["second", info])
            case "odd":
                collector.emit([{"a": (1, b"hi", float("nan"))}, info])
            case _:
                collector.emit([args.upper(), info])


class Hold(Bolt):
    """Keeps every tuple, and acks none."""

    output_fields = ("result", "return_info")

    def execute(self, tuple):
        self.kept = tuple


def shouting(bolt: Any = None, spouts: int = 1, bolts: int = 1) -> tuple[Topology, DRPCSpout]:
    builder, spout = TopologyBuilder(), DRPCSpout("shout")
    builder.set_spout("requests", spout, spouts)
    builder.set_bolt("shout", bolt or Shout(), bolts).shuffle_grouping("requests")
    builder.set_bolt("return", ReturnResults(), bolts).shuffle_grouping("shout")
    return builder.create_topology("shouting"), spout


class Asked:
    """A topology driven by hand, and what its callers were told."""

    def __init__(self, topology: Topology, spout: DRPCSpout, **options: Any) -> None:
        self.conf = Config(**options)
        self.service = DrpcService(self.conf)
        spout.connect(self.service.open_line(spout.function))
        self.run = LocalWaves(topology, self.conf)
        self.told: list[DrpcAnswer] = []

    def ask(self, *args: str) -> list[Any]:
        asked = [self.service.call("shout", each, self.told.extend) for each in args]
        self.run.finish()
        found = {answer.id: answer for answer in self.told}
        assert len(found) == len(self.told), "somebody was told twice"
        return [said(found[id]) for id in asked]


def said(answer: DrpcAnswer) -> Any:
    if answer.error is None:
        return answer.tuples
    return answer.error.kind, answer.error.operation, answer.error.message


@pytest.fixture
def asked():
    runs: list[Asked] = []

    def start(*args: Any, **options: Any) -> Asked:
        runs.append(Asked(*shouting(*args), **options))
        return runs[-1]

    yield start
    for each in runs:
        each.run.close()


def test_a_result_returns_to_who_asked(asked):
    assert asked().ask("cat", "dog") == [[["CAT"]], [["DOG"]]]


@pytest.mark.parametrize("tuples", [0, 1_000_000], ids=["spread", "collapsed"])
def test_results_return_to_the_task_that_has_asked_wherever_bolts_run(asked, tuples):
    words = [f"w{number}" for number in range(50)]
    run = asked(None, 3, 4, wave_collapse_tuples=tuples)

    assert run.ask(*words) == [[[word.upper()]] for word in words]
    assert run.service.functions()[0]["working"] == 0


def test_a_request_that_fails_is_told_where_and_why_and_is_no_dead_letter(asked):
    run = asked()

    assert run.ask("raise", "cat", "fail") == [
        (DrpcErrorKind.FAILED, "shout", "ValueError: no such word"),
        [["CAT"]],
        (DrpcErrorKind.FAILED, "shout", "FailedException: not today"),
    ]
    assert run.run.letters == []
    assert run.run.emitted("requests") == [
        *(("raise", '{"id": "1", "task": 1}'), ("cat", '{"id": "2", "task": 1}')),
        ("fail", '{"id": "3", "task": 1}'),
    ]  # each once: none was replayed


def test_the_first_of_two_results_counts(asked):
    assert asked().ask("twice", "cat") == [[["first"]], [["CAT"]]]


def test_a_request_that_is_acked_without_a_result_is_told_so(asked):
    run = asked()

    assert run.ask("nothing") == [
        (
            DrpcErrorKind.FAILED,
            None,
            "all tuples of the request were acked, but no result was returned; emit one to "
            "ReturnResults, anchored",
        )
    ]
    assert run.service.functions()[0]["working"] == 0


def test_a_result_is_in_the_words_of_json(asked):
    assert asked().ask("odd") == [[[{"a": [1, "aGk=", "NaN"]}]]]


def test_a_tree_that_times_out_is_told_so(asked):
    run = asked(Hold())

    assert run.ask("cat") == [
        (DrpcErrorKind.TIMED_OUT, None, "the topology was not done with it in time")
    ]


def test_a_run_that_ends_tells_those_on_the_way(asked):
    run = asked()
    run.service.call("shout", "cat", run.told.extend)
    run.run.loop.spouts.ask(10)  # emitted, and in no wave yet

    run.run.close()

    assert [said(answer) for answer in run.told] == [
        (DrpcErrorKind.SHUTDOWN, None, "the spout of 'shout' was closed")
    ]


def test_a_spout_that_nobody_serves_has_nothing():
    topology, _ = shouting()

    run = LocalWaves(topology)
    run.finish()
    run.close()

    assert run.emitted("requests") == []


def test_requests_without_a_bolt_that_returns_results_are_refused_when_built():
    builder = TopologyBuilder()
    builder.set_spout("requests", DRPCSpout("shout"))
    builder.set_bolt("shout", Shout()).shuffle_grouping("requests")

    with pytest.raises(TopologyError) as refused:
        builder.create_topology("shouting")

    assert str(refused.value) == (
        "spout 'requests' takes requests for 'shout', but no bolt returns results; add one: "
        "set_bolt(id, ReturnResults())"
    )


def test_results_without_a_spout_that_has_asked_are_refused_when_built():
    from waterspout.testing import FeederSpout

    builder = TopologyBuilder()
    builder.set_spout("words", FeederSpout(["args", "return_info"]))
    builder.set_bolt("return", ReturnResults()).shuffle_grouping("words")

    with pytest.raises(TopologyError) as refused:
        builder.create_topology("shouting")

    assert str(refused.value) == (
        "bolt 'return' returns results, but there is no spout whose requests they answer; add "
        "one: set_spout(id, DRPCSpout(function))"
    )


def test_results_of_other_than_two_fields_are_refused_when_built():
    class Wide(Shout):
        output_fields = ("result", "more", "return_info")

    with pytest.raises(TopologyError) as refused:
        shouting(Wide())

    assert str(refused.value) == (
        "bolt 'return' returns results: it takes tuples of two fields, the result and the return "
        "info, but 'shout' emits (result, more, return_info)"
    )


def test_a_run_without_ackers_is_refused():
    topology, _ = shouting()

    with pytest.raises(ConfigError, match="needs an acker"):
        LocalWaves(topology, Config(ackers=0))


def test_a_function_has_a_name_that_fits_a_path():
    with pytest.raises(TopologyError):
        DRPCSpout("a/b")
