"""Commands from another terminal: how they reach a run, and when it obeys."""

__all__: list[str] = []
