"""DRPC streams: requests in place of batches, and answers in place of states. Internal."""

__all__: list[str] = []
