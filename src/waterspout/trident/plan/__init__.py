"""The plan of a Trident topology: nodes, phases, and how it prints."""

__all__: list[str] = []
