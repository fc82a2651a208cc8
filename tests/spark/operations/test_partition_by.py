"""`partition_by`: tuples with equal fields on one partition."""

from __future__ import annotations

import math

import pytest

from tests.spark.operations.support import placed, ran_once, stream_of
from waterspout.trident import Count

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

ROWS = [(f"k{i % 7}" if i % 8 else None, i, [0.0, -0.0, math.nan, 1.5][i % 4]) for i in range(60)]


def build(look):
    topology, stream = stream_of("word string, n bigint, x double", ROWS)
    spread = stream.shuffle().parallelism_hint(2)
    by_word = spread.partition_by("word").parallelism_hint(3)
    look("content", by_word)
    look("unhinted", spread.partition_by("word"))
    look("empty", spread.filter("n", lambda n: n < 0).partition_by("word").parallelism_hint(3))
    if look.on_spark:
        look("example", by_word.group_by("word").partition_aggregate(Count(), out="count"))
        look("places", placed(by_word), "word", "at", "of")
        two = spread.partition_by(["word", "n"]).parallelism_hint(3)
        look("two fields", placed(two), "word", "n", "at")
        by_number = spread.partition_by("x").parallelism_hint(4)
        look("odd numbers", placed(by_number), "x", "at")
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    """Equal words are on one partition, so that counting each partition counts them all."""
    words = [word for word, _, _ in ROWS]
    expected = sorted(((word, words.count(word)) for word in set(words)), key=repr)

    assert ran["example"] == expected


def test_the_engine_without_spark_agrees(ran):
    assert {k: v for k, v in ran.differences.items() if k == "empty"} == {}
    assert list(map(repr, ran["content"])) == sorted(map(repr, ran.here["content"].rows))


def test_content_stays(ran):
    for name in ("content", "unhinted"):
        assert sorted(map(repr, ran[name])) == sorted(map(repr, ROWS)), name
    assert ran["empty"] == []


def test_each_key_is_on_one_partition_and_the_keys_on_several(ran):
    places = {}
    for word, at, of in ran["places"]:
        places.setdefault(word, set()).add((at, of))

    assert all(len(found) == 1 for found in places.values())
    assert {of for found in places.values() for _, of in found} == {3}
    assert len({at for found in places.values() for at, _ in found}) > 1


def test_two_fields_spread_further_than_one(ran):
    k1 = {at for word, _, at in ran["two fields"] if word == "k1"}

    assert len(k1) > 1


def test_zero_and_minus_zero_are_equal_and_so_are_nans(ran):
    at = {}
    for x, place in ran["odd numbers"]:
        at.setdefault("nan" if x != x else x + 0.0, set()).add(place)

    assert set(at) == {"nan", 0.0, 1.5}
    assert all(len(found) == 1 for found in at.values())
