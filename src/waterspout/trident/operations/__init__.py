"""Operations of Trident streams: their contracts, and those that come with it."""

__all__: list[str] = []
