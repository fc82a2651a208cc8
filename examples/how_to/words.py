"""A topology made by a function: a test gives it another source and another state."""

from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, Split, TridentTopology


def word_count(source=None, state=None):
    """Return the topology and its counts."""
    topology = TridentTopology("words")
    lines = topology.new_stream("lines", source or FileSpout("lines"), out="line string")
    words = lines.each("line", Split(), "word").filter("word", lambda word: word.isalpha())
    counts = words.group_by("word").persistent_aggregate(
        state or SQLiteState.opaque("words.db", table="counts"), Count(), "count"
    )
    return topology, counts


def topology():
    """What `waterspout run words.py` runs."""
    return word_count()[0]
