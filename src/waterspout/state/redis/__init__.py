"""Redis states: one key, or one field of a hash, per record, as JSON text."""

from waterspout.state.redis._state import RedisState

__all__ = ["RedisState"]
