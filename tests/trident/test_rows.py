"""Functions and filters over Arrow batches: what is appended, dropped, multiplied, refused."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from waterspout import Config
from waterspout._schema import Schema
from waterspout.trident import (
    Debug,
    Equals,
    Filter,
    FilterNull,
    Function,
    Negate,
    Split,
    TridentTuple,
    arrow_function,
    pandas_function,
)
from waterspout.trident.operations.adapters import (
    PlainFilter,
    PlainFlatMap,
    PlainFunction,
    PlainMap,
)
from waterspout.trident.operations.contracts import OperationContext, TridentCollector
from waterspout.trident.runtime.rows import RowStep, as_tuples, rows_to_batch, run_steps

HERE = OperationContext(0, 1)
UTC_NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
NOON = UTC_NOON.replace(tzinfo=None)
EAST_NOON = UTC_NOON.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)))
WORDS = pa.record_batch({"word": ["the", "", None, "cow"], "n": [1, 2, 3, 4]})


def run(steps, *batches):
    steps = steps if isinstance(steps, list) else [steps]
    return [batch.to_pylist() for batch in run_steps(steps, batches, Config(), HERE)]


def each(operation, out, fields=("word",), batch=WORDS):
    step = RowStep("each(it)", operation, tuple(fields), Schema.parse(out))
    (rows,) = run(step, batch)
    return rows


def keep(operation, fields=("word",), batch=WORDS):
    (rows,) = run(RowStep("each(it)", operation, tuple(fields)), batch)
    return [row["n"] for row in rows]


class Repeat(Function):
    """Emits a word as often as its letters."""

    def execute(self, tuple, collector):
        for letter in tuple["word"] or "":
            collector.emit((letter,))


def test_each_appends_its_output_to_the_whole_tuple():
    rows = each(PlainFunction(lambda word: f"{word}!", 1), "loud string")

    assert rows == [
        {"word": "the", "n": 1, "loud": "the!"},
        {"word": "", "n": 2, "loud": "!"},
        {"word": None, "n": 3, "loud": "None!"},
        {"word": "cow", "n": 4, "loud": "cow!"},
    ]


def test_no_emit_drops_the_tuple_and_many_multiply_it():
    rows = each(Repeat(), "letter string")

    assert [(row["n"], row["letter"]) for row in rows] == [
        *((1, letter) for letter in "the"),
        *((4, letter) for letter in "cow"),
    ]


def test_a_function_sees_only_the_fields_it_asked_for():
    seen = []

    class See(Function):
        def execute(self, tuple, collector):
            seen.append((tuple.fields, tuple.values))
            collector.emit((True,))

    each(See(), "ok boolean", fields=("n",))

    assert seen == [(("n",), (n,)) for n in (1, 2, 3, 4)]


def test_a_function_may_emit_no_values_to_multiply_alone():
    class Twice(Function):
        def execute(self, tuple, collector):
            collector.emit(())
            collector.emit(())

    assert [row["n"] for row in each(Twice(), ())] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_an_empty_batch_stays_empty_and_gets_the_fields():
    step = RowStep("each(it)", Repeat(), ("word",), Schema.parse("letter string"))

    (batch,) = run_steps([step], [WORDS.slice(0, 0)], Config(), HERE)

    assert batch.num_rows == 0
    assert batch.schema.names == ["word", "n", "letter"]
    assert batch.schema.field("letter").type == pa.string()


def test_steps_run_one_after_the_other_over_every_batch():
    steps = [
        RowStep("filter", FilterNull(), ("word",)),
        RowStep("each", PlainFunction(len, 1), ("word",), Schema.parse("size int")),
        RowStep("project", None, ("size", "n")),
    ]

    assert run(steps, WORDS, WORDS.slice(3)) == [
        [{"size": 3, "n": 1}, {"size": 0, "n": 2}, {"size": 3, "n": 4}],
        [{"size": 3, "n": 4}],
    ]


@pytest.mark.parametrize(
    ("function", "out", "made"),
    [
        (lambda n: n * 2, "double bigint", [(2,), (4,)]),
        (lambda n: (n, str(n)), "a bigint, b string", [(1, "1"), (2, "2")]),
        (lambda n: None, "nothing string", [(None,), (None,)]),
        (lambda n: [n, n], "pair array<bigint>", [([1, 1],), ([2, 2],)]),
    ],
)
def test_a_plain_function_returns_a_value_or_a_tuple_of_values(function, out, made):
    width = len(Schema.parse(out))

    rows = each(PlainFunction(function, width), out, fields=("n",), batch=WORDS.slice(0, 2))

    assert [tuple(row.values())[2:] for row in rows] == made


def test_a_generator_function_yields_one_value_per_tuple():
    def count_down(n):
        while n > 2:
            yield n, str(n)
            n -= 1

    rows = each(PlainFunction(count_down, 2), "left bigint, text string", fields=("n",))

    assert [(row["n"], row["left"], row["text"]) for row in rows] == [
        (3, 3, "3"),
        (4, 4, "4"),
        (4, 3, "3"),
    ]


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("fields", [("word",), ("word", "n"), ()])
def test_plain_functions_called_for_many_rows_give_what_they_give_one_by_one(fields, width):
    def one(*values):
        return values if width == 2 else str(values)

    def some(*values):
        for number in range(sum(value is not None for value in values)):
            yield (number, number) if width == 2 else number

    made = [
        PlainFunction(one, width), PlainFunction(some, width), PlainMap(one, width),
        PlainFlatMap(some, width), PlainFlatMap(lambda *values: list(some(*values)), width),
        PlainFlatMap(lambda *values: tuple(some(*values)), width),
        PlainFlatMap(lambda *values: None, width),
    ]  # fmt: skip
    for operation in made:
        tuples = as_tuples(WORDS, fields)
        expected = [rows_of_one(operation, tuple) for tuple in tuples]
        counts, results = operation.call_with(row.values for row in tuples)

        assert counts == [len(rows) for rows in expected]
        assert [operation._row(r) for r in results] == [row for rows in expected for row in rows]


def rows_of_one(operation, tuple):
    if isinstance(operation, PlainMap):
        return [operation.execute(tuple)]
    if isinstance(operation, PlainFlatMap):
        return list(operation.execute(tuple))
    collector = TridentCollector()
    operation.execute(tuple, collector)
    return collector.rows


@pytest.mark.parametrize("made", ["the", b"the", 5])
def test_a_flat_map_that_gives_no_list_is_refused_with_the_remedy(made):
    operation = PlainFlatMap(lambda word: made)
    operation.label = "it"

    with pytest.raises(TypeError, match=r"flat_map\(it\) gave .*return a list, or yield"):
        each(operation, "word2 string")


def test_a_row_of_the_wrong_width_is_named_with_the_fields():
    with pytest.raises(
        ValueError, match=r"each\(it\) emitted 1 values, but its output has 2 fields \(a int, b"
    ):
        each(PlainFunction(lambda word: (word,), 2), "a int, b string")


@pytest.mark.parametrize(
    "row",
    [("a", 1), ["a", 1], {"x": "a", "y": 1}.values(), TridentTuple(("a", 1), {"x": 0, "y": 1})],
    ids=lambda row: type(row).__name__,
)
def test_anything_with_as_many_values_is_a_row(row):
    batch = rows_to_batch([row, ("b", 2)], Schema.parse("x string, y bigint"), "each(it)")

    assert batch.to_pydict() == {"x": ["a", "b"], "y": [1, 2]}


def test_one_row_of_the_wrong_width_among_many_is_found():
    with pytest.raises(
        ValueError, match=r"each\(it\) emitted 2 values, but its output has 1 fields"
    ):
        rows_to_batch([("a",), ("b", 2), ("c",)], Schema.parse("x string"), "each(it)")


@pytest.mark.parametrize("emitted", ["the", b"the", 5])
def test_a_value_that_is_not_in_a_tuple_is_refused_with_the_remedy(emitted):
    class Bare(Function):
        def execute(self, tuple, collector):
            collector.emit(emitted)

    with pytest.raises(TypeError, match=r"each\(it\) emitted .*\(word2 string\); emit a tuple"):
        each(Bare(), "word2 string")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("x", "bigint"),
        (1.5, "bigint"),
        (math.nan, "int"),
        (True, "bigint"),
        (2**70, "bigint"),
        (300, "tinyint"),
        (1, "string"),
        (1, "boolean"),
        ([1], "string"),
        (5, "array<string>"),
        ("1.5", "decimal(10,2)"),
        ("2024-01-01", "date"),
        (1e300, "float"),
        (NOON, "date"),
        (5, "date"),
        (5, "timestamp"),
        (EAST_NOON, "timestamp_ntz"),
        (pd.Timestamp(1), "timestamp"),
        ([1.5], "array<bigint>"),
        ({"a": 1.5}, "struct<a:bigint>"),
        ({"a": 1, "b": 2}, "struct<a:bigint>"),
        ({"a": [NOON]}, "map<string,array<date>>"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_its_field(value, kind):
    with pytest.raises(TypeError, match=r"each\(it\) gave .* for field 'x', which is declared as"):
        each(PlainFunction(lambda word: value, 1), f"x {kind}")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", "日本 🐄 \x00"),
        ("bigint", -(2**63)),
        ("int", 2**31 - 1),
        ("smallint", -32768),
        ("tinyint", 127),
        ("double", 1e300),
        ("double", math.inf),
        ("float", 0.5),
        ("boolean", False),
        ("binary", b"\x00\xff"),
        ("date", dt.date(1582, 10, 15)),
        ("timestamp", UTC_NOON),
        ("timestamp_ntz", UTC_NOON.replace(tzinfo=None, microsecond=1)),
        ("decimal(10,2)", Decimal("1.50")),
        ("array<bigint>", [1, None, 3]),
        ("struct<a:bigint,b:array<string>>", {"a": 1, "b": ["x"]}),
        ("map<string,bigint>", [("a", 1), ("b", None)]),
        ("varchar(5)", "abc"),
    ],
)
def test_every_type_goes_through_a_python_function_unchanged(kind, value):
    (row, nothing) = each(
        PlainFunction(lambda n: value if n == 1 else None, 1),
        f"x {kind}",
        fields=("n",),
        batch=WORDS.slice(0, 2),
    )

    assert (row["x"], nothing["x"]) == (value, None)


class Long(Filter):
    def is_keep(self, tuple):
        return len(tuple["word"] or "") > 2


def test_a_filter_keeps_what_it_says():
    assert keep(Long()) == [1, 4]
    assert keep(PlainFilter(lambda word: word)) == [1, 4]
    assert keep(FilterNull()) == [1, 2, 4]
    assert keep(Negate(FilterNull())) == [3]
    assert keep(arrow_function(lambda b: pc.greater(b.column("n"), 2)), ["n"]) == [3, 4]
    assert keep(pandas_function(lambda frame: frame["n"] % 2 == 0), ["n"]) == [2, 4]


def test_a_vectorised_filter_drops_where_it_does_not_know():
    assert keep(arrow_function(lambda b: pc.equal(b.column("word"), "the"))) == [1]


def test_a_vectorised_filter_answers_for_every_row():
    with pytest.raises(ValueError, match=r"each\(it\) gave 2 answers for 4 rows"):
        keep(arrow_function(lambda b: pa.array([True, False])))


def test_equals_keeps_tuples_of_equal_fields_nulls_included():
    batch = pa.record_batch({"a": [1, 2, None, None], "b": [1, 3, None, 4], "n": [1, 2, 3, 4]})

    assert keep(Equals(), ["a", "b"], batch) == [1, 3]


def test_debug_prints_every_tuple_and_keeps_it(capsys):
    assert keep(Debug("words"), ["word", "n"], WORDS.slice(2)) == [3, 4]

    assert capsys.readouterr().out == "DEBUG(words): [None, 3]\nDEBUG(words): ['cow', 4]\n"


@pytest.mark.parametrize(
    "function",
    [
        lambda b: pc.multiply(b.column("n"), 2),
        lambda b: (pc.multiply(b.column("n"), 2),),
        lambda b: pa.record_batch({"double": pc.multiply(b.column("n"), 2)}),
        lambda b: pa.table({"double": pc.multiply(b.column("n"), 2), "more": b.column("n")}),
        lambda b: [2 * n for n in b.column("n").to_pylist()],
        lambda b: pa.chunked_array([[2, 4], [6, 8]]),
        lambda b: pc.multiply(b.column("n"), 2).cast(pa.int32()),
    ],
    ids=["array", "tuple", "batch", "table", "list", "chunks", "narrower"],
)
def test_an_arrow_function_gives_columns_as_long_as_its_input(function):
    rows = each(arrow_function(function), "double bigint", fields=("n",))

    assert [(row["n"], row["double"]) for row in rows] == [(1, 2), (2, 4), (3, 6), (4, 8)]


@pytest.mark.parametrize(
    "function",
    [
        lambda frame: frame["n"] * 2,
        lambda frame: pd.DataFrame({"double": frame["n"] * 2}),
        lambda frame: (frame["n"] * 2).astype(float),
        lambda frame: list(frame["n"] * 2),
        lambda frame: (frame["n"] * 2).to_numpy(),
    ],
    ids=["series", "frame", "floats", "list", "numpy"],
)
def test_a_pandas_function_gives_columns_as_long_as_its_input(function):
    rows = each(pandas_function(function), "double bigint", fields=("n",))

    assert [(row["n"], row["double"]) for row in rows] == [(1, 2), (2, 4), (3, 6), (4, 8)]


@pytest.mark.parametrize(
    "function",
    [
        lambda b: (b.column("n"), b.column("word")),
        lambda b: [b.column("n"), b.column("word")],
        lambda b: pa.record_batch({"b": b.column("word"), "a": b.column("n")}),
        lambda b: ([1, 2, 3, 4], ["the", "", None, "cow"]),
    ],
    ids=["tuple", "list", "batch", "lists"],
)
def test_two_columns_are_two_output_fields(function):
    rows = each(arrow_function(function), "a bigint, b string", fields=("word", "n"))

    assert [(row["a"], row["b"]) for row in rows] == [(1, "the"), (2, ""), (3, None), (4, "cow")]


ROWS = [0, 0, 3]


@pytest.mark.parametrize("indices", [ROWS, pa.array(ROWS), pd.Index(ROWS), pa.array(ROWS, "int32")])
def test_indices_say_which_input_row_an_output_row_belongs_to(indices):
    one = each(arrow_function(lambda b: (indices, pa.array(["a", "b", "c"]))), "x string")
    two = each(arrow_function(lambda b: (indices, ([7, 8, 9], ["a", "b", "c"]))), "y int, x string")
    named = each(
        pandas_function(lambda f: (indices, pd.DataFrame({"x": list("abc"), "y": [7, 8, 9]}))),
        "y int, x string",
    )

    assert [(row["n"], row["x"]) for row in one] == [(1, "a"), (1, "b"), (4, "c")]
    assert [(row["n"], row["y"], row["x"]) for row in two] == [
        (1, 7, "a"),
        (1, 8, "b"),
        (4, 9, "c"),
    ]
    assert named == two


def test_indices_may_drop_every_row():
    assert each(arrow_function(lambda b: ([], pa.array([], pa.string()))), "x string") == []


def test_a_column_of_another_length_is_named_with_the_remedy():
    with pytest.raises(
        ValueError,
        match=r"each\(it\) gave 1 values for field 'x' from 4 rows; return as many, or \(indices,",
    ):
        each(arrow_function(lambda b: pa.array(["a"])), "x string")


@pytest.mark.parametrize(
    "operation",
    [
        arrow_function(lambda b: pa.array(["a", "b", "c", "d"])),
        arrow_function(lambda b: pa.array([1.5, 2.0, 3.0, 4.0])),
        pandas_function(lambda f: f["n"] / 2),
        pandas_function(lambda f: f["word"]),
        pandas_function(lambda f: [1.5, 2, 3, 4]),
    ],
    ids=["strings", "halves", "pandas halves", "pandas strings", "list of halves"],
)
def test_a_column_of_the_wrong_type_is_named_with_its_field(operation):
    with pytest.raises(TypeError, match=r"each\(it\) gave .*'x'"):
        each(operation, "x bigint", fields=("word", "n"))


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array(["5"] * 3), "bigint"),
        (pa.array([5] * 3), "string"),
        (pa.array([True] * 3), "int"),
        (pa.array([1e300] * 3), "float"),
        (pa.array([0.1] * 3), "decimal(10,3)"),
        (pa.array([NOON] * 3), "date"),
        (pa.array([EAST_NOON] * 3), "timestamp_ntz"),
        (pa.array([{"a": 1, "b": 2}] * 3), "struct<a:bigint>"),
        (pa.array([[1.5]] * 3), "array<bigint>"),
        (pd.Series([1.7, 1, None], dtype=object), "bigint"),
        (pd.Series([1.7, 1, None]), "bigint"),
        (pd.Series([2**40] * 3), "int"),
    ],
    ids=str,
)
def test_a_column_is_not_cut_parsed_or_wrapped_to_fit(column, kind):
    with pytest.raises(TypeError, match=r"each\(it\) gave values for field 'x' that do not fit"):
        each(arrow_function(lambda batch: column), f"x {kind}", batch=WORDS.slice(0, 3))


@pytest.mark.parametrize(
    ("column", "kind", "values"),
    [
        (pa.array([1, None, 3], pa.uint8()), "bigint", [1, None, 3]),
        (pa.array([1.0, 2.0, 3.0]), "int", [1, 2, 3]),
        (pa.array(["a", None, "a"]).dictionary_encode(), "string", ["a", None, "a"]),
        (pa.array([1, 2, 3], pa.int16()), "decimal(10,2)", [Decimal(1), Decimal(2), Decimal(3)]),
        (pa.array([0.5, None, math.inf]), "float", [0.5, None, math.inf]),
        (pa.nulls(3), "date", [None] * 3),
        (pd.Series([1.0, None, 3.0]), "bigint", [1, None, 3]),
        (pd.Series([[1], None, []]), "array<bigint>", [[1], None, []]),
    ],
    ids=str,
)
def test_a_column_of_another_type_fits_where_no_value_changes(column, kind, values):
    made = each(arrow_function(lambda batch: column), f"x {kind}", batch=WORDS.slice(0, 3))

    assert [row["x"] for row in made] == values


def test_a_missing_column_is_named_with_those_that_came():
    with pytest.raises(ValueError, match=r"each\(it\) gave no field 'x'; it gave y, z"):
        each(pandas_function(lambda f: pd.DataFrame({"y": [1], "z": [2]})), "x bigint, y bigint")


def test_a_wrong_number_of_columns_is_refused():
    with pytest.raises(ValueError, match=r"gave 1 columns, but its output has 2 fields"):
        each(arrow_function(lambda b: b.column("word")), "x string, y string")


def test_pandas_sees_nulls_as_nulls_and_gives_them_back():
    rows = each(pandas_function(lambda f: f["word"].str.upper()), "loud string")

    assert [row["loud"] for row in rows] == ["THE", "", None, "COW"]


class Tracked(Function):
    def __init__(self, fail=False):
        self.calls = []
        self._fail = fail

    def prepare(self, conf, context):
        self.calls.append(("prepare", context.partition_index, context.num_partitions))

    def execute(self, tuple, collector):
        self.calls.append(tuple[0])
        if self._fail:
            raise RuntimeError("no")
        collector.emit((tuple[0],))

    def cleanup(self):
        self.calls.append("cleanup")


def tracked_step(function):
    return RowStep("each(it)", function, ("n",), Schema.parse("m bigint"))


def test_prepare_comes_once_before_the_first_tuple_and_cleanup_after_the_last():
    function = Tracked()

    list(
        run_steps(
            [tracked_step(function)], [WORDS.slice(0, 2), WORDS.slice(2)], Config(),
            OperationContext(3, 8),
        )
    )  # fmt: skip

    assert function.calls == [("prepare", 3, 8), 1, 2, 3, 4, "cleanup"]


def test_cleanup_comes_after_an_error_too():
    function = Tracked(fail=True)

    with pytest.raises(RuntimeError, match="no"):
        run(tracked_step(function), WORDS)

    assert function.calls == [("prepare", 0, 1), 1, "cleanup"]


def test_negate_prepares_and_cleans_up_the_filter_inside():
    class Inside(Filter):
        calls = []  # noqa: RUF012

        def prepare(self, conf, context):
            self.calls.append("prepare")

        def is_keep(self, tuple):
            return tuple[0] > 1

        def cleanup(self):
            self.calls.append("cleanup")

    assert keep(Negate(Inside()), ["n"]) == [1]
    assert Inside.calls == ["prepare", "cleanup"]


def test_a_tuple_is_read_by_name_and_by_position():
    (row, *_) = as_tuples(WORDS, ("n", "word"))

    assert (row["word"], row[0], row.get("nope", 7), len(row)) == ("the", 1, 7, 2)
    assert row == (1, "the") == TridentTuple((1, "the"), {"x": 0, "y": 1})
    with pytest.raises(KeyError, match="no field 'nope'; there are n, word"):
        row["nope"]


def test_no_fields_still_make_a_tuple_for_each_row():
    assert [tuple(row) for row in as_tuples(WORDS, ())] == [(), (), (), ()]


def test_no_rows_make_a_batch_with_the_right_columns():
    batch = rows_to_batch([], Schema.parse("a string, b array<bigint>"), "here")

    assert batch.num_rows == 0
    assert batch.schema.names == ["a", "b"]


@pytest.mark.parametrize("sentence", [None, "", " ", "a", " a  b ", "日本 語", "a\tb", "a\nb c"])
def test_split_leaves_out_empty_words(sentence):
    collector = TridentCollector()

    Split().execute(TridentTuple((sentence,), {"s": 0}), collector)

    assert collector.rows == [(word,) for word in (sentence or "").split(" ") if word]
