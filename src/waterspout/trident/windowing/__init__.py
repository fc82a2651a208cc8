"""Windows over a Trident stream that survive restarts and replays."""

from waterspout.trident.windowing.config import (
    SlidingCountWindow,
    SlidingDurationWindow,
    TumblingCountWindow,
    TumblingDurationWindow,
    WindowConfig,
)
from waterspout.trident.windowing.updater import WindowSpan

__all__ = [
    "SlidingCountWindow",
    "SlidingDurationWindow",
    "TumblingCountWindow",
    "TumblingDurationWindow",
    "WindowConfig",
    "WindowSpan",
]
