"""Exactly-once states for people who keep Structured Streaming."""

from waterspout.sinks._adopt import adopt
from waterspout.sinks._exactly_once import exactly_once

__all__ = ["adopt", "exactly_once"]
