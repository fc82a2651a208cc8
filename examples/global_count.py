"""Count all orders and their amount; pass on what each batch makes of it.

waterspout run examples/global_count.py --until-idle

Without group_by a state holds one value. Its new values are a stream like any other, here
kept in a second table: the running totals, one row per batch.
"""

from waterspout import submit
from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, Sum, TridentTopology

ORDERS = [("tea", 3), ("rope", 12), ("lamp", 40), ("tea", 5), ("map", 9), ("rope", 8), ("tea", 4)]
DATABASE = "orders.db"

topology = TridentTopology("global_count")
orders = topology.new_stream("orders", FixedBatchSpout(["item", "amount"], 3, ORDERS))

number = orders.persistent_aggregate(SQLiteState.opaque(DATABASE, "orders"), Count(), "orders")
revenue = orders.persistent_aggregate(
    SQLiteState.opaque(DATABASE, "revenue"), "amount", Sum(), "revenue"
)
history = (
    revenue.new_values_stream()
    .group_by("revenue")
    .persistent_aggregate(SQLiteState.opaque(DATABASE, "history"), Count(), "times")
)

if __name__ == "__main__":
    run = submit(topology)
    run.process_all_available()
    run.stop()
    print("orders:", number.get(), "revenue:", revenue.get())
