"""Topics of Kafka through the suite of rows, judged by a bare reader of committed messages.

Only in `make soak`: each case makes topics of its own. `tests/state/test_kafka_rows.py` has a
sample.
"""

from __future__ import annotations

import json
from itertools import count

import pytest

from waterspout.state.kafka import KafkaState
from waterspout.testing.conformance import RowsConformance

NUMBERS = count()


@pytest.mark.soak
class TestKafka(RowsConformance):
    @pytest.fixture(autouse=True)
    def _broker(self, kafka):
        self.kafka = kafka

    def make_recipe(self, rows):
        topic = f"rows-{next(NUMBERS)}"
        return KafkaState(self.kafka.bootstrap, topic=topic, partitions=2).bind_rows(rows)

    def read(self, recipe, fields):
        if recipe.topic not in self.kafka.topic_names():
            return []
        found = [json.loads(message.value()) for message in self.kafka.read_all(recipe.topic)]
        return [tuple(row[name] for name in fields) for row in found]

    def lose_rows(self, recipe):
        self.kafka.recreate_topic(recipe.topic, 2)
        return True

    def occupy(self, recipe):
        self.kafka.create_topic(recipe.heads, 1)
        return True
