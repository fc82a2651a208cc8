"""Which fields and types a spout's stream has, and what is refused when it is built."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest

from tests.trident.spout_kinds import Batches, Messages, Partitioned, Whole, fill, forget
from waterspout import Spout
from waterspout.errors import NotPicklableError, TopologyError
from waterspout.spouts import DataFrameSpout, EmittingSpout
from waterspout.spouts.files import FileSpout
from waterspout.spouts.lines import LinesSpout
from waterspout.spouts.rabbitmq import RabbitMQSpout
from waterspout.spouts.rate import RateSpout
from waterspout.testing import FeederSpout, FixedBatchSpout
from waterspout.topology import Direct
from waterspout.transactional import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from waterspout.trident import TridentTopology


@pytest.fixture(autouse=True)
def _from_the_beginning():
    forget()
    fill("ab")


def schema_of(spout, out=None) -> str:
    topology = TridentTopology("types")
    topology.new_stream("words", spout, out=out)
    (source,) = topology.plan().sources.values()
    return str(source.schema)


MIXED = [["a", 1, None], ["b", 2.5, True]]


class Told(FeederSpout):
    schema = "word string, n bigint"


def feeder(*fields):
    return FeederSpout(fields)


@pytest.mark.parametrize(
    ("make", "out", "expected"),
    [
        (lambda: feeder("word", "n"), "word string, n int", "word string, n int"),
        (lambda: feeder("word", "n"), "text string, number int", "text string, number int"),
        (lambda: feeder("word string", "n int"), None, "word string, n int"),
        (lambda: feeder("word string, n int"), None, "word string, n int"),
        (lambda: feeder("word string", "n int"), "word, n bigint", "word string, n bigint"),
        (lambda: Told(["word", "n"]), None, "word string, n bigint"),
        (lambda: Told(["word", "n"]), "word string, n double", "word string, n double"),
        (Partitioned, None, "word string"),
        (Whole, "text string", "text string"),
        (Batches, None, "word string"),
        (Batches, "word binary", "word binary"),
        (
            lambda: MemoryTransactionalSpout([[MIXED[0]], [MIXED[1]]], ["w", "n", "b"], 1),
            None,
            "w string, n double, b boolean",
        ),
        (lambda: OpaqueMemoryTransactionalSpout([[1]], "n", 1), None, "n bigint"),
        (lambda: OpaqueMemoryTransactionalSpout([[1]], "n", 1), "n int", "n int"),
        (lambda: FixedBatchSpout("n", 1, [1]), "n bigint", "n bigint"),
        (lambda: FixedBatchSpout("n", 1, [1]), "n", "n bigint"),
        (lambda: DataFrameSpout.of("id bigint", min, max), None, "id bigint"),
        (lambda: RabbitMQSpout("amqp://here", "q"), None, "body string"),
        (lambda: RabbitMQSpout("amqp://here", "q", fields="text"), None, "text string"),
    ],
)  # fmt: skip
def test_types_are_those_written_or_declared_or_known(make, out, expected):
    assert schema_of(make(), out) == expected


class NoFields(EmittingSpout):
    def emit_batch(self, batch_id, collector):
        """Nothing."""


class Several(FeederSpout):
    streams: ClassVar = {"other": ("x",)}


class OnlyOther(Spout):
    streams: ClassVar = {"other": ("x",)}

    def next_tuple(self):
        """Nothing."""


class Directed(Spout):
    streams: ClassVar = {"default": Direct("x")}

    def next_tuple(self):
        """Nothing."""


class AttemptOnly(Partitioned):
    output_fields = ("tx",)


@pytest.mark.parametrize(
    ("make", "out", "message"),
    [
        (lambda: feeder("word"), None, r"type of its output field 'word'.*out=\"word string\""),
        (lambda: feeder("word"), "word", "does not know the type"),
        (lambda: feeder("word"), "word string, n int", "out has 2 fields.*emits 1: word"),
        (lambda: feeder("word", "n"), "a string, A string", "duplicate field 'A'"),
        (lambda: Told(["word"]), None, "its schema has 2 fields"),
        (lambda: Partitioned(), "tx string, word string", "out has 2 fields.*emits 1: word"),
        (lambda: MemoryTransactionalSpout([[]], "n", 1), None, "does not know the type"),
        (lambda: MemoryTransactionalSpout([["a", 1]], "n", 1), None, "does not know the type"),
        (lambda: RabbitMQSpout("amqp://x", "q", decode=print), None, "does not know the type"),
        (lambda: feeder("word"), "word strin", "unknown type 'strin'"),
        (NoFields, None, "does not say which fields it has"),
        (lambda: Several(["a"]), "a string", "declares 'other'; a Trident stream has the default"),
        (OnlyOther, "a string", "declares 'other'"),
        (Directed, "a string", "declares a direct stream"),
        (AttemptOnly, None, "its first field holds the transaction attempt"),
        (lambda: Messages, None, "got the class Messages; give an object of it"),
        (lambda: "words", None, "needs a spout; got 'words'. It takes a BatchSpout"),
        (lambda: RateSpout(1), "a bigint, b timestamp", "knows its fields: leave out away"),
        (lambda: RateSpout(1), "value bigint", "knows its fields"),
        (lambda: DataFrameSpout.of("id", min, max), None, "type of its output field 'id'"),
        (lambda: DataFrameSpout.of("id int", min, max, kind="opaque"), None, "SpoutKind.OPAQUE"),
        (lambda: FixedBatchSpout("n bigint", 1, [1, 1.5]), None, "gave 1.5 for field 'n'"),
        (lambda: FixedBatchSpout("n bigint", 1, ["1"]), None, "gave '1' for field 'n'"),
        (lambda: FixedBatchSpout("s string", 1, [1]), None, "gave 1 for field 's'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_when_the_topology_is_built(make, out, message):
    with pytest.raises(TopologyError, match=f"(?s){message}"):
        schema_of(make(), out)


def test_a_log_of_a_core_topology_is_refused(tmp_path):
    with pytest.raises(TopologyError, match="is a LogSpout, which core topologies read"):
        schema_of(LinesSpout(tmp_path), "line string")


@pytest.mark.parametrize("spout", [Messages, Partitioned, Batches])
def test_one_object_is_not_the_spout_of_two_streams(spout):
    topology, one = TridentTopology("twice"), spout()
    topology.new_stream("words", one, out="word string")

    with pytest.raises(TopologyError, match="is that of 'words' too"):
        topology.new_stream("others", one, out="word string")


def test_a_recipe_may_be_used_twice(tmp_path):
    topology, files = TridentTopology("twice"), FileSpout(tmp_path)

    topology.new_stream("one", files)
    topology.new_stream("two", files)

    assert list(topology.plan().sources) == ["one", "two"]


@pytest.mark.parametrize("spout", [Messages, Partitioned])
def test_a_spout_that_cannot_travel_is_refused_with_the_attribute(spout):
    made = spout()
    made.lock = threading.Lock()

    with pytest.raises(NotPicklableError, match="lock"):
        schema_of(made, "word string")
