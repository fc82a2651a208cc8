"""Windows for core topologies: bolts that get many tuples at once."""
