"""Each order once, however often the shop sends it; the ids of an hour are remembered."""

from datetime import timedelta

from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Columns, Count, Sum, TridentTopology

ORDERS = [("o-1", "tea", 3), ("o-2", "rope", 12), ("o-1", "tea", 3), ("o-3", "tea", 5)]

topology = TridentTopology("orders")
orders = topology.new_stream("orders", FixedBatchSpout(["id", "item", "amount"], 2, ORDERS))

once = orders.deduplicate("id", within=timedelta(hours=1))  # without `within`: for ever

sales = once.group_by("item").persistent_aggregate(
    SQLiteState.opaque("sales.db", table="sales"),
    Columns(orders=Count(), revenue=("amount", Sum())),
)
