"""DRPC: functions of a running topology that others call, one argument in, tuples out."""

from __future__ import annotations

__all__: list[str] = []
