"""What the server bears from its callers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much, how many and how long; a driver has other things to do."""

    body_bytes: int = 1_000_000
    """The largest body of a request."""
    header_bytes: int = 16_384
    """The request line and all headers together."""
    in_flight: int = 64
    """Requests that are answered at once; more are told to come again."""
    connections: int = 256
    """Open connections; more are closed at once."""
    read_secs: float = 15.0
    """Within which the headers of a request must be there, and then its body."""
    write_secs: float = 30.0
    """Within which a caller must take an answer."""
    idle_secs: float = 15.0
    """After which a connection without a request is closed."""
    close_secs: float = 5.0
    """Within which requests in flight must be answered when the run has ended."""
    threads: int = 8
    """On which questions are answered that wait for a store."""
