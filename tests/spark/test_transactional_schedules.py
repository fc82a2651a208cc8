"""Random schedules of failures of transactional topologies on Spark: state equals the recount."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.transactional.spark_components import (
    SPOUT,
    a_b_c_d,
    build,
    contents,
    global_list,
    keyed,
    recount,
    two_stores,
)
from waterspout import Config, faults, submit
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.faults import Fault, FaultPlan

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

BOLTS = {
    global_list: ("tag", "one"),
    keyed: ("gather", "one", "two"),
    a_b_c_d: ("a", "c", "one", "two"),
    two_stores: ("one", "tag", "two"),
}


class Schedule:
    """A topology, what goes wrong in it, and how it came out."""

    def __init__(self, seed, folder):
        rng = random.Random(seed)
        self.name = f"schedule-{seed}"
        self.folder = folder
        folder.mkdir()
        numbers = iter(range(1000))
        self.rows = [
            [(rng.choice("abcd"), next(numbers)) for _ in range(rng.randrange(2, 7))]
            for _ in range(rng.randrange(1, 4))
        ]
        self.opaque = rng.random() < 0.5
        self.shape = rng.choice(list(BOLTS))
        self.pending = rng.randrange(1, 9)
        moments = [(b, when) for b in BOLTS[self.shape] for when in ("execute", "finish", "write")]
        self.trouble = {(*rng.choice(moments), rng.randrange(1, 4)) for _ in range(3)}
        self.kills = []
        if rng.random() < 0.4:
            point = rng.choice(["processing", "write.before", "write.after"])
            where = {"txid": rng.randrange(1, 4)}
            self.kills = [Fault(point, "kill", where=where, token=str(folder / "killed"))]
        self.topology, self.copies = build(
            self.name, folder, self.shape, self.rows, rng.randrange(2, 5),
            trouble=self.trouble, opaque_seed=seed if self.opaque else None,
        )  # fmt: skip
        self.config = Config(
            max_spout_pending=self.pending,
            wave_collapse_tuples=rng.choice([0, 2000, 2000]),
            # What is killed in a commit is to be a worker, not this process.
            commit_in="tasks" if self.kills else "auto",
            retry_backoff_millis=5,
            retry_backoff_max_millis=20,
        )

    def run(self, spark, home):
        faults.install(FaultPlan(self.kills) if self.kills else None)
        run = submit(self.topology, spark, self.config)
        try:
            # While a partition is down, there is nothing to do for a while.
            while getattr(self.spout, "left", 0) > 0:
                run.process_all_available(timeout=120)
            run.process_all_available(timeout=120)
        finally:
            run.stop()
            faults.install(None)
        self.txids = [entry["txid"] for entry in run.recent_progress]
        self.ledger = EmbeddedStore(home, self.name).peek()

    @property
    def spout(self):
        return self.topology.components[SPOUT].component

    @property
    def struck(self):
        """How many planned failures came to pass."""
        return sum((self.folder / f"{b}-{when}-{t}").exists() for b, when, t in self.trouble)

    def wrong(self):
        found = []
        if self.txids != list(range(1, self.ledger.current)):
            found.append(f"committed {self.txids}, but {self.ledger.current} is next")
        ends = [sum(pinned or last) for last, pinned in self.ledger.committed_metadata[SPOUT]]
        if ends != [len(rows) for rows in self.rows]:
            found.append(f"not drained: {ends}")
        for table, copies in self.copies.items():
            path = self.folder / f"{table}.db"
            holds = contents(path, table, self.ledger if self.opaque else None)
            if holds != recount(self.rows, copies):
                found.append(f"{table} holds {holds}, not {recount(self.rows, copies)}")
        return found


def run_schedules(seeds, spark, home, tmp_path):
    wrong, struck, killed, outages = [], 0, 0, 0
    for seed in seeds:
        schedule = Schedule(seed, tmp_path / f"schedule-{seed}")
        schedule.run(spark, home)
        found = schedule.wrong()
        if found:
            wrong.append((seed, schedule.shape.__name__, found))
        struck += schedule.struck
        killed += Path(schedule.folder, "killed").exists()
        outages += getattr(schedule.spout, "outages", 0)
    return wrong, struck, killed, outages


@pytest.mark.soak  # in each run: crash points in process, workers and drivers killed on Spark
@pytest.mark.timeout(1800)
def test_26_random_schedules_leave_what_a_recount_gives(spark, home, tmp_path):
    wrong, struck, killed, outages = run_schedules(range(26), spark, home, tmp_path)

    assert wrong == []
    assert struck >= 26
    assert killed >= 5
    assert outages >= 26
