"""At least once: XOR bookkeeping of tuple trees, without clock and without I/O."""

__all__: list[str] = []
