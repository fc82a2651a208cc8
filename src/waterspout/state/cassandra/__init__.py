"""Cassandra states: one row per key, compared and set on its own."""

from waterspout.state.cassandra._state import CassandraState

__all__ = ["CassandraState"]
