"""Which operations keep the number of rows: said only where it is sure."""

from __future__ import annotations

import pytest

from waterspout.testing import FixedBatchSpout
from waterspout.trident import Count, Filter, MapFunction, Split, TridentTopology, expr
from waterspout.trident.plan.row_counts import keeps_count


class Upper(MapFunction):
    def execute(self, tuple):
        return [tuple[0].upper()]


class Long(Filter):
    def is_keep(self, tuple):
        return len(tuple[0]) > 3


def length(text: str) -> int:
    return len(text)


def letters(text: str):
    yield from text


FORMS = {
    "a function that returns": (lambda s: s.each("text", length, "n int"), True),
    "one that yields": (lambda s: s.each("text", letters, "letter string"), False),
    "one that may be without a result": (lambda s: s.each("text", Split(), "word"), False),
    "an expression": (lambda s: s.each([], expr("length(text)"), "n int"), True),
    "an expression that gives many": (
        lambda s: s.each([], expr("explode(split(text, ' '))"), "word string"), False,
    ),
    "a map": (lambda s: s.map(Upper(), "text string"), True),
    "a map of rows that may be put aside": (
        lambda s: s.each("text", length, "n int", on_error="dead_letter"), False,
    ),
    "a flat map": (lambda s: s.flat_map(letters, "letter string"), False),
    "a filter": (lambda s: s.filter("text", Long()), False),
    "a filter that is an expression": (lambda s: s.filter(expr("length(text) > 3")), False),
    "a projection": (lambda s: s.project("text"), True),
    "a look": (lambda s: s.peek(print), True),
    "a shuffle": (lambda s: s.shuffle(), True),
    "a broadcast": (lambda s: s.broadcast(), False),
    "a count": (lambda s: s.aggregate(Count(), "n"), False),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_that_an_operation_keeps_the_number_of_rows_is_said_only_where_it_is_sure(name):
    form, keeps = FORMS[name]
    topology = TridentTopology("kept")
    stream = topology.new_stream("in", FixedBatchSpout("text string", 2, [["a"]]))

    assert keeps_count(form(stream).node) is keeps
