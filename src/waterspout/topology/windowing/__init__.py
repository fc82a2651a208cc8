"""Windows for core topologies: bolts that get many tuples at once."""

__all__: list[str] = []
