"""What newcomers write who know Storm, Trident or PySpark: accepted, or refused with the remedy."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from waterspout import BasicBolt, Bolt, Config, Fields, Spout, TopologyBuilder, submit
from waterspout._config import as_config
from waterspout._storm_keys import meaningless
from waterspout.errors import ConfigError, TopologyError
from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.state import MemoryMapState
from waterspout.testing import FeederSpout, run_in_process
from waterspout.trident import (
    Average,
    Columns,
    Count,
    Filter,
    Function,
    Max,
    MinBy,
    Negate,
    Stream,
    Sum,
    TridentTopology,
    TridentTuple,
    aggregator,
    arrow_function,
    combiner,
    query,
    reducer,
    updater,
)


class Words(Spout):
    output_fields = "word"

    def next_tuple(self) -> None: ...


class Loud(BasicBolt):
    output_fields = "word"

    def execute(self, tuple: Any, collector: Any) -> None: ...


def rows() -> Stream:
    spout = FixedBatchSpout("a string, b bigint", 10, [("x", 1), ("x", 2), ("y", 1)])
    return TridentTopology("habits").new_stream("rows", spout)


def words() -> TopologyBuilder:
    builder = TopologyBuilder()
    builder.set_spout("words", Words())
    return builder


@pytest.mark.parametrize(
    "given",
    [("a", "b"), (["a", "b"],), (("a", "b"),), ("a, b",), ("a,b",), (Fields("a", "b"),)],
)
def test_fields_are_taken_in_every_form_that_people_write(given):
    assert rows().group_by(*given).group_fields == ("a", "b")
    assert rows().project(*given).fields == ("a", "b")
    assert rows().partition_by(*given).fields == ("a", "b")


@pytest.mark.parametrize("given", [(1,), (None,), (lambda row: row["a"],), (["a"], "b")])
def test_what_names_no_fields_is_refused(given):
    with pytest.raises(TopologyError, match=r"fields are names, 'a' or \['a', 'b'\], not "):
        rows().group_by(*given)


@pytest.mark.parametrize(
    "out",
    [
        "s string, n bigint",
        ["s string", "n bigint"],
        {"s": "string", "n": "bigint"},
        {"s": str, "n": int},
        StructType([StructField("s", StringType()), StructField("n", LongType())]),
    ],
)
def test_output_fields_are_taken_in_every_form_that_people_write(out):
    made = rows().map(lambda a, b: (a, b), out=out)

    assert str(made.schema) == "s string, n bigint"


def test_a_list_of_pairs_is_refused_with_the_remedy():
    with pytest.raises(TopologyError, match=r'cannot read the fields .*; write "a string, b bigi'):
        rows().each("a", str.upper, out=[("c", "string")])


def test_a_class_of_pythons_own_is_a_function_with_a_type():
    assert str(rows().each("b", str, out="text").schema) == "a string, b bigint, text string"


class Twice(Function):
    def execute(self, tuple): ...  # type: ignore[no-untyped-def, override]


class Odd(Filter):
    def is_keep(self, tuple, collector): ...  # type: ignore[no-untyped-def, override]


MISFITS = {
    "each": (
        lambda s: s.each("a", lambda a, b: a, "c string"),
        "each(<lambda>) is called with the value of a, but takes (a, b)",
    ),
    "map": (
        lambda s: s.map(lambda row: row["a"], "c string"),
        "map(<lambda>) is called with the values of a, b, one argument each, but takes (row)",
    ),
    "flat_map": (
        lambda s: s.flat_map(lambda a: [a], "c string"),
        "flat_map(<lambda>) is called with the values of a, b, one argument each, but takes (a)",
    ),
    "filter": (
        lambda s: s.filter(lambda row: row["b"] > 1),
        "each(<lambda>) is called with the values of a, b, one argument each, but takes (row)",
    ),
    "filter that is no predicate": (
        lambda s: s.each("a", named),
        "each(named) returns string, so it is no predicate: without `out` an operation is a "
        'filter; write out="name type" to make it a function',
    ),
    "peek": (
        lambda s: s.peek(lambda row: None),
        "peek(<lambda>) is called with the values of a, b, one argument each, but takes (row)",
    ),
    "arrow": (
        lambda s: s.each(["a", "b"], arrow_function(lambda a, b: a), "c string"),
        "each(<lambda>) is called with one Arrow batch, but takes (a, b)",
    ),
    "transform": (
        lambda s: s.transform(lambda frame, batch: frame),
        "transform(<lambda>) is called with one DataFrame, but takes (frame, batch)",
    ),
    "comparator": (
        lambda s: s.min_by("b", lambda x, y: x - y),
        "the key of MinBy is called with one value, to be compared by its result, but takes (x, y)",
    ),
    "reducer": (
        lambda s: s.aggregate("b", reducer(init=0)(lambda total: total), "n bigint"),
        "aggregate(<lambda>) is called with the value so far and the value of b, but takes (total)",
    ),
    "combiner": (
        lambda s: s.aggregate("b", combiner(int, lambda x: x, 0, "bigint", name="sums"), "n"),
        "aggregate(sums): its combine is called with two values, but takes (x)",
    ),
    "a column's combiner": (
        lambda s: s.aggregate(
            Columns(n=Count(), m=("b", combiner(lambda: 1, max, 0, "bigint", name="top")))
        ),
        "aggregate(Columns): column 'm': its init is called with the value of b, but takes ()",
    ),
    "aggregator": (
        lambda s: s.aggregate(aggregator(lambda a, b: 1), "n bigint"),
        "aggregate(<lambda>) is called with one list of tuples, but takes (a, b)",
    ),
    "query": (
        lambda s: s.state_query(
            s.topology.new_static_state(MemoryMapState()), "a", query(lambda state: []), "n int"
        ),
        "state_query(<lambda>) is called with a state and a list of tuples, but takes (state)",
    ),
    "updater": (
        lambda s: s.partition_persist(MemoryMapState(), updater(lambda state: None)),
        "partition_persist(<lambda>) is called with a state and a list of tuples, but takes "
        "(state)",
    ),
    "a method": (
        lambda s: s.each("a", Twice(), "c string"),
        "each(Twice): Twice.execute is called as execute(tuple, collector), but is written as def "
        "execute(self, tuple)",
    ),
    "a method of what is negated": (
        lambda s: s.filter("a", Negate(Odd())),
        "each(Negate): Odd.is_keep is called as is_keep(tuple), but is written as def "
        "is_keep(self, tuple, collector)",
    ),
}


def named(a: str) -> str:
    return a.upper()


@pytest.mark.parametrize("case", MISFITS)
def test_a_function_of_other_arguments_is_refused_when_the_stream_is_made(case):
    build, said = MISFITS[case]

    with pytest.raises(TopologyError) as caught:
        build(rows())

    assert str(caught.value) == said


def test_functions_with_defaults_stars_or_no_signature_are_taken():
    stream = rows()

    stream.each("a", lambda a, suffix="!": a + suffix, "c string")
    stream.map(lambda *values: values)
    stream.peek(print)
    stream.min_by("b", key=abs)
    assert stream.each(["a", "b"], dict.fromkeys, "d map<string,string>").fields == ("a", "b", "d")


class NoCollector(BasicBolt):
    def execute(self, tuple): ...  # type: ignore[no-untyped-def, override]


class WithCollector(Bolt):
    def execute(self, tuple, collector): ...  # type: ignore[no-untyped-def, override]


class ShortPrepare(Bolt):
    def prepare(self, conf, context): ...  # type: ignore[no-untyped-def, override]

    def execute(self, tuple): ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("bolt", "said"),
    [
        (NoCollector(), "NoCollector.execute is called as execute(tuple, collector), but is"),
        (WithCollector(), "WithCollector.execute is called as execute(tuple), but is written as"),
        (ShortPrepare(), "ShortPrepare.prepare is called as prepare(conf, context, collector),"),
    ],
)
def test_a_bolt_with_a_method_of_other_arguments_is_refused_when_it_is_set(bolt, said):
    with pytest.raises(TopologyError) as caught:
        words().set_bolt("b", bolt)

    assert f"bolt 'b': {said}" in str(caught.value)


def test_fields_declared_as_in_java_are_refused_with_the_remedy():
    class Javanese(Loud):
        def declareOutputFields(self, declarer): ...  # type: ignore[no-untyped-def]

    builder = words()
    builder.set_bolt("loud", Javanese()).shuffle_grouping("words")

    with pytest.raises(TopologyError, match=r"'loud': Javanese declares .*; write output_fields ="):
        builder.create_topology("t")


@pytest.mark.parametrize(
    ("of", "name", "said"),
    [
        (rows, "select", 'Stream has no \'select\'; project("a", "b") keeps some fields'),
        (rows, "groupBy", "Stream has no 'groupBy'; it is written group_by"),
        (rows, "withColumn", 'each("a", function, out="b string") adds a field'),
        (rows, "dropDuplicates", "deduplicate(keys) lets each key pass once"),
        (rows, "grup_by", "did you mean group_by?"),
        (lambda: rows().group_by("a"), "count", 'persistent_aggregate(factory, Count(), "n")'),
        (lambda: rows().topology, "newStream", "TridentTopology has no 'newStream'; it is written"),
        (words, "setBolt", "TopologyBuilder has no 'setBolt'; it is written set_bolt"),
        (lambda: words().set_bolt("b", Loud()), "shuffleGrouping", "written shuffle_grouping"),
        (Config, "setNumWorkers", "it is frozen: Config(max_spout_pending=4)"),
        (lambda: TridentTuple(("x",), {"a": 0}), "getStringByField", 'write tuple["field"]'),
    ],
)
def test_a_method_that_others_have_is_refused_with_ours(of, name, said):
    with pytest.raises(AttributeError) as caught:
        getattr(of(), name)

    assert said in str(caught.value)


def test_a_name_that_nobody_has_is_only_missing():
    with pytest.raises(AttributeError, match=r"^Stream has no 'xyzzy'$"):
        _ = rows().xyzzy
    assert not hasattr(rows(), "_repr_html_")


@pytest.mark.parametrize("kind", [Sum, Max, Average, Count])
def test_an_aggregator_takes_no_field(kind):
    with pytest.raises(TopologyError, match=rf"write aggregate\('b', {kind.__name__}\(\), \"name"):
        kind("b")


def test_aggregators_still_travel():
    for made in (Sum(), Max(), Average(), Count(), MinBy("b")):
        assert type(pickle.loads(pickle.dumps(made))) is type(made)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (MemoryMapState, "the class MemoryMapState is not a StateFactory; a state is made by a"),
        (MemoryMapState.opaque, "MemoryMapState.opaque is not a StateFactory; call it: MemoryMap"),
        ("counts.db", "'counts.db' is not a StateFactory; a state is made by a recipe, such as"),
        (Count(), "Count() is not a StateFactory"),
    ],
)
def test_what_is_no_recipe_of_a_state_is_refused_by_the_operation(factory, said):
    with pytest.raises(TopologyError) as caught:
        rows().group_by("a").persistent_aggregate(factory, Count(), "n")

    assert f"persistent_aggregate: {said}" in str(caught.value)


def test_text_in_place_of_an_expression_is_refused_with_the_remedy():
    with pytest.raises(TopologyError, match=r"is written expr\('b > 1'\)"):
        rows().filter("b > 1")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (words, "not TopologyBuilder: call create_topology of the builder, and submit what it"),
        (rows, "not Stream: submit its topology"),
        (lambda: "t", r"not str: write submit\(topology, spark, config\)"),
        (lambda: None, "submit takes a topology, not NoneType"),
    ],
)
def test_what_is_no_topology_is_refused_with_the_remedy(given, said):
    with pytest.raises(TopologyError, match=said):
        submit(given(), replace=True)


def test_options_before_a_session_are_refused():
    with pytest.raises(ConfigError, match=r"submit\(topology, spark, config\)"):
        submit(words().create_topology("t"), Config(), Config())  # type: ignore[arg-type]


def test_what_is_no_session_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="runs on a SparkSession, not on a str"):
        submit(words().create_topology("t"), "local[2]", {"home": str(tmp_path)})


def test_options_are_taken_as_a_dict_wherever_a_config_is():
    assert as_config({"topology.max.spout.pending": 4}) == Config(max_spout_pending=4)
    assert as_config(None) == Config()
    assert "strict" not in rows().topology.explain({"strict": False})
    with pytest.raises(ConfigError, match="options are a mapping of keys, not 'ackers=1'"):
        as_config("ackers=1")  # type: ignore[arg-type]


def test_options_may_stand_in_place_of_the_session(tmp_path):
    # Refused for the option, so before a session is made.
    with pytest.raises(ConfigError, match="'ackers' is -1"):
        submit(words().create_topology("t"), {"ackers": -1})


def test_storm_s_options_without_meaning_are_passed_over_with_one_warning(caplog):
    with caplog.at_level(logging.WARNING, "waterspout"):
        made = Config.from_dict(
            {
                "topology.workers": 4,
                "topology.max.spout.pending": 7,
                "storm.zookeeper.servers": ["z1"],
                "topology.worker.childopts": "-Xmx1g",
                "topology.debug": True,
            }
        )

    assert made == Config(max_spout_pending=7)
    assert caplog.messages == [
        "options of Storm's that change nothing here: topology.workers, topology.worker.childopts "
        "(Spark's executors take the place of workers; they are set for Spark); "
        "storm.zookeeper.servers (name the ZooKeeper as transactional.zookeeper.servers, .port and "
        ".root); topology.debug (counts are exact, and told by Run.last_progress and Run.subscribe)"
    ]


def test_a_wrong_spelling_of_a_key_is_still_refused():
    with pytest.raises(ConfigError, match=r"unknown option 'topology.max.spout.pendin'"):
        Config.from_dict({"topology.max.spout.pendin": 4, "topology.workers": 2})
    with pytest.raises(ConfigError, match="there is no option 'num_workers': Spark's executors"):
        Config(num_workers=2)  # type: ignore[call-arg]


def test_no_option_of_ours_is_called_meaningless():
    assert [key for key in Config.known_keys() if meaningless(key) is not None] == []


def test_the_test_kit_takes_a_dict_too():
    builder, feeder = TopologyBuilder(), FeederSpout("word")
    builder.set_spout("words", feeder)

    run_in_process(builder.create_topology("t"), {"ackers": 0})


class Emits(Bolt):
    """Emits in some way."""

    output_fields = "word"

    def __init__(self, emit: Any) -> None:
        self.emit = emit

    def execute(self, tuple: Any) -> None:
        self.emit(self.collector, tuple)


@pytest.mark.parametrize(
    ("emit", "said"),
    [
        (lambda out, t: out.emit(t, ["a"]), "not 'a'; the values come first: emit(values, anch"),
        (lambda out, t: out.emit(["a"], "x"), "a stream is named as emit(values, stream='x')"),
        (lambda out, t: out.emit("a"), "emit takes a list of values, not 'a'; for one value write"),
        (lambda out, t: t.getString(0), "Tuple has no 'getString'; write tuple[\"field\"]"),
    ],
)
def test_an_emit_as_storm_has_it_fails_with_ours_and_the_user_s_line(emit, said):
    builder, feeder = TopologyBuilder(), FeederSpout("word")
    builder.set_spout("words", feeder)
    builder.set_bolt("emits", Emits(emit)).shuffle_grouping("words")
    feeder.feed(["x"], msg_id=1)

    run = run_in_process(builder.create_topology("t"), {"max_replays": 0})

    (error,) = run.errors
    assert said in error.error
    assert error.error.endswith(f"({__file__}, line {emit.__code__.co_firstlineno}, in <lambda>)")
