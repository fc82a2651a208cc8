"""Rows that are written to topics of Kafka, in transactions."""

from waterspout.state.kafka._state import KafkaState

__all__ = ["KafkaState"]
