"""deduplicate: the first row of each key passes, once, ever or within a time."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trident.support import capture
from waterspout import Config, faults
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import DamagedStoreError, TopologyError
from waterspout.faults import Fault, FaultPlan
from waterspout.spouts._base import SpoutKind
from waterspout.state import MemoryMapState
from waterspout.state.files import FileState
from waterspout.state.memcached import MemcachedState
from waterspout.state.postgres import PostgresState
from waterspout.state.postgres._connections import close_idle
from waterspout.state.redis import RedisState
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FeederSpout, FixedBatchSpout, LocalRun, MemoryLog, run_in_process
from waterspout.trident import Count, Filter, TridentTopology
from waterspout.trident.deduplication.recent import RecentKeys

HOUR = dt.timedelta(hours=1)
ORDERS = [
    (7, "tea"), (7, "jam"), (8, "ink"),  # the same order twice in one batch
    (9, "oil"), (8, "ink"), (None, "?"),
    (9, "oil"), (None, "!"), (10, "nut"),
]  # fmt: skip
FIRST = [(7, "jam"), (8, "ink"), (9, "oil"), (None, "?"), (10, "nut")]


def stream_of(rows: Sequence[Any], fields: str = "id bigint, what string", size: int = 3) -> Any:
    topology = TridentTopology("orders")
    return topology, topology.new_stream("orders", FixedBatchSpout(fields, size, rows))


@pytest.mark.parametrize("within", [None, HOUR])
def test_the_first_row_of_each_key_passes_once(within):
    topology, orders = stream_of(ORDERS)
    kept = capture(orders.deduplicate("id", within=within))

    run_in_process(topology, Config(max_spout_pending=2))

    assert kept.in_order == FIRST


@pytest.mark.parametrize("within", [None, HOUR])
def test_of_several_rows_in_one_batch_the_least_passes_whatever_their_order(within):
    nan, rows = float("nan"), [(1, 9), (1, 10), (1, None), (2, 30), (2, 4), (3, 1)]
    passed = set()
    for seed in range(20):
        shuffled = random.Random(seed).sample(rows, len(rows))
        topology, numbers = stream_of(shuffled, "id bigint, n bigint", size=6)
        kept = capture(numbers.deduplicate("id", within=within))
        run_in_process(topology)
        passed.add(tuple(sorted(kept.in_order, key=repr)))
    topology, numbers = stream_of([(1, nan), (1, 2.5), (1, 3.5)], "id bigint, n double")
    kept = capture(numbers.deduplicate("id", within=within))
    run_in_process(topology)

    assert passed == {((1, None), (2, 4), (3, 1))}  # null first, and numbers are no texts
    assert kept.in_order == [(1, 2.5)]


def test_several_fields_are_one_key():
    topology, orders = stream_of([(1, "a"), (1, "b"), (1, "a"), (2, "a")])
    kept = capture(orders.deduplicate(["what", "id"]))

    run_in_process(topology)

    assert kept.in_order == [(1, "a"), (1, "b"), (2, "a")]


def test_values_of_every_type_pass_as_they_are():
    at = dt.datetime(2026, 11, 17, 10, 30, 0, 123456)  # noqa: DTZ001  (of no zone)
    fields = "k string, i int, d decimal(20,2), t timestamp_ntz, b binary, l array<int>, f boolean"
    row = ("ключ", 5, Decimal("12345678901234567.89"), at, b"\x00\xff", [1, None], True)
    topology, rows = stream_of([row, row, ("b", *[None] * 6)], fields)
    kept = capture(rows.deduplicate(["k", "d", "t"]))

    run_in_process(topology)

    assert kept.in_order == [row, ("b", *[None] * 6)]


def test_the_keys_are_a_table_to_look_into(tmp_path):
    topology, orders = stream_of(ORDERS)
    seen = SQLiteState.opaque(tmp_path / "seen.db", table="seen")
    capture(orders.deduplicate("id", seen))

    run_in_process(topology)

    (spec, _) = topology.plan().states.values()
    with closing(spec.factory.make_state(Config(), 0, 1)) as state:
        found = {key: batch for chunk in state.scan() for key, batch in chunk}
    assert found == {(7,): 1, (8,): 1, (9,): 2, (None,): 2, (10,): 3}


class Once(Filter):
    def is_keep(self, tuple):
        return tuple[0] == 1


def test_the_recipe_with_new_values_loses_rows():
    topology, orders = stream_of(ORDERS)
    counts = orders.group_by("id").persistent_aggregate(MemoryMapState(), Count(), "n")
    kept = capture(counts.new_values_stream().each("n", Once()), "id")

    run_in_process(topology)

    assert kept.in_order == [(8,), (9,), (None,), (10,)]  # 7 came twice at first: never 1


@pytest.mark.parametrize("within", [None, HOUR])
def test_a_restart_knows_what_has_passed(tmp_path, within):
    passed = SQLiteState.opaque(tmp_path / "passed.db", table="passed")
    for end in (3, 6, 9):
        topology, orders = stream_of(ORDERS[:end])
        rows = orders.deduplicate("id", within=within).group_by(["id", "what"])
        counts = rows.persistent_aggregate(passed, Count(), "n")
        store = EmbeddedStore(tmp_path, "orders", durable=False)
        run = LocalRun(topology, Config(home=str(tmp_path)), store=store)
        run.finish()
        run.close()

    assert counts.multi_get(FIRST) == [1] * 5
    assert counts.multi_get(list(set(ORDERS) - set(FIRST))) == [None] * 2
    assert (tmp_path / "orders" / "windows.db").exists()


class Clocked:
    """A topology whose batches have the times that a test gives them."""

    def __init__(self, within: dt.timedelta) -> None:
        self.rows = [[]]
        self.now, self.shared = 1000.0, SharedMemory()
        self.log = MemoryLog("id bigint", self.rows, take=1000)
        self.topology = TridentTopology("clocked")
        ids = self.topology.new_stream("log", self.log)
        self.kept = capture(ids.deduplicate("id", MemoryMapState(), within))
        self.run = LocalRun(
            self.topology,
            Config(),
            store=MemoryCoordinationStore("clocked", self.shared),
            wall=lambda: self.now,
        )

    def batch(self, *ids: int, at: float) -> list[int]:
        """Return which of a batch's ids pass."""
        before, self.now = len(self.kept.in_order), 1000.0 + at
        self.rows[0].extend((number,) for number in ids)
        self.run.finish()
        return [row[0] for row in self.kept.in_order[before:]]


def test_within_a_time_a_key_passes_once():
    clocked = Clocked(dt.timedelta(seconds=10))

    assert clocked.batch(1, 2, 1, at=0) == [1, 2]
    assert clocked.batch(1, 3, at=9.999) == [3]
    assert clocked.batch(1, 3, at=10) == [1]  # 10 s after it passed, not after it came last
    assert clocked.batch(1, 2, 3, at=19.9) == [2]
    assert clocked.batch(1, 2, 3, at=20) == [1, 3]
    assert clocked.batch(1, 2, 3, at=15) == []  # a clock that goes back is not believed


def test_a_topology_that_only_forgets_needs_no_batch_without_rows():
    clocked = Clocked(dt.timedelta(seconds=10))
    clocked.batch(1, at=0)

    assert clocked.batch(at=1000) == []

    assert clocked.run.loop.ledger.current == 2


def held(state: Any) -> tuple[dict[str, int], list[int]]:
    """All keys that a state of recent keys holds, with their times, and the slots in use."""
    keys: dict[str, int] = {}
    slots = []
    for chunk in state.scan():
        for (_, slot), text in chunk:
            slots.append(slot)
            if slot >= 0:
                entries = json.loads(text)
                assert not keys.keys() & entries.keys()
                keys |= entries
    return keys, sorted(slots)


def admitted(state: Any, txid: int, keys: Sequence[str], now: int, within: int) -> set[str]:
    state.begin_commit(txid)
    found = RecentKeys(state, 0, ["id"], now, within).admit(keys)
    state.commit(txid)
    return found


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.lists(st.integers(0, 400), min_size=1, max_size=120)),
        max_size=25,
    ),
    st.integers(1, 60),
)
def test_recent_keys_are_those_of_the_model(batches, within):
    state, model, now = MemoryMapState().make_state(Config(), 0, 1), {}, 0
    for txid, (later, numbers) in enumerate(batches, 1):
        now += later
        keys = list(dict.fromkeys(map(str, numbers)))
        expected = {key for key in keys if key not in model or model[key] <= now - within}
        if txid % 3 == 0:  # an attempt that is lost leaves no trace
            admitted(state, txid, ["lost", *keys[::2]], now, within)

        assert admitted(state, txid, keys, now, within) == expected

        model |= dict.fromkeys(expected, now)
    recent = {key: time for key, time in model.items() if time > now - within}
    found, slots = held(state)
    assert recent.items() <= found.items()
    assert slots == list(range(-1, len(slots) - 1)) or not batches


def test_keys_are_found_again_when_slots_were_added_since():
    state = MemoryMapState().make_state(Config(), 0, 1)
    first, more = ([f"{name}-{n}" for n in range(200)] for name in "ab")
    assert admitted(state, 1, first[:10], 1, within=100) == set(first[:10])
    assert admitted(state, 2, first, 2, within=100) == set(first[10:])
    assert admitted(state, 3, more, 3, within=100) == set(more)

    assert admitted(state, 4, [*first, *more], 4, within=100) == set()
    assert len(held(state)[1]) > 20


def test_the_store_does_not_grow_with_the_keys_that_have_passed():
    state, sizes = MemoryMapState().make_state(Config(), 0, 1), []
    for txid in range(1, 401):
        keys = [f"{txid}-{n}" for n in range(100)]
        assert admitted(state, txid, keys, txid, within=10) == set(keys)
        if txid in (40, 400):
            keys_held, slots = held(state)
            sizes.append((len(keys_held), len(slots)))

    (early, _), (late, slots) = sizes
    # 1000 keys are recent at any time; 40,000 have passed.
    assert 1000 <= early < 1400
    assert 1000 <= late < 1400
    assert slots < 1400 / 16 + 10


def test_a_slot_that_is_gone_is_named():
    state = MemoryMapState().make_state(Config(), 0, 1)
    admitted(state, 1, [str(n) for n in range(100)], 1, within=10)
    state.multi_put([(0, 3)], [None])

    with pytest.raises(DamagedStoreError, match=r"slot 3 of partition 0 is empty\. Restore the"):
        admitted(state, 2, [str(n) for n in range(100)], 1, within=10)


def test_keys_of_other_fields_are_refused():
    state = MemoryMapState().make_state(Config(), 0, 1)
    admitted(state, 1, ["a"], 1, within=10)

    with pytest.raises(TopologyError, match=r"holds keys of \(id\), .* now goes by \(user, id\)"):
        RecentKeys(state, 0, ["user", "id"], 1, 10)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([],), "deduplicate needs the fields that are the key"),
        (("nothing",), r"deduplicate\(nothing\) asks for field 'nothing', but the stream has"),
        (("m",), r"deduplicate\(m\) goes by field 'm', a map<string,int>"),
        (("id", MemoryMapState.transactional()), "opaque store, and this one is transactional"),
        (("id", "seen.db"), "keeps its keys in a state; give it the recipe of an opaque one"),
        (("id", None, 60), "within is a time of at least a millisecond"),
        (("id", None, dt.timedelta(0)), "within is a time of at least a millisecond"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_built(arguments, said):
    _, rows = stream_of([(1, {})], "id bigint, m map<string,int>")

    with pytest.raises(TopologyError, match=said):
        rows.deduplicate(*arguments)


def verdicts(spout: Any, state: Any) -> list[str]:
    topology = TridentTopology("orders")
    orders = topology.new_stream("orders", spout, out="id bigint")
    orders.deduplicate("id").group_by("id").persistent_aggregate(state, Count(), "n")
    lines = topology.explain().splitlines()
    said = lines[lines.index("guarantees") + 1 :]
    return [line.split("): ")[1].split(":")[0] for line in said]


def test_explain_says_what_follows_from_it():
    def log(kind: SpoutKind) -> MemoryLog:
        return MemoryLog("id bigint", [[(1,)]], kind=kind)

    exactly, no = "exactly-once", "not exactly-once"
    opaque, transactional = MemoryMapState(), MemoryMapState.transactional()
    assert verdicts(log(SpoutKind.TRANSACTIONAL), opaque) == [exactly, exactly]
    assert verdicts(log(SpoutKind.TRANSACTIONAL), transactional) == [exactly, exactly]
    assert verdicts(log(SpoutKind.OPAQUE), opaque) == [exactly, exactly]
    assert verdicts(log(SpoutKind.OPAQUE), transactional) == [exactly, no]
    assert verdicts(FeederSpout("id bigint"), opaque) == [no, no]


def test_keys_that_are_kept_for_ever_may_be_spread_and_recent_ones_not(tmp_path):
    def partitions(within: Any) -> int:
        topology, orders = stream_of(ORDERS)
        spread = orders.shuffle().parallelism_hint(4)
        capture(spread.deduplicate("id", SQLiteState.opaque(tmp_path / "s.db", "s"), within))
        kept = next(iter(topology.plan().states.values())).partitions
        assert ("forgets old keys together" in topology.explain()) == (kept == 1)
        return kept

    assert (partitions(None), partitions(HOUR)) == (4, 1)


def on_server(name: str, request: Any, tmp_path: Any) -> Any:
    """A new opaque state in a store."""
    if name == "files":
        return FileState.opaque(str(tmp_path / uuid4().hex))
    server = request.getfixturevalue(f"{name}_server")
    if name == "postgres":
        return PostgresState.opaque(server.fresh_database(), table="seen")
    if name == "redis":
        return RedisState.opaque(server.url, prefix=uuid4().hex)
    return MemcachedState.opaque([server.address], prefix=uuid4().hex)


@pytest.mark.parametrize("within", [None, HOUR])
@pytest.mark.parametrize("name", ["files", "postgres", "redis", "memcached"])
def test_every_store_can_keep_the_keys(name, within, request, tmp_path):
    topology, orders = stream_of(ORDERS)
    rows = orders.deduplicate("id", on_server(name, request, tmp_path), within)
    counts = rows.group_by(["id", "what"]).persistent_aggregate(MemoryMapState(), Count(), "n")
    faults.install(FaultPlan([Fault("write.after", "fail", nth=n) for n in (1, 4)]))
    try:
        run_in_process(topology, Config(retry_backoff_millis=1))
    finally:
        faults.install(None)
        close_idle()

    assert counts.multi_get(FIRST) == [1] * 5
    assert counts.multi_get(list(set(ORDERS) - set(FIRST))) == [None] * 2
