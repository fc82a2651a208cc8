"""The other half of what `test_drawn_topologies.py` tries: a second process may take it."""

from __future__ import annotations

import logging

import pytest

from tests.semantics.drawn_runs import first_wrong


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_nothing_is_wrong_in_five_thousand_more():
    logging.disable(logging.CRITICAL)
    try:
        assert first_wrong(range(5000, 10_000)) == ""
    finally:
        logging.disable(logging.NOTSET)
