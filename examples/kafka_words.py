"""Words of a Kafka topic, counted exactly once, whichever broker is down.

KAFKA=localhost:9092 waterspout run examples/kafka_words.py
sqlite3 kafka_words.db 'SELECT word, count FROM words'

The topic is called sentences (or as SENTENCES says); its values are JSON, {"text": "to be or not"}.
Opaque: while a broker is away, batches go on with the partitions that are there.
"""

import os

from waterspout import submit
from waterspout.spouts.kafka import OpaqueKafkaSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, Split, TridentTopology

DATABASE = "kafka_words.db"

topology = TridentTopology("kafka_words")
spout = OpaqueKafkaSpout(
    os.environ.get("KAFKA", "localhost:9092"),
    os.environ.get("SENTENCES", "sentences"),
    value_schema="text string",
    columns=[],
)
counts = (
    topology.new_stream("sentences", spout)
    .each("text", Split(), out="word")
    .group_by("word")
    .persistent_aggregate(SQLiteState.opaque(DATABASE, "words"), Count(), out="count")
)

if __name__ == "__main__":
    run = submit(topology)
    run.process_all_available()
    run.stop()
    print(counts.get("to"))
