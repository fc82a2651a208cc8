"""What a builder refuses, in which words, and what it makes of the rest."""

from __future__ import annotations

import re
import threading
from typing import Any, ClassVar

import pytest

from waterspout.errors import ConfigError, NotPicklableError, TopologyError
from waterspout.testing import FeederSpout
from waterspout.topology import BasicBolt, Bolt, CustomGrouping, Direct, Spout, TopologyBuilder
from waterspout.topology._component import LogSpout


class Words(Spout):
    output_fields = ("word", "number")

    def next_tuple(self):
        """Nothing to say."""


class Route(Bolt):
    streams: ClassVar = {
        "default": ("order",),
        "rejected": ("order", "why"),
        "to": Direct("order"),
    }

    def execute(self, tuple):
        self.collector.ack(tuple)


class Sink(BasicBolt):
    def execute(self, tuple, collector):
        """Keep nothing."""


class Everything(LogSpout):
    output_fields = ("line",)

    def partitions(self):
        return [0]

    def end(self, partition):
        return 0

    def read(self, partition, start, end):
        return []


class First(CustomGrouping):
    def choose_tasks(self, task_id, values):
        return [1]


@pytest.fixture
def builder() -> TopologyBuilder:
    made = TopologyBuilder()
    made.set_spout("words", Words())
    return made


def refused(error: type[Exception], text: str) -> Any:
    return pytest.raises(error, match=f"^{re.escape(text)}$")


def test_an_id_is_declared_once(builder):
    builder.set_bolt("sink", Sink())

    with refused(TopologyError, "a spout has already been declared for id 'words'"):
        builder.set_bolt("words", Sink())
    with refused(TopologyError, "a bolt has already been declared for id 'sink'"):
        builder.set_spout("sink", Words())


def test_ids_with_two_underscores_are_reserved(builder):
    with refused(TopologyError, "'__acker' is not a valid component id: '__' is reserved"):
        builder.set_bolt("__acker", Sink())
    with refused(TopologyError, "'__words' is not a valid component id: '__' is reserved"):
        builder.set_spout("__words", Words())


@pytest.mark.parametrize("id", ["", None, 7])
def test_an_id_is_a_string(builder, id):
    with refused(TopologyError, f"a component id is a non-empty string, not {id!r}"):
        builder.set_bolt(id, Sink())


@pytest.mark.parametrize("parallelism", [0, -1, 1.5, "2", True, None])
def test_parallelism_is_positive(builder, parallelism):
    with refused(
        TopologyError,
        f"the parallelism of bolt 'sink' must be a positive integer, not {parallelism!r}",
    ):
        builder.set_bolt("sink", Sink(), parallelism)


def test_parallelism_of_a_spout_is_positive():
    with refused(TopologyError, "the parallelism of spout 's' must be a positive integer, not 0"):
        TopologyBuilder().set_spout("s", Words(), 0)


def test_the_number_of_tasks_is_positive(builder):
    with refused(TopologyError, "the number of tasks of 'sink' must be a positive integer, not 0"):
        builder.set_bolt("sink", Sink()).set_num_tasks(0)


def test_a_refused_component_leaves_its_id_free(builder):
    with pytest.raises(TopologyError):
        builder.set_bolt("sink", Sink(), 0)

    builder.set_bolt("sink", Sink()).shuffle_grouping("words")

    assert list(builder.create_topology("t").components) == ["words", "sink"]


def test_a_class_is_no_component(builder):
    with refused(
        TopologyError,
        "spout 's' is the class Words; give an object of a class derived from Spout",
    ):
        builder.set_spout("s", Words)
    with refused(
        TopologyError,
        "bolt 'b' is the class Sink; give an object of a class derived from Bolt or BasicBolt",
    ):
        builder.set_bolt("b", Sink)


def test_a_spout_is_no_bolt_and_the_other_way_round(builder):
    with refused(
        TopologyError,
        "bolt 'b' is a Words; give an object of a class derived from Bolt or BasicBolt",
    ):
        builder.set_bolt("b", Words())
    with refused(
        TopologyError, "spout 's' is a Sink; give an object of a class derived from Spout"
    ):
        builder.set_spout("s", Sink())


def test_a_spout_takes_no_stream(builder):
    with refused(TopologyError, "'other' is a spout: it takes no stream (shuffle_grouping)"):
        builder.set_spout("other", Words()).shuffle_grouping("words")


def test_a_misspelt_grouping_of_a_bolt_is_not_called_a_spout(builder):
    declarer = builder.set_bolt("sink", Sink())

    with pytest.raises((AttributeError, TopologyError)) as caught:
        declarer.field_grouping("words", "word")
    assert "spout" not in str(caught.value)
    assert "field_grouping" in str(caught.value)


def test_a_topology_has_a_spout():
    with refused(TopologyError, "a topology needs at least one spout: call set_spout"):
        TopologyBuilder().create_topology("t")


def test_a_bolt_takes_a_stream(builder):
    builder.set_bolt("sink", Sink())

    with refused(
        TopologyError,
        "bolt 'sink' takes no stream; add a grouping, such as .shuffle_grouping(source)",
    ):
        builder.create_topology("t")


def created(builder: TopologyBuilder) -> None:
    builder.create_topology("t")


def test_an_unknown_component_is_named_with_the_closest_one(builder):
    builder.set_bolt("sink", Sink()).shuffle_grouping("wrods")

    with refused(
        TopologyError,
        "bolt 'sink' subscribes to 'wrods', but there is no such component; did you mean 'words'?",
    ):
        created(builder)


def test_an_unknown_component_that_is_like_no_other(builder):
    builder.set_bolt("sink", Sink()).shuffle_grouping("zzz")

    with refused(TopologyError, "bolt 'sink' subscribes to 'zzz', but there is no such component"):
        created(builder)


def test_an_unknown_stream_is_named_with_those_there_are(builder):
    builder.set_bolt("route", Route()).shuffle_grouping("words")
    builder.set_bolt("sink", Sink()).shuffle_grouping("route", "rejcted")

    with refused(
        TopologyError,
        "bolt 'sink' subscribes to stream 'rejcted' of 'route', which declares 'default', "
        "'rejected', 'to'; did you mean 'rejected'?",
    ):
        created(builder)


def test_a_component_without_streams_gives_none(builder):
    builder.set_bolt("end", Sink()).shuffle_grouping("words")
    builder.set_bolt("sink", Sink()).shuffle_grouping("end")

    with refused(
        TopologyError,
        "bolt 'sink' subscribes to stream 'default' of 'end', which declares no stream at all; "
        'write output_fields = ("word",) in its class',
    ):
        created(builder)


@pytest.mark.parametrize("grouping", ["fields_grouping", "partial_key_grouping"])
def test_an_unknown_field_is_named_with_the_closest_one(builder, grouping):
    getattr(builder.set_bolt("sink", Sink()), grouping)("words", "wrod")

    with refused(
        TopologyError,
        "bolt 'sink' groups stream 'default' of 'words' by 'wrod', but its fields are word, "
        "number; did you mean 'word'?",
    ):
        created(builder)


def test_grouping_by_no_field_is_refused(builder):
    with refused(TopologyError, "bolt 'sink': name the fields to group by"):
        builder.set_bolt("sink", Sink()).fields_grouping("words")


def test_grouping_by_one_field_twice_is_refused(builder):
    with refused(TopologyError, "duplicate field 'word' in word, word"):
        builder.set_bolt("sink", Sink()).fields_grouping("words", "word", "word")


def test_a_stream_that_is_not_direct_takes_no_direct_grouping(builder):
    builder.set_bolt("sink", Sink()).direct_grouping("words")

    with refused(
        TopologyError,
        "bolt 'sink' takes stream 'default' of 'words' by direct grouping, but it is not a "
        "direct stream; declare its fields with Direct(...)",
    ):
        created(builder)


def test_a_direct_stream_takes_no_other_grouping(builder):
    builder.set_bolt("route", Route()).shuffle_grouping("words")
    builder.set_bolt("sink", Sink()).fields_grouping("route", "order", stream="to")

    with refused(
        TopologyError,
        "bolt 'sink' takes the direct stream 'to' of 'route' by fields(order) grouping; "
        "use direct_grouping",
    ):
        created(builder)


@pytest.mark.parametrize("source", [None, 5, Words()])
def test_a_source_is_named_by_its_id(builder, source):
    with pytest.raises(TopologyError, match="bolt 'sink': a component id is a string, not"):
        builder.set_bolt("sink", Sink()).shuffle_grouping(source)


def test_a_stream_is_named_by_its_id(builder):
    with refused(TopologyError, "bolt 'sink': a stream id is a string, not 3"):
        builder.set_bolt("sink", Sink()).shuffle_grouping("words", 3)


def test_a_custom_grouping_has_both_methods(builder):
    with refused(TopologyError, "the custom grouping of bolt 'sink' has no method prepare"):
        builder.set_bolt("sink", Sink()).custom_grouping("words", object())


def declaring(output_fields: Any = None, streams: Any = None) -> TopologyBuilder:
    spout = Words()
    spout.output_fields, spout.streams = output_fields, streams
    builder = TopologyBuilder()
    builder.set_spout("s", spout)
    return builder


@pytest.mark.parametrize(
    ("output_fields", "streams", "text"),
    [
        (("a", "a"), None, "'s': stream 'default': duplicate field 'a' in a, a"),
        (("a", ""), None, "'s': stream 'default': a field's name is a non-empty string, not ''"),
        (("a", 5), None, "'s': stream 'default': a field's name is a non-empty string, not 5"),
        (None, {"__x": ("a",)}, "'s': '__x' is not a valid stream id: '__' is reserved"),
        (None, {"": ("a",)}, "'s': a stream id is a non-empty string, not ''"),
        (None, {4: ("a",)}, "'s': a stream id is a non-empty string, not 4"),
        (
            ("a",),
            {"default": ("a",)},
            "'s': stream 'default' is declared both by output_fields and by streams",
        ),
    ],
)
def test_streams_that_do_not_fit_are_refused(output_fields, streams, text):
    with refused(TopologyError, text):
        created(declaring(output_fields, streams))


@pytest.mark.parametrize("fields", [5, [None], {"a", "b"}])
def test_fields_that_have_no_order_or_no_names_are_refused(fields):
    with pytest.raises(TopologyError, match="stream 'default'"):
        created(declaring(fields))


def test_one_field_may_be_given_as_a_string():
    topology = declaring("word").create_topology("t")

    assert topology.fields["s"] == {"default": ("word",)}


def test_several_streams_some_direct():
    topology = declaring(("a",), {"x": "one", "d": Direct("p", "q")}).create_topology("t")

    streams = topology.components["s"].streams
    assert {id: (tuple(s.fields), s.direct) for id, s in streams.items()} == {
        "default": (("a",), False),
        "x": (("one",), False),
        "d": (("p", "q"), True),
    }


def test_a_log_has_one_stream_the_default_one():
    log = Everything()
    log.output_fields, log.streams = None, {"lines": ("line",)}

    with refused(
        TopologyError,
        "spout 'log' is an Everything: a LogSpout has one stream; declare its fields as "
        "output_fields",
    ):
        TopologyBuilder().set_spout("log", log)


def test_a_bad_value_of_a_known_option_is_refused_with_the_component(builder):
    with pytest.raises(ConfigError, match=r"^'sink': .*topology\.tick\.tuple\.freq\.secs"):
        builder.set_bolt("sink", Sink()).add_configuration("topology.tick.tuple.freq.secs", -1)
    with pytest.raises(ConfigError, match=r"^'other': .*topology\.max\.spout\.pending"):
        builder.set_spout("other", Words()).set_max_spout_pending("many")


def test_a_bad_value_on_the_class_is_refused_too(builder):
    class Hasty(Sink):
        configuration: ClassVar = {"topology.tick.tuple.freq.secs": "often"}

    with pytest.raises(ConfigError, match=r"^'hasty': "):
        builder.set_bolt("hasty", Hasty())


@pytest.mark.parametrize("key", ["", None, 4])
def test_a_configuration_key_is_a_string(builder, key):
    with refused(ConfigError, f"'sink': a configuration key is a string, not {key!r}"):
        builder.set_bolt("sink", Sink()).add_configuration(key, 1)


def test_own_keys_are_kept(builder):
    declarer = builder.set_bolt("sink", Sink()).shuffle_grouping("words")
    declarer.add_configurations({"my.limit": 5, "topology.tick.tuple.freq.secs": 2})

    spec = builder.create_topology("t").components["sink"]

    assert spec.configuration == {"my.limit": 5, "topology.tick.tuple.freq.secs": 2}


def test_an_option_by_its_python_name_works_or_is_refused(builder):
    """Silently ignored it must not be."""
    try:
        builder.set_spout("s", Words()).add_configuration("max_spout_pending", 1)
    except ConfigError:
        return
    spec = builder.create_topology("t").components["s"]
    assert spec.configuration["topology.max.spout.pending"] == 1


def test_what_cannot_be_pickled_is_named_with_its_attribute(builder):
    bolt = Sink()
    bolt.name, bolt.connection = "n", threading.Lock()
    builder.set_bolt("sink", bolt).shuffle_grouping("words")

    with pytest.raises(NotPicklableError) as caught:
        created(builder)
    assert (caught.value.component, caught.value.attribute) == ("bolt 'sink'", "connection")
    assert "Open connections, locks and files in prepare()" in str(caught.value)


def test_a_spout_that_cannot_be_pickled_is_named():
    spout = Words()
    spout.lock = threading.Lock()
    builder = TopologyBuilder()
    builder.set_spout("s", spout)

    with pytest.raises(NotPicklableError, match=r"^spout 's', attribute 'lock' cannot be pickled"):
        created(builder)


def test_a_custom_grouping_that_cannot_be_pickled_is_named(builder):
    grouping = First()
    grouping.lock = threading.Lock()

    with pytest.raises(
        NotPicklableError, match=r"^the custom grouping of bolt 'sink', attribute 'lock'"
    ):
        builder.set_bolt("sink", Sink()).custom_grouping("words", grouping)


def test_tasks_are_numbered_in_the_order_of_declaration():
    builder = TopologyBuilder()
    builder.set_bolt("late", Sink(), 2).shuffle_grouping("words")
    builder.set_spout("words", Words(), 3)
    builder.set_bolt("more", Sink()).set_num_tasks(2).shuffle_grouping("words")

    topology = builder.create_topology("t")

    assert topology.tasks == {"late": (1, 2), "words": (3, 4, 5), "more": (6, 7)}
    assert topology.component_of[4] == "words"


def test_a_context_knows_the_topology_around_a_task(builder):
    builder.set_bolt("sink", Sink(), 3).shuffle_grouping("words")
    context = builder.create_topology("t").context(3)

    assert context.topology_name == "t"
    assert (context.this_component_id, context.this_task_id, context.this_task_index) == (
        "sink",
        3,
        1,
    )
    assert context.component_tasks("sink") == (2, 3, 4)
    assert context.component_id(1) == "words"
    assert context.component_output_fields("words") == ("word", "number")
    with pytest.raises(KeyError, match="no task 9 in topology 't'"):
        context.component_id(9)


def test_cycles_and_loops_are_allowed(builder):
    builder.set_bolt("a", Route()).shuffle_grouping("words").shuffle_grouping("b")
    builder.set_bolt("b", Route()).shuffle_grouping("a").shuffle_grouping("b", "rejected")

    assert [spec.id for spec in builder.create_topology("t").bolts] == ["a", "b"]


def test_one_builder_makes_several_topologies(builder):
    first = builder.create_topology("one")
    builder.set_bolt("sink", Sink()).shuffle_grouping("words")
    second = builder.create_topology("two")

    assert (list(first.components), list(second.components)) == (["words"], ["words", "sink"])


def test_a_feeder_shows_the_way(builder):
    builder.set_spout("feeder", FeederSpout(["a", "b"]))

    assert builder.create_topology("t").fields["feeder"] == {"default": ("a", "b")}


@pytest.mark.parametrize("name", ["", "a/b", ".."])
def test_a_topology_has_a_usable_name(builder, name):
    with pytest.raises((TopologyError, ConfigError)):
        builder.create_topology(name)
