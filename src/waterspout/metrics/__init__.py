"""What a run has done, counted and timed, for pages and for monitoring. See docs/metrics.md."""

from waterspout.metrics._json_logs import JsonFormatter
from waterspout.metrics._notebook import show_progress
from waterspout.metrics._stats import RunStats, stats_of
from waterspout.metrics._traces import trace

__all__ = ["JsonFormatter", "RunStats", "show_progress", "stats_of", "trace"]
