"""Exactly-once states for people who keep Structured Streaming."""

from waterspout.sinks.adopt import adopt
from waterspout.sinks.exactly_once import exactly_once

__all__ = ["adopt", "exactly_once"]
