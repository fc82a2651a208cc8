"""What a run has done, counted and timed, for pages and for monitoring."""

from waterspout.metrics._stats import RunStats, stats_of

__all__ = ["RunStats", "stats_of"]
