"""Memcached states: fast and shared, but a cache. Each key is compared and set on its own."""

from waterspout.state.memcached._state import MemcachedState

__all__ = ["MemcachedState"]
