"""Windows over a Trident stream that survive restarts and replays."""

__all__: list[str] = []
