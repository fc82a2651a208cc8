"""Deduplication of a Trident stream that survives restarts and replays."""

__all__: list[str] = []
