"""When garbage is looked for, and through what."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import suppress

import pytest

from waterspout.waves.garbage import no_collection


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_looked_for_afterwards_as_before(enabled):
    (gc.enable if enabled else gc.disable)()
    try:
        with no_collection():
            with no_collection():
                assert not gc.isenabled()
            assert not gc.isenabled()

        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_garbage_is_looked_for_again_after_an_error():
    with suppress(KeyError), no_collection():
        raise KeyError

    assert gc.isenabled()


def test_what_is_there_is_left_alone_once_and_what_comes_later_is_looked_through():
    # A process of its own: what is left alone stays so.
    code = """if True:
        import gc
        from waterspout.waves.garbage import leave_alone
        leave_alone()
        frozen = gc.get_freeze_count()
        cycle = []
        cycle.append(cycle)
        leave_alone()
        assert frozen > 10_000 and gc.get_freeze_count() <= frozen, gc.get_freeze_count()
        del cycle
        assert gc.collect() >= 1
    """

    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
