"""Two spouts, a merge, a join, three states on Spark: exact though it crashes at every point."""

from __future__ import annotations

import pytest

from tests.semantics.shop import everything_is_read, recount, shop, spouts
from tests.soaking import soaked
from waterspout import Config, faults, submit
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.errors import RunFailedError
from waterspout.faults import BATCH_POINTS, Fault, FaultPlan
from waterspout.spouts._base import SpoutKind
from waterspout.state.sqlite import SQLiteState

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

TASK_POINTS = ("processing", "write.before", "write.after")
SOME = ("commit.after_record", "head.after", "mark.before")


def topology(tmp_path, *, by_tasks):
    factories = [
        SQLiteState.opaque(tmp_path / "shop.db", table=name, driver_only=not by_tasks)
        for name in ("owed", "prompt", "changes")
    ]
    return shop(spouts(SpoutKind.OPAQUE, take=1), factories)


def go_on(tmp_path, spark, batches, *, by_tasks):
    """Run until all is done or something stops the run; return the states."""
    described, states = topology(tmp_path, by_tasks=by_tasks)
    commit_in = "tasks" if by_tasks else "auto"
    config = Config(
        home=str(tmp_path / "home"), max_spout_pending=2, max_retries=0, commit_in=commit_in,
        retry_backoff_millis=1,
    )  # fmt: skip
    run = submit(described, spark, config)
    try:
        run.process_all_available(timeout=60)
    finally:
        run.stop()
        ledger = EmbeddedStore(tmp_path / "home", "shop").peek()
        if ledger is not None and ledger.committed_metadata is not None:
            batches[ledger.current - 1] = ledger.committed_metadata
    return states


@pytest.mark.parametrize(
    ("points", "by_tasks"),
    [
        soaked(SOME, False, id="driver"),
        soaked(["write.after"], True, id="tasks"),
        soaked(["metadata.after", "mark.after"], False, id="driver, more"),
        soaked(BATCH_POINTS, True, id="all"),
    ],
)
def test_a_crash_at_every_point_loses_and_doubles_nothing(tmp_path, spark, points, by_tasks):
    """One crash after the other, at one point after the other; each goes on from the last."""
    batches = {}
    for number, point in enumerate(points):
        # Spark tries a task again: it must fail each time.
        token = None if point in TASK_POINTS else str(tmp_path / f"crash-{number}")
        fault = Fault(point, "raise", nth=1 if token else None, token=token)
        faults.install(FaultPlan([fault]))
        try:
            with pytest.raises(RunFailedError, match="injected"):
                go_on(tmp_path, spark, batches, by_tasks=by_tasks)
        finally:
            faults.install(None)

    states = go_on(tmp_path, spark, batches, by_tasks=by_tasks)

    assert states.found() == recount_of(tmp_path, batches)


def recount_of(tmp_path, batches):
    """Count again what the batches held; those between two looks at the ledger are all alike."""
    last = max(batches)
    end = {s: [stop for _, stop in batches[last][s]["ranges"]] for s in ("orders", "payments")}
    held, at = {}, {s: [0, 0] for s in end}
    for txid in range(1, last + 1):
        # Every batch takes a row of each partition, in whatever attempt it commits.
        ranges = {s: [[a, min(a + 1, b)] for a, b in zip(at[s], end[s], strict=True)] for s in end}
        held[txid] = {s: {"ranges": ranges[s]} for s in end}
        at = {s: [stop for _, stop in ranges[s]] for s in end}
    assert all(held[txid] == batches[txid] for txid in batches)
    assert everything_is_read(held)
    return recount(held)
