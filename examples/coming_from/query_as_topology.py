"""The same as a topology: many batches in flight, dead letters, questions; no checkpoint."""

from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Columns, Count, Split, TridentTopology

DATABASE = "words.db"


def word_count(folder: str) -> TridentTopology:
    """Return the topology; `adopt(checkpoint, topology)` lets it go on where the query stopped."""
    topology = TridentTopology("words")
    (
        topology.new_stream("lines", FileSpout(folder))
        .each("value", Split(), "word")
        .group_by("word")
        .persistent_aggregate(SQLiteState.opaque(DATABASE, table="counts"), Columns(count=Count()))
    )
    return topology
