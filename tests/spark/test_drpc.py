"""DRPC on Spark: the word count asked in the driver and by jobs, while it runs."""

from __future__ import annotations

import time

import pytest

from tests.soaking import soaked
from tests.trident.test_drpc import BothSides
from tests.trident.test_word_count import SENTENCES
from waterspout import Config, submit
from waterspout.drpc._calls import DrpcErrorKind, DrpcRequest
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Count, FilterNull, MapGet, Split, Sum, TridentTopology, expr

pytestmark = pytest.mark.spark


def shout(word):
    if word == "bad":
        raise ValueError("a bad word")
    return word


def asked(topology, counts, name):
    return (
        topology.new_drpc_stream(name)
        .each("args", Split(), "raw")
        .each("raw", shout, "word string")
        .state_query(counts, "word", MapGet(), "count")
        .each("count", FilterNull())
    )


def whole(tmp_path):
    topology = TridentTopology("drpc")
    counts = (
        topology.new_stream("spout1", FixedBatchSpout("sentence", 3, SENTENCES))
        .each("sentence", Split(), out="word")
        .group_by("word")
        .persistent_aggregate(
            SQLiteState.opaque(tmp_path / "counts.db", table="counts"), Count(), out="count"
        )
    )
    asked(topology, counts, "here").aggregate("count", Sum(), "sum")
    # An expression takes the rows to Spark, and an aggregate in Spark must give 0 for nothing.
    expression = asked(topology, counts, "there").each("count", expr("count * 1"), "n bigint")
    expression.aggregate("n", Sum(), "sum")
    # A function of DataFrames aggregates: it is called for each request by itself.
    asked(topology, counts, "each").transform(
        lambda df: df.groupBy().sum("count").toDF("sum"), out="sum bigint"
    )
    words = topology.new_drpc_stream("both").each("args", Split(), "word").project("word")
    doubled = words.each("word", expr("concat(word, word)"), "twice string").project("twice")
    topology.multi_reduce([words, doubled], BothSides(), "all string")
    return topology


@pytest.fixture(scope="module")
def run(spark, tmp_path_factory):
    # One run for all tests here: it begins before the home of a single test is there.
    folder = tmp_path_factory.mktemp("drpc")
    run = submit(whole(folder), spark, Config(home=str(folder / "home")))
    run.process_all_available(timeout=120)
    yield run
    run.stop()


def ask(run, function, *args):
    requests = [DrpcRequest(str(i), text, min_txid=2) for i, text in enumerate(args)]
    return run._functions[function].answer(requests)


@pytest.mark.parametrize("function", ["here", "there"])
def test_both_ways_have_the_answers_of_storms_tutorial(run, function):
    answers = ask(run, function, "cat dog the man", "the to be", "nobody said this", "")

    assert [(answer.tuples, answer.txid) for answer in answers] == [
        ([[6]], 2),
        ([[10]], 2),
        ([[0]], 2),
        ([[0]], 2),
    ]


def test_a_function_of_dataframes_sees_one_request(run):
    answers = ask(run, "each", "the man", "to")

    assert [answer.tuples for answer in answers] == [[[6]], [[3]]]


@pytest.mark.soak
def test_reducers_see_one_request_and_give_something_for_nothing(run):
    answers = ask(run, "both", "a", "")

    assert [answer.tuples for answer in answers] == [[["a|aa"]], [["|"]]]


@pytest.mark.parametrize("function", ["here", soaked("there")])
def test_a_function_that_raises_harms_its_own_request_only(run, function):
    good, bad = ask(run, function, "the", "bad")

    assert good.tuples == [[5]]
    assert bad.error.kind is DrpcErrorKind.FAILED
    assert "ValueError: a bad word" in bad.error.message
    assert "waterspout operation" not in bad.error.message
    assert bad.error.operation.endswith("each(shout)")


def test_a_job_that_takes_too_long_is_a_timeout(run):
    request = DrpcRequest("1", "the", deadline=time.monotonic() + 0.001)

    (answer,) = run._functions["there"].answer([request])

    assert answer.error.kind is DrpcErrorKind.TIMED_OUT


def test_explain_of_a_run_says_both_ways(run):
    lines = [line for line in run.explain().splitlines() if line.startswith("drpc ")]

    assert lines[0] == "drpc here (in the driver, without a Spark job)"
    assert lines[1] == (
        "drpc there (one Spark job for all requests that wait, because 16 each(count * 1) is a "
        "Spark expression)"
    )
