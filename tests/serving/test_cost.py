"""What one open page costs the driver: the processor time of the threads of its server."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from tests.serving.served import serving

# What a page asks for once a second, whichever view is open, and more.
ASKED = ("topology", "snapshot", "stats?window=600", "batches?limit=100", "pressure", "errors")
SECONDS = 20


def spent() -> dict[int, float]:
    """Return the processor seconds of each thread of this process."""
    tick = os.sysconf("SC_CLK_TCK")
    found = {}
    for stat in Path("/proc/self/task").glob("*/stat"):
        fields = stat.read_text().rpartition(")")[2].split()
        found[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / tick
    return found


@pytest.mark.soak
def test_a_page_costs_less_than_two_percent_of_a_core(tmp_path, record_property):
    with serving(tmp_path) as (run, client):
        run.process_all_available(timeout=30)
        for path in ASKED:
            client.get(f"/api/v1/{path}")  # what is made once is made now
        others = {t.native_id for t in threading.enumerate()}
        serving_threads = {
            t.native_id
            for t in threading.enumerate()
            if t.name.startswith(("waterspout-server", "AnyIO"))
        }
        before, began = spent(), time.monotonic()
        for second in range(1, SECONDS + 1):
            for path in ASKED:
                assert client.get(f"/api/v1/{path}").status_code == 200
            threading.Event().wait(max(0.0, began + second - time.monotonic()))
        took = time.monotonic() - began
        after = spent()
        # Threads that came meanwhile are the server's own.
        ours = [t for t in after if t in serving_threads or t not in others]
        share = sum(after[t] - before.get(t, 0.0) for t in ours) / took

    record_property("share_of_a_core", share)
    print(f"one page, {len(ASKED)} questions a second: {share:.2%} of a core")
    assert share < 0.02
