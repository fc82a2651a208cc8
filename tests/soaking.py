"""Which cases run each time, and which only in `make soak`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

import pytest


def soaked(*values: Any, id: str | None = None) -> Any:
    """Return a case of `parametrize` that only `make soak` runs."""
    return pytest.param(*values, id=id, marks=pytest.mark.soak)


def sampled(cases: Iterable[Any], each_run: Iterable[int]) -> list[Any]:
    """Return cases of which those at some positions run each time, and the others in soak."""
    chosen = set(each_run)
    return [case if at in chosen else soaked(case) for at, case in enumerate(cases)]


def stepped(step: int) -> pytest.MarkDecorator:
    """Give a test `step`: it tries every so-manieth point each time, and every one in soak."""
    return pytest.mark.parametrize("step", [pytest.param(step, id="some"), soaked(1, id="all")])


def repeated(number: int, in_soak: int) -> pytest.MarkDecorator:
    """Give a test `count`: how many random schedules it tries, each time and in soak."""
    cases = [pytest.param(number, id="some"), soaked(in_soak, id="many")]
    return pytest.mark.parametrize("count", cases)


def seeds_of_today(count: int) -> range:
    """Return seeds for soak that are others each day, so that a few in each run come to many.

    Seeds of another day: WATERSPOUT_SOAK_SEED=19876 (days since 1970).
    """
    day = int(os.environ.get("WATERSPOUT_SOAK_SEED") or time.time() // 86_400)
    return range(day * 100_000, day * 100_000 + count)
