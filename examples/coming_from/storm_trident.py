"""Trident's word count, with a query of the counts."""

from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Count, FilterNull, MapGet, Split, Sum, TridentTopology

sentences = FixedBatchSpout("sentence", 3, ["the cow jumped over the moon", "the moon is far"])

topology = TridentTopology("word-count")

counts = (
    topology.new_stream("sentences", sentences)
    .each("sentence", Split(), "word")
    .group_by("word")
    .persistent_aggregate(MemoryMapState(), Count(), "count")
)

(
    topology.new_drpc_stream("words")
    .each("args", Split(), "word")
    .group_by("word")
    .state_query(counts, "word", MapGet(), "count")
    .each("count", FilterNull())
    .aggregate("count", Sum(), "sum")
)
