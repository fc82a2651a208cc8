"""Two real processes at a barrier: the commit itself is the fence, nothing is checked before it."""

from __future__ import annotations

import multiprocessing

import pytest

from tests.lake.race_child import race
from tests.soaking import repeated


@repeated(6, 110)
@pytest.mark.timeout(1800)
def test_of_two_drivers_that_meet_one_writes_and_no_lost_row_stays(tmp_path, count):
    # Spawned: what a Delta table has running does not survive a fork.
    processes = multiprocessing.get_context("spawn")
    barrier, answers = processes.Barrier(2), processes.Queue()
    drivers = [
        processes.Process(target=race, args=(tmp_path, who, count, barrier, answers))
        for who in range(2)
    ]
    for driver in drivers:
        driver.start()
    found = [answers.get(timeout=1700) for _ in drivers]
    for driver in drivers:
        driver.join(60)

    assert [wrong for _, _, wrong in found] == [[], []]
    for kind in ("delta", "parquet"):
        claims = sum(won[kind, "claim"] for _, won, _ in found)
        assert claims == (count + 1) // 2
        if count > 1000:  # both ways have been seen, or it was no race
            published = sum(won[kind, "publish"] for _, won, _ in found)
            assert 0 < published < count // 2
