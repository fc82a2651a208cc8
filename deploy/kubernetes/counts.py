"""Words of the files under /data, counted into PostgreSQL."""

from waterspout.spouts.files import FileSpout
from waterspout.state.postgres import PostgresState
from waterspout.trident import Count, Split, TridentTopology

topology = TridentTopology("counts")
words = topology.new_stream("lines", FileSpout("/data")).each("value", Split(), "word")
counts = PostgresState.opaque("postgresql://counts:${PG_PASSWORD}@postgres/counts", table="words")
words.group_by("word").persistent_aggregate(counts, Count(), "count")
