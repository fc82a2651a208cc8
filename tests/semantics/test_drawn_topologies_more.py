"""Other topologies each day than those of `test_drawn_topologies.py`, in a process of their own."""

from __future__ import annotations

import logging

import pytest

from tests.semantics.drawn_cases import draw_rows
from tests.semantics.drawn_runs import first_wrong
from tests.soaking import seeds_of_today


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_nothing_is_wrong_in_three_thousand_of_today():
    logging.disable(logging.CRITICAL)
    try:
        assert first_wrong(seeds_of_today(3000)) == ""
        assert first_wrong(seeds_of_today(300), drawn=draw_rows) == ""
    finally:
        logging.disable(logging.NOTSET)
