"""Send the tickets of all files to a Kafka topic of three partitions; make it if it is not there.

KAFKA=127.0.0.1:9092 python examples/tutorial/sell_to_kafka.py
"""

import json
import os
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

FOLDER = Path(__file__).parent / "tickets"
TOPIC = "tickets"


def make_topic(brokers):
    """Make the topic; one that is there is left as it is."""
    admin = AdminClient({"bootstrap.servers": brokers})
    made = admin.create_topics([NewTopic(TOPIC, 3, 1)])
    try:
        made[TOPIC].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def send(brokers, folder=FOLDER):
    """Send the tickets, and return how many they were."""
    # Idempotent: what the producer sends again after a lost answer is there once.
    settings = {"enable.idempotence": True, "log_level": 3}  # a new broker is busy at first
    producer = Producer({"bootstrap.servers": brokers, **settings})
    sent = 0
    for path in sorted(folder.glob("[0-9]*.json")):
        for line in path.read_text().splitlines():
            producer.produce(TOPIC, line, key=json.loads(line)["id"])
            sent += 1
    left = producer.flush(60)
    if left:
        raise TimeoutError(f"{left} tickets were not sent within 60 s")
    return sent


if __name__ == "__main__":
    brokers = os.environ.get("KAFKA", "127.0.0.1:9092")
    make_topic(brokers)
    print(f"sent: {send(brokers)} tickets")
