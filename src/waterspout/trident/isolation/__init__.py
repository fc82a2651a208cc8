"""Rows that an operation cannot take: put aside as dead letters, and sent through again."""

__all__: list[str] = []
