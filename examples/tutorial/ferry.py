"""Count tickets and money by route, exactly once."""

from pathlib import Path

from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Columns, Count, Sum, TridentTopology

FOLDER = Path(__file__).parent / "tickets"
FIELDS = "id string, route string, sold timestamp, fare bigint"

topology = TridentTopology("ferry")

tickets = topology.new_stream("tickets", FileSpout(FOLDER, "json", FIELDS, max_files=1))

routes = tickets.group_by("route").persistent_aggregate(
    SQLiteState.opaque("ferry.db", table="routes"),
    Columns(tickets=Count(), income=("fare", Sum())),
)
