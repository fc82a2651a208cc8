"""Waves: tuples that go through all bolts together, as supersteps. No Spark in here."""

__all__: list[str] = []
