"""The newest version of each order in one table, every version in another."""

from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import AppendRows, TridentTopology, UpsertRows

FIELDS = "id string, version bigint, status string"
CHANGES = [
    ("o-1", 1, "new"),
    ("o-2", 1, "new"),
    ("o-1", 3, "sent"),
    ("o-1", 2, "paid"),  # comes late, and does not replace version 3
]

topology = TridentTopology("orders")
changes = topology.new_stream("changes", FixedBatchSpout(FIELDS, 2, CHANGES))

orders = changes.partition_persist(
    SQLiteState.opaque("orders.db", table="orders"), UpsertRows(["id"], order_by="version")
)
history = changes.partition_persist(SQLiteState.opaque("orders.db", table="history"), AppendRows())
