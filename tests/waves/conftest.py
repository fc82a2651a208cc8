"""Each test begins with nothing seen."""

from __future__ import annotations

import pytest

from tests.waves.driving import forget_all


@pytest.fixture(autouse=True)
def _nothing_seen():
    forget_all()
