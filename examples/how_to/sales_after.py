"""Sales by city: how many, and now what they brought in; and by item."""

from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Columns, Count, Sum, TridentTopology

topology = TridentTopology("sales")
source = FileSpout("sales", "json", "city string, item string, amount bigint")
sales = topology.new_stream("sales", source)
sales.group_by("city").persistent_aggregate(
    SQLiteState.opaque("sales.db", table="cities"),
    Columns(n=Count(), total=("amount", Sum())),  # a new column, behind the others
)
sales.group_by("item").persistent_aggregate(  # a new state
    SQLiteState.opaque("sales.db", table="items"), Columns(n=Count())
)
