"""DRPC streams in this process: what each operation gives, and that no request sees another."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trident.test_word_count import SENTENCES
from waterspout.drpc._calls import DrpcErrorKind, DrpcRequest
from waterspout.errors import UserCodeError
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout, LocalRun, run_in_process
from waterspout.trident import (
    Aggregator,
    Count,
    FilterNull,
    Function,
    GroupedMultiReducer,
    MapGet,
    MultiReducer,
    Split,
    Sum,
    TridentTopology,
    arrow_function,
)


def word_count(words=SENTENCES):
    topology = TridentTopology("wordcount")
    counts = (
        topology.new_stream("spout1", FixedBatchSpout("sentence", 3, words))
        .each("sentence", Split(), out="word")
        .group_by("word")
        .persistent_aggregate(MemoryMapState(), Count(), out="count")
        .parallelism_hint(6)
    )
    (
        topology.new_drpc_stream("words")
        .each("args", Split(), "word")
        .group_by("word")
        .state_query(counts, "word", MapGet(), "count")
        .each("count", FilterNull())
        .aggregate("count", Sum(), "sum")
    )
    return topology


def run_of(build):
    """Return a run of a topology with nothing but a DRPC stream, whose operations `build` adds."""
    topology = TridentTopology("asked")
    build(topology, topology.new_drpc_stream("f"))
    return LocalRun(topology)


def test_the_query_of_storms_tutorial_has_its_answers():
    run = run_in_process(word_count())

    assert run.execute("words", "cat dog the man") == [[6]]
    assert run.execute("words", "the to be") == [[10]]
    assert run.execute("words", "nobody said this") == [[0]]
    assert run.execute("words", "") == [[0]]


def test_an_answer_says_which_batch_it_saw():
    run = LocalRun(word_count())
    ask = run.functions["words"].answer
    before = ask([DrpcRequest("a", "the")])[0]
    run.finish()

    after = ask([DrpcRequest("b", "the", min_txid=2)])[0]

    assert (before.tuples, before.txid) == ([[0]], 0)
    assert (after.tuples, after.txid) == ([[5]], 2)


def test_a_batch_that_does_not_come_in_time_is_an_error_and_says_what_there_is():
    run = run_in_process(word_count())

    with pytest.raises(UserCodeError, match="batch 9 was not committed in time; the last one is 2"):
        run.execute("words", "the", min_txid=9)


def test_a_topology_may_have_only_drpc_streams_and_then_there_is_no_txid():
    run = run_of(lambda topology, stream: stream.map(lambda args: args + "!", out="said string"))
    run.finish()

    (answer,) = run.functions["f"].answer([DrpcRequest("1", "hello")])

    assert (answer.tuples, answer.txid) == ([["hello!"]], None)


class Sizes(Aggregator):
    """Emits how many tuples there were, and once more for none."""

    def init(self, batch_id, collector):
        return [0]

    def aggregate(self, value, tuple, collector):
        value[0] += 1

    def complete(self, value, collector):
        collector.emit((value[0],))

    def output_types(self, inputs):
        return ("bigint",)


class BothSides(MultiReducer):
    def init(self, collector):
        return [[], []]

    def execute(self, value, stream_index, tuple, collector):
        value[stream_index].append(tuple[0])

    def complete(self, value, collector):
        collector.emit(("|".join(" ".join(side) for side in value),))


class ByGroup(GroupedMultiReducer):
    def init(self, collector, group):
        return [0, 0]

    def execute(self, value, stream_index, group, tuple, collector):
        assert len(group) == 1  # the request is not shown
        value[stream_index] += 1

    def complete(self, value, group, collector):
        collector.emit((f"{group[0]} {value[0]} {value[1]}",))


class Explode(Function):
    """Emits each word; one word it does not like."""

    def execute(self, tuple, collector):
        for word in tuple[0].split():
            if word == "bad":
                raise ValueError("a bad word")
            collector.emit((word,))


@arrow_function
def shouted(batch):
    return pa.array([f"{value}!" for value in batch.column(0).to_pylist()])


def words_of(stream):
    return stream.each("args", Split(), "word").project("word")


def lengths(stream):
    return words_of(stream).each("word", len, "n bigint")


TABLE = pa.table({"word": ["a", "b"], "weight": [10, 20]})

# What a stream does, and the answer for "b a b".
OPERATIONS = {
    "each": (lambda t, s: s.each("args", Split(), "word"), [["b a b", w] for w in "bab"]),
    "filter": (lambda t, s: words_of(s).filter(lambda word: word > "a"), [["b"], ["b"]]),
    "map": (lambda t, s: words_of(s).map(str.upper, out="up string"), [["B"], ["A"], ["B"]]),
    "flat_map": (
        lambda t, s: s.flat_map(lambda args: args.split(), out="word string"),
        [["b"], ["a"], ["b"]],
    ),
    "map, then each": (
        lambda t, s: words_of(s).map(str.upper, out="up string").each("up", len, "n bigint"),
        [["B", 1], ["A", 1], ["B", 1]],
    ),
    "arrow function": (
        lambda t, s: words_of(s).each("word", shouted, "loud string"),
        [["b", "b!"], ["a", "a!"], ["b", "b!"]],
    ),
    "group_by": (
        lambda t, s: words_of(s).group_by("word").aggregate(Count(), "n"),
        [["b", 2], ["a", 1]],
    ),
    "aggregate": (lambda t, s: words_of(s).aggregate(Count(), "n"), [[3]]),
    "an aggregator": (lambda t, s: words_of(s).aggregate(Sizes(), "n"), [[3]]),
    "partition_aggregate": (lambda t, s: words_of(s).partition_aggregate(Count(), "n"), [[3]]),
    "chained_agg": (
        lambda t, s: (
            lengths(s)
            .chained_agg()
            .aggregate(Count(), "n2")
            .aggregate("n", Sum(), "sum")
            .chain_end()
        ),
        [[3, 3]],
    ),
    "min_by": (lambda t, s: words_of(s).min_by("word"), [["a"]]),
    "max_by": (lambda t, s: words_of(s).max_by("word"), [["b"]]),
    "two aggregates": (
        lambda t, s: (
            words_of(s).group_by("word").aggregate(Count(), "n").aggregate("n", Sum(), "sum")
        ),
        [[3]],
    ),
    "merge": (
        lambda t, s: t.merge(words_of(s), s.map(str.upper, out="word string")).aggregate(
            Count(), "n"
        ),
        [[4]],
    ),
    "join": (
        lambda t, s: t.join(
            words_of(s).group_by("word").aggregate(Count(), "n"), "word",
            words_of(s).filter(lambda word: word == "a"), "word", out="word, n", how="left",
        ),
        [["b", 2], ["a", 1]],
    ),
    "join, all fields": (
        lambda t, s: t.join(
            words_of(s).group_by("word").aggregate(Count(), "n"), "word",
            words_of(s).filter(lambda word: word == "a"), "word",
            out="word, n, other", how="outer", mode="preserve",
        ),
        [["b", 2, None], ["a", 1, "a"]],
    ),
    "join_static": (
        lambda t, s: words_of(s).join_static(TABLE, on="word").aggregate("weight", Sum(), "sum"),
        [[50]],
    ),
    "multi_reduce": (
        lambda t, s: t.multi_reduce([words_of(s), words_of(s)], BothSides(), "all string"),
        [["b a b|b a b"]],
    ),
    "multi_reduce by groups": (
        lambda t, s: t.multi_reduce(
            [words_of(s).group_by("word"), words_of(s).group_by("word")], ByGroup(), "all string"
        ),
        [["b", "b 2 2"], ["a", "a 1 1"]],
    ),
    "repartitionings": (
        lambda t, s: (
            words_of(s).shuffle().partition_by("word").global_().broadcast().local_or_shuffle()
        ),
        [["b"], ["a"], ["b"]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_answers_as_in_a_batch_of_one_request(name):
    build, expected = OPERATIONS[name]

    assert run_of(build).execute("f", "b a b") == expected


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_request_sees_the_rows_of_another(name):
    run = run_of(OPERATIONS[name][0])
    args = ["b a b", "", "a", "b a b", "c"]

    together = run.functions["f"].answer([DrpcRequest(str(i), a) for i, a in enumerate(args)])

    assert [answer.id for answer in together] == ["0", "1", "2", "3", "4"]
    assert [list(answer.tuples) for answer in together] == [run.execute("f", a) for a in args]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text("ab ", max_size=6), min_size=1, max_size=6))
def test_requests_together_are_what_each_is_alone(args):
    build = OPERATIONS["two aggregates"][0]
    run = run_of(build)

    together = run.functions["f"].answer([DrpcRequest(str(i), a) for i, a in enumerate(args)])

    assert [answer.tuples for answer in together] == [[[len(a.split())]] for a in args]


def test_an_operation_that_raises_harms_its_own_request_only():
    run = run_of(lambda t, s: s.each("args", Explode(), "word string").aggregate(Count(), "n"))

    answers = run.functions["f"].answer(
        [DrpcRequest("1", "a b"), DrpcRequest("2", "a bad b"), DrpcRequest("3", "a")]
    )

    assert [answer.tuples for answer in answers] == [[[2]], None, [[1]]]
    error = answers[1].error
    assert (error.kind, error.operation) == (DrpcErrorKind.FAILED, "each(Explode)")
    assert error.message.startswith("ValueError: a bad word")


def test_a_timeout_of_the_users_own_harms_its_own_request_only():
    def slow(args):
        if args == "far":
            raise TimeoutError("their server does not answer")
        return args

    run = run_of(lambda t, s: s.map(slow, out="said string"))

    near, far = run.functions["f"].answer([DrpcRequest("1", "near"), DrpcRequest("2", "far")])

    assert near.tuples == [["near"]]
    assert (far.error.kind, far.error.operation) == (DrpcErrorKind.FAILED, "map(slow)")


def test_functions_that_share_an_operation_take_turns_and_others_do_not():
    topology, shared = TridentTopology("shared"), Explode()
    for name in ("f", "g"):
        topology.new_drpc_stream(name).each("args", shared, "word string")
    topology.new_drpc_stream("h").each("args", Explode(), "word string")
    functions = LocalRun(topology).functions

    assert functions["f"].lock is functions["g"].lock
    assert functions["h"].lock is not functions["f"].lock
    assert isinstance(functions["h"].lock, type(threading.Lock()))
