"""Operations as plain functions and decorators: what each becomes, and what is refused."""

from __future__ import annotations

import functools
import operator
import pickle
from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from waterspout._schema import Schema
from waterspout._tuples import field_index
from waterspout.errors import TopologyError
from waterspout.topology import _pickling as pickling
from waterspout.trident import (
    Average,
    Consumer,
    Count,
    Equals,
    FilterNull,
    Function,
    MapGet,
    Negate,
    Split,
    TridentCollector,
    TridentTuple,
    aggregator,
    arrow_aggregator,
    arrow_function,
    combiner,
    expr,
    grouped_multi_reducer,
    multi_reducer,
    nondeterministic,
    pandas_aggregator,
    pandas_function,
    query,
    reducer,
    updater,
)
from waterspout.trident.operations.adapters import PlainFlatMap, PlainFunction
from waterspout.trident.operations.coercion import (
    as_aggregator,
    as_consumer,
    as_filter,
    as_flat_map,
    as_function,
    as_map,
    as_multi_reducer,
    as_query,
    as_updater,
    typed,
    usable,
)

WORD = field_index(["word", "n"])


def row(*values):
    return TridentTuple(values, WORD)


def rows_of(operation, tuples):
    """Run an aggregator over tuples."""
    collector = TridentCollector()
    value = operation.init(7, collector)
    for one in tuples:
        operation.aggregate(value, one, collector)
    operation.complete(value, collector)
    return collector.rows


def shout(word, n) -> str:
    return word * n


def letters(word, n) -> Iterator[tuple[str, int]]:
    for letter in word:
        yield letter, n


def parts(word, n) -> list[str]:
    return list(word)


def test_a_plain_map_gets_the_field_values_and_gives_one_tuple():
    assert as_map(shout, 1, "map").execute(row("ab", 2)) == ("abab",)
    assert as_map(lambda word, n: (n, word), 2, "map").execute(row("ab", 2)) == (2, "ab")


def test_a_plain_flat_map_yields_or_returns_rows():
    assert list(as_flat_map(letters, 2, "flat_map").execute(row("ab", 1))) == [("a", 1), ("b", 1)]
    assert list(as_flat_map(parts, 1, "flat_map").execute(row("ab", 1))) == [("a",), ("b",)]
    assert list(as_flat_map(lambda word, n: None, 1, "flat_map").execute(row("ab", 1))) == []


@pytest.mark.parametrize("given", ["text", b"bytes", 7], ids=str)
def test_a_flat_map_that_gives_no_rows_says_so(given):
    with pytest.raises(TypeError, match="not a list of rows; return a list, or yield"):
        as_flat_map(lambda word, n: given, 1, "flat_map").execute(row("ab", 1))


def test_a_plain_consumer_is_called_with_the_values():
    seen = []
    consumer = as_consumer(lambda word, n: seen.append((word, n)), "peek")

    consumer.accept(row("ab", 1))

    assert seen == [("ab", 1)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: as_map(letters, 2, "map(letters)"), "use flat_map"),
        (lambda: as_filter(letters, "filter(letters)"), "it is no predicate"),
        (lambda: as_consumer(letters, "peek(letters)"), "none of it would run"),
        (lambda: as_map(Split(), 1, "map(Split)"), "needs a MapFunction"),
        (lambda: as_flat_map(Split, 1, "flat_map(Split)"), r"write Split\(\)"),
        (lambda: as_function(Equals(), 1, "each"), "has output fields, so it needs a Function"),
        (lambda: as_filter(Split(), "each"), "it needs output fields"),
        (lambda: as_consumer(7, "peek"), "needs a Consumer"),
        (lambda: as_consumer(FilterNull(), "peek"), "needs a Consumer"),
        (lambda: as_aggregator(Count, "aggregate"), r"write Count\(\)"),
        (lambda: as_aggregator(max, "aggregate"), "mark a function with @aggregator"),
        (lambda: as_aggregator(Split(), "aggregate"), "needs a CombinerAggregator"),
        (lambda: as_query(Split(), 1, "state_query"), "needs a QueryFunction"),
        (lambda: as_query(arrow_function(len), 1, "state_query"), "needs a QueryFunction"),
        (lambda: as_updater(MapGet(), "partition_persist"), "needs a StateUpdater"),
        (lambda: as_multi_reducer(Count(), 2, "multi_reduce"), "needs a MultiReducer"),
        (lambda: arrow_function(7), "arrow_function needs a function, not 7"),
        (lambda: pandas_aggregator("x"), "pandas_aggregator needs a function"),
        (lambda: expr(7), "needs the text of a Spark SQL expression"),
        (lambda: combiner(7, max, 0), "combiner: init needs a function"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_topology_is_built(make, message):
    with pytest.raises(TopologyError, match=message):
        make()


def test_classes_of_the_contracts_pass_as_they_are():
    class Look(Consumer):
        def accept(self, tuple):
            pass

    look, split, count, get = Look(), Split(), Count(), MapGet()

    assert as_consumer(look, "") is look
    assert as_function(split, 1, "") is split
    assert as_aggregator(count, "") is count
    assert as_query(get, 1, "") is get


@pytest.mark.parametrize(
    ("operation", "out", "expected"),
    [
        (as_function(shout, 1, ""), "loud", "loud string"),
        (as_function(shout, 1, ""), "loud binary", "loud binary"),
        (as_function(letters, 2, ""), "letter, n int", "letter string, n int"),
        (as_map(shout, 1, ""), "loud", "loud string"),
        (as_flat_map(parts, 1, ""), "part", "part string"),
        (as_flat_map(letters, 2, ""), "letter, n", "letter string, n bigint"),
        (Split(), "part", "part string"),
        (expr("upper(word)"), "loud string", "loud string"),
    ],
)
def test_types_come_from_annotations_where_none_is_written(operation, out, expected):
    made = typed(operation, Schema.parse(out), Schema.parse("word string, n bigint"), "each(f)")

    assert str(made) == expected


def no_types(word, n):
    return word


def yields_something(word, n):
    yield word


@pytest.mark.parametrize(
    ("operation", "fix"),
    [
        (as_function(no_types, 1, ""), r'out="x string", or .* def no_types\(\.\.\.\) -> str'),
        (as_function(yields_something, 1, ""), r"yields_something\(\.\.\.\) -> Iterator\[str\]"),
        (as_map(no_types, 2, ""), r"no_types\(\.\.\.\) -> tuple\[str, str\]"),
        (as_flat_map(no_types, 1, ""), r"no_types\(\.\.\.\) -> Iterator\[str\]"),
        (arrow_function(lambda batch: batch), 'for example out="x string"$'),
    ],
)
def test_a_type_that_stays_unknown_is_an_error_with_the_fix_in_it(operation, fix):
    width = getattr(operation, "_width", 1)
    out = Schema.parse("x" if width == 1 else "x, y")

    with pytest.raises(TopologyError, match=fix):
        typed(operation, out, Schema.parse("word string, n bigint"), "each(f)")


def test_an_operation_that_makes_more_fields_than_out_has_is_refused():
    with pytest.raises(TopologyError, match="makes 1 fields, but out has 2"):
        typed(Split(), Schema.parse("a, b"), Schema.parse("word string"), "each(Split)")


@reducer(init=0)
def total(value, word, n) -> int:
    return value + n


@reducer(init=list, out="array<string>")
def seen_words(value, word, n):
    value.append(word)
    return value


def test_a_reducer_folds_the_field_values():
    value = total.init()
    for n in (1, 2, 3):
        value = total.reduce(value, row("a", n))

    assert value == 6
    assert total.output_types([]) == ["bigint"]


@pytest.mark.parametrize("init", [list, []], ids=["factory", "value"])
def test_every_fold_of_a_reducer_starts_from_a_value_of_its_own(init):
    made = reducer(init=init, out="array<string>")(lambda value, word, n: [*value, word])
    first = made.init()
    first.append("left over")

    assert made.init() == []


def test_a_reducer_without_its_start_value_is_refused():
    with pytest.raises(TopologyError, match=r"write @reducer\(init=0\) before shout"):
        reducer(shout)


def test_a_type_of_a_reducer_is_written_with_a_name_or_without():
    assert reducer(0, "long")(shout).output_types([]) == ["bigint"]
    assert reducer(0, "total decimal(10,2)")(shout).output_types([]) == ["decimal(10,2)"]
    with pytest.raises(TopologyError, match="gives one value"):
        reducer(0, "a int, b int")(shout)


def test_a_combiner_of_functions():
    longest = combiner(lambda word, n: len(word), max, 0, out="int")

    assert longest.combine(longest.init(row("abc", 1)), longest.init(row("a", 1))) == 3
    assert longest.zero() == 0
    assert longest.output_types([]) == longest.value_types([]) == ["int"]
    assert not longest.finishes


def test_a_combiner_that_finishes_has_two_types():
    mean = combiner(
        lambda word, n: {"sum": n, "n": 1},
        lambda a, b: {key: a[key] + b[key] for key in a},
        {"sum": 0, "n": 0},
        out="double",
        finish=lambda value: value["sum"] / value["n"] if value["n"] else None,
        value="struct<sum:bigint,n:bigint>",
    )

    assert mean.finishes
    assert mean.finish(mean.combine(mean.init(row("a", 4)), mean.init(row("a", 5)))) == 4.5
    assert mean.output_types([]) == ["double"]
    assert mean.value_types([]) == ["struct<sum:bigint,n:bigint>"]


def test_a_combiner_that_finishes_must_say_what_it_keeps():
    with pytest.raises(TopologyError, match="what it keeps has a type of its own"):
        combiner(no_types, operator.add, 0, out="double", finish=float)


def test_annotations_give_a_combiner_its_types():
    def start(word, n) -> int:
        return n

    def show(value: int) -> float:
        return float(value)

    made = combiner(start, operator.add, 0, finish=show)

    assert made.value_types([]) == ["bigint"]
    assert made.output_types([]) == ["double"]


@aggregator
def by_return(tuples) -> list[tuple[str, int]]:
    return [(one["word"], len(tuples)) for one in tuples]


@aggregator
def by_yield(tuples):
    for one in tuples:
        yield one["word"], len(tuples)


def test_an_aggregator_is_a_function_from_tuples_to_rows():
    tuples = [row("a", 1), row("b", 2)]

    assert rows_of(by_return, tuples) == rows_of(by_yield, tuples) == [("a", 2), ("b", 2)]
    assert rows_of(by_return, []) == []
    assert by_return.output_types([]) == ["string", "bigint"]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (5, [(5,)]),
        ("text", [("text",)]),
        ((1, "a"), [(1, "a")]),
        ([1, 2], [(1,), (2,)]),
        ([(1, "a"), (2, "b")], [(1, "a"), (2, "b")]),
        ({"a": 1}, [({"a": 1},)]),
        (None, []),
        ([], []),
    ],
    ids=repr,
)
def test_a_tuple_is_a_row_a_list_is_rows_and_anything_else_a_value(result, expected):
    assert rows_of(aggregator(lambda tuples: result), []) == expected


TABLE = pa.table({"word": ["a", "b", "a"], "n": [1, 2, None]})


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda t: t.group_by("word").aggregate([("n", "sum")]), [("a", 1), ("b", 2)]),
        (lambda t: pc.sum(t["n"]), [(3,)]),
        (lambda t: (pc.min(t["n"]), t.num_rows), [(1, 3)]),
        (lambda t: t["word"], [("a",), ("b",), ("a",)]),
        (lambda t: pc.unique(t["word"]), [("a",), ("b",)]),
        (lambda t: [("x", 1)], [("x", 1)]),
        (lambda t: None, []),
    ],
    ids=["table", "scalar", "tuple", "chunked", "array", "list", "none"],
)
def test_an_arrow_aggregator_may_return_rows_in_any_form(function, expected):
    assert arrow_aggregator(function).run_table(TABLE) == expected


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda f: f.groupby("word", as_index=False)["n"].sum(), [("a", 1.0), ("b", 2.0)]),
        (lambda f: f["n"].sum(), [(3.0,)]),
        (lambda f: (len(f), f["word"].max()), [(3, "b")]),
        (lambda f: f["n"], [(1.0,), (2.0,), (None,)]),
        (lambda f: np.int64(4), [(4,)]),
        (lambda f: pd.NA, [(None,)]),
        (
            lambda f: pd.Timestamp("2026-01-02", tz="UTC"),
            [(datetime(2026, 1, 2, tzinfo=UTC),)],
        ),
    ],
    ids=["frame", "scalar", "tuple", "series", "numpy", "na", "timestamp"],
)
def test_a_pandas_aggregator_may_return_rows_in_any_form(function, expected):
    found = pandas_aggregator(function).run_table(TABLE)

    assert found == expected
    assert all(type(a) is type(b) for a, b in zip(found[0], expected[0], strict=True))


def test_a_vectorised_aggregator_keeps_the_contract_of_all_aggregators():
    made = arrow_aggregator(lambda table: (table.num_rows, pc.sum(table["n"])))

    assert rows_of(made, [row("a", 1), row("b", 2)]) == [(2, 3)]


@multi_reducer
def both(left, right) -> list[tuple[str, int]]:
    return [(one["word"], len(right)) for one in left]


@grouped_multi_reducer
def more(group, left, right):
    if len(left) > len(right):
        yield group["word"], len(left)


def test_a_multi_reducer_gets_a_list_of_tuples_for_each_stream():
    made, collector = as_multi_reducer(both, 2, "multi_reduce"), TridentCollector()
    value = made.init(collector)
    for stream, one in [(1, row("x", 1)), (0, row("a", 1)), (1, row("y", 1))]:
        made.execute(value, stream, one, collector)
    made.complete(value, collector)

    assert collector.rows == [("a", 2)]
    assert made.output_types([]) == ["string", "bigint"]


def test_a_grouped_multi_reducer_gets_the_group_first():
    made, collector = as_multi_reducer(more, 2, "multi_reduce", grouped=True), TridentCollector()
    group = row("a", 0)
    value = made.init(collector, group)
    made.execute(value, 0, group, row("a", 1), collector)
    made.complete(value, group, collector)

    assert collector.rows == [("a", 1)]


def test_a_multi_reducer_of_other_arguments_is_refused():
    three = as_multi_reducer(both, 3, "multi_reduce(both)")
    grouped = as_multi_reducer(lambda left, right: None, 2, "multi_reduce(f)", grouped=True)

    with pytest.raises(TopologyError, match=r"with one list of tuples for each of the 3 streams"):
        usable(three, Schema(), "multi_reduce(both)")
    with pytest.raises(TopologyError, match=r"with the group and one list.* takes \(left, right\)"):
        usable(grouped, Schema(), "multi_reduce(f)")


def test_a_query_answers_for_all_tuples_at_once():
    @query
    def length_and_count(state, tuples) -> list[tuple[int, int]]:
        return [(len(one["word"]), state.get(one["word"], 0)) for one in tuples]

    made, collector = as_query(length_and_count, 2, "state_query"), TridentCollector()
    tuples = [row("ab", 1), row("c", 1)]
    for one, answer in zip(tuples, made.batch_retrieve({"c": 5}, tuples), strict=True):
        made.execute(one, answer, collector)

    assert collector.rows == [(2, 0), (1, 5)]
    assert made.output_types([]) == ["bigint", "bigint"]


def test_a_plain_function_is_a_query_or_an_updater_too():
    made = as_query(lambda state, tuples: [len(state)] * len(tuples), 1, "state_query")
    collector = TridentCollector()
    (answer,) = made.batch_retrieve({1, 2}, [row("a", 1)])
    made.execute(row("a", 1), answer, collector)
    change = as_updater(lambda state, tuples: state.extend(t["word"] for t in tuples), "persist")
    state: list[str] = []
    change.update_state(state, [row("a", 1), row("b", 2)], collector)

    assert collector.rows == [(2,)]
    assert state == ["a", "b"]


def test_what_an_updater_gives_is_emitted():
    @updater
    def keep(state, tuples):
        for one in tuples:
            state[one["word"]] = one["n"]
            yield one["word"], one["n"]

    state, collector = {}, TridentCollector()
    keep.update_state(state, [row("a", 1)], collector)

    assert state == {"a": 1}
    assert collector.rows == [("a", 1)]


FORMS = {
    "function": as_function(nondeterministic(shout), 1, ""),
    "generator": as_function(nondeterministic(letters), 2, ""),
    "filter": as_filter(nondeterministic(shout), ""),
    "map": as_map(nondeterministic(shout), 1, ""),
    "flat_map": as_flat_map(nondeterministic(parts), 1, ""),
    "consumer": as_consumer(nondeterministic(shout), ""),
    "query": as_query(nondeterministic(shout), 1, ""),
    "updater": as_updater(nondeterministic(shout), ""),
    "reducer": reducer(0, "int")(nondeterministic(shout)),
    "combiner": combiner(nondeterministic(len), max, 0, "int"),
    "aggregator": aggregator(nondeterministic(shout)),
    "arrow_aggregator": arrow_aggregator(nondeterministic(len)),
    "pandas_aggregator": nondeterministic(pandas_aggregator(len)),
    "multi_reducer": as_multi_reducer(nondeterministic(shout), 2, ""),
    "arrow_function": arrow_function(len, deterministic=False),
    "arrow_function with options": arrow_function(deterministic=False)(len),
    "pandas_function": pandas_function(deterministic=False)(len),
    "marked arrow_function": nondeterministic(arrow_function(len)),
    "arrow_function of marked": arrow_function(nondeterministic(len)),
    "expr": expr("rand()", deterministic=False),
    "marked expr": nondeterministic(expr("rand()")),
    "built in": nondeterministic(Split()),
    "Negate": Negate(nondeterministic(Equals())),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_can_be_marked_as_not_deterministic(form):
    marked = pickle.loads(pickling.dumps(FORMS[form]))

    assert FORMS[form].deterministic is False
    assert marked.deterministic is False


def test_a_mark_is_on_a_copy_and_leaves_the_operation_as_it_was():
    split, average = Split(), Average()

    assert nondeterministic(split) == split
    assert not nondeterministic(average).deterministic
    assert split.deterministic
    assert average.deterministic


@pytest.mark.parametrize("given", [7, Split, Negate(Equals())], ids=repr)
def test_what_cannot_be_marked_is_refused(given):
    with pytest.raises(TopologyError, match=r"nondeterministic needs|as what it wraps"):
        nondeterministic(given)


def test_a_generator_stays_one_under_its_mark():
    collector = TridentCollector()

    FORMS["generator"].execute(row("ab", 1), collector)

    assert collector.rows == [("a", 1), ("b", 1)]


@pytest.mark.parametrize(
    ("operation", "label"),
    [
        (as_function(shout, 1, ""), "shout"),
        (as_map(functools.partial(shout, "a"), 1, ""), "shout"),
        (as_filter(lambda word, n: True, ""), "<lambda>"),
        (as_consumer(nondeterministic(shout), ""), "shout"),
        (total, "total"),
        (by_yield, "by_yield"),
        (arrow_function(functools.partial(len)), "len"),
        (combiner(len, max, 0, "int"), "combiner(len, max)"),
        (combiner(len, max, 0, "int", name="longest"), "longest"),
    ],
)
def test_every_form_has_a_name_for_plans_and_survives_pickling(operation, label):
    again = pickle.loads(pickling.dumps(operation))

    assert operation.label == again.label == label


def test_a_class_of_the_users_travels_with_its_answers():
    class Twice(Function):
        def execute(self, tuple, collector):
            collector.emit((tuple[0] * 2,))

    collector = TridentCollector()
    pickle.loads(pickling.dumps(Twice())).execute(row("a", 1), collector)

    assert collector.rows == [("aa",)]


def _pairs(a, b):
    for _ in range(a):
        yield a + b


@pytest.mark.parametrize(
    "function",
    [PlainFunction(lambda a, b: a * b), PlainFunction(_pairs), PlainFlatMap(lambda a, b: (a, b))],
    ids=["one each", "yields", "returns several"],
)
def test_results_are_the_same_whether_or_not_it_is_asked_which_row_gave_them(function):
    rows = [(2, 3), (0, 1), (4, 5)]

    counts, results = function.call_with(rows)

    assert function.results_of(rows) == results
    assert sum(counts) == len(results)
