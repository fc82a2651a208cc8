"""Sales by city: how many."""

from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Columns, Count, TridentTopology

topology = TridentTopology("sales")
source = FileSpout("sales", "json", "city string, item string, amount bigint")
sales = topology.new_stream("sales", source)
sales.group_by("city").persistent_aggregate(
    SQLiteState.opaque("sales.db", table="cities"), Columns(n=Count())
)
