"""The same counts, of tickets that come through Kafka."""

import os

from waterspout.spouts.kafka import OpaqueKafkaSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Columns, Count, Sum, TridentTopology

BROKERS = os.environ.get("KAFKA", "127.0.0.1:9092")
FIELDS = "id string, route string, sold timestamp, fare bigint"

topology = TridentTopology("ferry_kafka")

tickets = topology.new_stream(
    "tickets", OpaqueKafkaSpout(BROKERS, "tickets", value_schema=FIELDS, columns=[])
)

routes = tickets.group_by("route").persistent_aggregate(
    SQLiteState.opaque("ferry_kafka.db", table="routes"),
    Columns(tickets=Count(), income=("fare", Sum())),
)
