"""`adopt` without Spark: a checkpoint as Spark writes it, and states as the sink leaves them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from waterspout import Config, faults
from waterspout.coordination.commit_protocol import CommitProtocol, HeadKeeper
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.errors import ForeignStoreError, StateMismatchError
from waterspout.faults import Fault, FaultPlan, InjectedError
from waterspout.sinks import adopt
from waterspout.spouts.files import FileSpout
from waterspout.state._foreach_batch import QueryIdentity, next_writer
from waterspout.state.redis import RedisState
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import LocalRun
from waterspout.testing._batches import Add
from waterspout.trident import Columns, Count, TridentTopology

QUERY = "0c1d7a9c-6a7b-4d0e-a9f5-111111111111"
WORDS = ["storm", "spark", "storm", "heron"]


@pytest.fixture
def folder(tmp_path):
    """Two files that the query has read, a batch each, and its checkpoint."""
    (tmp_path / "in").mkdir()
    for number in range(2):
        write_file(tmp_path, number)
    checkpoint = tmp_path / "checkpoint"
    for name in ("offsets", "commits", "sources/0"):
        (checkpoint / name).mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
    for batch in range(2):
        (checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"logOffset":{batch}}}')
        (checkpoint / "commits" / str(batch)).write_text("v1\n{}")
        read = {"path": (tmp_path / "in" / f"{batch}.txt").as_uri(), "batchId": batch}
        (checkpoint / "sources/0" / str(batch)).write_text(f"v1\n{json.dumps(read)}")
    return tmp_path


@pytest.fixture
def conf(folder):
    yield Config(home=str(folder / "home"))
    faults.install(None)


def write_file(folder: Path, number: int) -> None:
    (folder / "in" / f"{number}.txt").write_text("\n".join(WORDS) + "\n")


def topology_of(folder: Path, *states) -> TridentTopology:
    topology = TridentTopology("adopts")
    lines = topology.new_stream("lines", FileSpout(folder / "in", max_files=1))
    for state in states:
        lines.group_by("value").persistent_aggregate(state, Columns(count=Count()))
    return topology


def opened(folder: Path, *states):
    plan = topology_of(folder, *states).plan()
    return {name: spec.factory.make_state(Config(), 0, 1) for name, spec in plan.states.items()}


def written_by_the_sink(folder: Path, *states, restarts: int = 0) -> None:
    """Write two batches as `exactly_once` does; every start of it has a later epoch."""
    who = QueryIdentity("sink foreachBatch", QUERY)
    for start in range(2 + restarts):
        for number, (_, state) in enumerate(opened(folder, *states).items(), start=1):
            keeper = HeadKeeper(who, min(start, 1))
            commits = CommitProtocol({f"state{number}": state}, keeper)
            commits.verify()
            if keeper.claim is not None:
                commits.enroll(next_writer(keeper.head, who, f"lease {start}"))
                commits.commit(keeper.claim.attempt, lambda claim, state=state: count(state, claim))
            elif start > 1:  # which has nothing to do but to leave its epoch
                head = state.read_head()
                state.enroll(next_writer(head, who, f"lease {start}"), f"state{number}")
                state.settle(head.stamp.txid, head.stamp.attempt)


def count(state, claim) -> None:
    state.begin_commit(claim.attempt.txid, claim.attempt.attempt_id, claim.resolved)
    words = Counter(WORDS)
    state.multi_update([(word,) for word in words], [Add(n) for n in words.values()])
    state.commit(claim.attempt.txid)


def run(folder: Path, conf: Config, *states) -> None:
    it = LocalRun(
        topology_of(folder, *states), conf, store=EmbeddedStore(folder / "home", "adopts")
    )
    try:
        it.finish()
    finally:
        it.close()


def values(state) -> list[int]:
    return state.multi_get([("storm",), ("spark",), ("heron",)])


def in_sqlite(folder, request):
    return SQLiteState.opaque(folder / "counts.db", table="counts")


def in_slots(folder, request):
    url = request.getfixturevalue("redis_server").url
    return RedisState.opaque(url, prefix=f"adopted-{folder.name}", slots=3)


@pytest.mark.parametrize("make", [in_sqlite, in_slots])
def test_a_topology_goes_on_where_a_sink_of_a_later_epoch_has_stopped(folder, conf, request, make):
    given = make(folder, request)
    total = SQLiteState.opaque(folder / "total.db", table="counts")
    written_by_the_sink(folder, total, given, restarts=5)
    heads = [state.read_head() for state in opened(folder, given, total).values()]
    # The topology has them in another order, under other names.
    assert [(h.stamp.writer.epoch, h.stamp.txid, h.name) for h in heads] == [
        (7, 2, "state2"),
        (7, 2, "state1"),
    ]

    # Interrupted before the mark, after it, and with one of two states settled.
    for point in ("mark.before", "mark.after", "settle.after"):
        faults.install(FaultPlan([Fault(point, "raise")]))
        with pytest.raises(InjectedError):
            adopt(folder / "checkpoint", topology_of(folder, given, total), config=conf)
        faults.install(None)
    assert adopt(folder / "checkpoint", topology_of(folder, given, total), config=conf) == 3
    write_file(folder, 2)
    run(folder, conf, given, total)

    assert [values(state) for state in opened(folder, given, total).values()] == [[6, 3, 3]] * 2


def test_states_of_the_topology_that_are_one_table_are_not_adopted(folder, conf):
    given = SQLiteState.opaque(folder / "counts.db", table="counts")
    (folder / "link").symlink_to(folder)
    same = SQLiteState.opaque(folder / "link" / "counts.db", table="counts")
    written_by_the_sink(folder, given)

    with pytest.raises(StateMismatchError, match="are one table, or one is a copy of the other"):
        adopt(folder / "checkpoint", topology_of(folder, given, same), config=conf)

    (state,) = opened(folder, given).values()
    assert state.read_head().stamp.writer.owner == "sink foreachBatch"


def test_one_table_for_two_states_of_an_older_version_is_found_when_the_second_is_settled(
    folder, conf
):
    given = SQLiteState.opaque(folder / "counts.db", table="counts")
    (folder / "link").symlink_to(folder)
    same = SQLiteState.opaque(folder / "link" / "counts.db", table="counts")
    written_by_the_sink(folder, given)
    (state,) = opened(folder, given).values()
    backing, head = state._backing, state.read_head()
    backing.move_head(head, type(head)(head.stamp, head.committed, head.resolved))

    with pytest.raises(ForeignStoreError, match="where 'state1' of 'adopts' is kept, so 'state2'"):
        adopt(folder / "checkpoint", topology_of(folder, given, same), config=conf)

    assert values(state) == [4, 2, 2]
