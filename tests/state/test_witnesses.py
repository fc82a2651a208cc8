"""A state whose records were lost under its head stops the next run: topologies, rules."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.state_support import examples
from waterspout import Config
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import StateMismatchError
from waterspout.state._head import Claim as HeadClaim
from waterspout.state._head import Head, Stamp, Writer, claimed, settled
from waterspout.state._kinds import NonTransactionalMap, OpaqueMap
from waterspout.state._memory import MemoryMap
from waterspout.state._witnesses import MOST, Written, find_lost, witnessed
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout, LocalRun
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident import Count, TridentTopology

WORDS = ["a", "b", "a", "c", "a", "b"]


class World:
    """A word count of one word a batch, run again and again over more words."""

    def __init__(self, path):
        self.path, self.shared = path, SharedMemory()

    def run(self, words, **options):
        topology = TridentTopology("counting")
        state = SQLiteState.opaque(self.path, "counts", **options)
        rows = topology.new_stream("rows", FixedBatchSpout("word string", 1, words))
        rows.group_by("word").persistent_aggregate(state, Count(), out="n").parallelism_hint(3)
        run = LocalRun(topology, Config(), store=MemoryCoordinationStore("counting", self.shared))
        try:
            run.finish()
        finally:
            run.close()

    def sql(self, *statements):
        with sqlite3.connect(self.path) as db:
            for statement in statements:
                found = db.execute(statement).fetchall()
        db.close()
        return found


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "states.db")


@pytest.mark.parametrize("options", [{}, {"cache": 10}], ids=["plain", "cached"])
def test_a_table_that_was_emptied_stops_the_run_and_says_what_to_do(world, options):
    world.run(WORDS[:4], **options)
    world.sql("DELETE FROM counts")

    with pytest.raises(StateMismatchError, match=r"key \('c',\), which batch 4 .* Restore records"):
        world.run(WORDS, **options)

    assert world.sql("SELECT count(*) FROM counts") == [(0,)]


def test_a_table_that_was_restored_from_an_older_copy_stops_the_run(world):
    world.run(WORDS[:3])
    world.sql("CREATE TABLE copy AS SELECT * FROM counts")
    world.run(WORDS[:5])
    world.sql("DELETE FROM counts", "INSERT INTO counts SELECT * FROM copy")

    with pytest.raises(StateMismatchError, match=r"only the record of batch 3 of key \('a',\)"):
        world.run(WORDS)


def test_a_part_of_a_table_that_is_gone_is_seen_if_the_last_batches_wrote_it(world):
    world.run(WORDS[:4])
    world.sql("DELETE FROM counts WHERE word = 'b'")

    with pytest.raises(StateMismatchError, match=r"no record of key \('b',\), which batch 2"):
        world.run(WORDS)


def test_a_table_that_is_whole_is_gone_on_with_and_has_no_rows_but_the_users(world):
    for n in range(7):
        world.run(WORDS[:n])

    assert sorted(world.sql("SELECT word, n FROM counts")) == [("a", 3), ("b", 2), ("c", 1)]


def test_rows_that_are_put_back_let_the_run_go_on(world):
    world.run(WORDS[:4])
    world.sql("CREATE TABLE copy AS SELECT * FROM counts", "DELETE FROM counts")
    with pytest.raises(StateMismatchError):
        world.run(WORDS)
    world.sql("INSERT INTO counts SELECT * FROM copy", "DROP TABLE copy")

    world.run(WORDS)

    assert sorted(world.sql("SELECT word, n FROM counts")) == [("a", 3), ("b", 2), ("c", 1)]


def test_a_head_without_witnesses_is_that_of_an_earlier_version_and_is_read():
    head = Head(Stamp(Writer("t", 1), 3, 0), committed=True)

    assert "witnesses" not in head.to_text()
    assert Head.from_text(head.to_text()) == head


def test_a_head_keeps_the_witnesses_of_the_last_batches_through_its_text():
    head = None
    for txid in range(1, 12):
        head = _committed(head, txid, Written(f'["{txid}"]'))

    assert [txid for txid, _ in head.witnesses] == list(range(11, 11 - MOST, -1))
    assert Head.from_text(head.to_text()) == head


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (Written('["b"]'), ((2, '["b"]'), (1, '["a"]'))),
        (Written(), ((1, '["a"]'),)),
        (Written(removes=True), ()),
        (Written('["b"]', removes=True), ((2, '["b"]'),)),
        (None, ()),
    ],
    ids=["a key", "nothing", "removals only", "both", "unknown"],
)
def test_what_a_batch_wrote_says_which_witnesses_stay(written, kept):
    first = _committed(None, 1, Written('["a"]'))

    second = _committed(first, 2, written)

    assert second.witnesses == kept
    # The settling may be repeated, by a driver that knows nothing of it.
    assert settled(second, second.stamp, state="s").witnesses == kept


def test_an_attempt_that_takes_a_rolled_back_batch_over_forgets_its_witness():
    head = _committed(_committed(None, 1, Written('["a"]')), 2, Written('["b"]'))

    again = _claimed(head, 2, attempt=1, begun=(0,))

    assert again.witnesses == ((1, '["a"]'),)


def test_a_batch_that_was_marked_and_never_settled_ends_the_witnesses():
    head = _claimed(_committed(None, 1, Written('["a"]')), 2)

    assert _claimed(head, 3).witnesses == ()


def test_a_record_of_no_batch_or_of_a_later_one_is_no_loss():
    class Record:
        def __init__(self, txid):
            self.txid = txid

    witnesses = ((5, '["a"]'), (4, '["b"]'))

    assert find_lost(witnesses, [Record(0), Record(9)]) is None
    assert find_lost(witnesses, ["a value", 0]) is None, "a non-transactional record has no batch"
    assert "only the record of batch 3" in (find_lost(witnesses, [Record(5), Record(3)]) or "")
    assert "no record of key ('b',)" in (find_lost(witnesses, [Record(5), None]) or "")


parts = st.builds(Written, st.none() | st.sampled_from(['["a"]', "[1]", "[]"]), st.booleans())


@examples()
@given(st.lists(parts))
def test_what_tasks_tell_is_known_from_the_greatest_and_the_least_text(all_parts):
    texts = [text for part in all_parts if (text := part.to_text()) is not None]
    told = Written.from_texts([max(texts, default=None), min(texts, default=None)])

    assert told.removes is any(part.removes for part in all_parts)
    assert (told.key is None) is all(part.key is None for part in all_parts)
    assert told.key is None or told.key in [part.key for part in all_parts]


def test_a_long_key_is_no_witness():
    written = Written()
    written.note([("x" * 1000,)], 1)

    assert written == Written()
    assert witnessed((), 1, written) == ()


def _claimed(head, txid, attempt=0, begun=()):
    stamp = Stamp(Writer("t", 1), txid, attempt)
    claim = HeadClaim(TransactionAttempt(txid, attempt), 0 if txid > 1 else None, begun=begun)
    return claimed(head, stamp, claim, state="s")


def _committed(head, txid, written):
    head = _claimed(head, txid)
    return settled(head, head.stamp, state="s", written=written)


def test_what_a_lost_attempt_removed_of_a_non_transactional_map_is_no_loss():
    backing = MemoryMap()
    begun = Head(Stamp(Writer("t", 1), 2, 0), witnesses=((1, '["a"]'),))
    backing.move_head(None, begun)

    NonTransactionalMap(backing).refuse_lost_records()

    with pytest.raises(StateMismatchError, match="no record of key"):
        OpaqueMap(backing).refuse_lost_records()
    backing.move_head(begun, replace(begun, committed=True))
    with pytest.raises(StateMismatchError, match="no record of key"):
        NonTransactionalMap(backing).refuse_lost_records()


def test_all_receipts_of_all_partitions_arrive_beside_what_was_written():
    first = Written("[0]", receipts=['{"file": "a"}'])
    second = Written("[1]", removes=True, receipts=['{"file": "b"}', "receipts:odd"])
    texts = [first.to_text(), None, Written("[2]").to_text(), second.to_text()]

    found = Written.from_texts(texts)

    assert found.receipts == ['{"file": "a"}', '{"file": "b"}', "receipts:odd"]
    assert (found.key, found.removes) == ("[2]", True)
    assert Written.from_texts([Written(receipts=["x"]).to_text()]) == Written(receipts=["x"])
