"""Rows that an operation fails on are put aside as dead letters, and can be replayed."""

__all__: list[str] = []
