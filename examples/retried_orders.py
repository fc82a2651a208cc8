"""Orders that come twice, counted once.

waterspout run examples/retried_orders.py --until-idle
sqlite3 sales.db 'SELECT item, orders, revenue FROM sales'

A shop sends an order again if it got no answer, so some come twice: at once, or much later. Their
ids are kept in a table, and only the first order of an id goes on. With `within=` the ids would be
forgotten after a time.
"""

from waterspout import submit
from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Columns, Count, Sum, TridentTopology

ORDERS = [
    ("o-1", "tea", 3),
    ("o-2", "rope", 12),
    ("o-1", "tea", 3),  # again, in the same batch
    ("o-3", "tea", 5),
    ("o-2", "rope", 12),  # and in a later one
    ("o-4", "lamp", 40),
    ("o-3", "tea", 5),
]
DATABASE = "sales.db"

topology = TridentTopology("retried_orders")
orders = topology.new_stream("orders", FixedBatchSpout(["id", "item", "amount"], 3, ORDERS))
sales = (
    orders.deduplicate("id", SQLiteState.opaque(DATABASE, "orders_seen"))
    .group_by("item")
    .persistent_aggregate(
        SQLiteState.opaque(DATABASE, "sales"), Columns(orders=Count(), revenue=("amount", Sum()))
    )
)

if __name__ == "__main__":
    run = submit(topology)
    run.process_all_available()
    run.stop()
    for item in ("tea", "rope", "lamp"):
        print(item, *sales.get([item]))
