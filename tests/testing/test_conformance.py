"""The kit fails where it must: each broken store is caught by the test that is there for it."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import Phase, settings

from tests.testing.remote import Blunt, Clinging, Deaf, MapServer, RemoteMap, Stubborn
from waterspout._schema import Schema
from waterspout._serde import encode_key
from waterspout.errors import FencedError, StoreError
from waterspout.state._base import BackingMap
from waterspout.state._cache import CachedMap
from waterspout.state._comparing import ComparingMap
from waterspout.state._head import check_stamp
from waterspout.state._memory import MemoryMap
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FaultProxy, StateConformance
from waterspout.testing.conformance.hooks import OPAQUE, at, record

ROOT = Path(__file__).parents[2]


def outcomes_of(suite, name):
    """Run a test of the kit with all its parameters; yield what it raised, None where it passed.

    Without pytest's help, because a run of its own for each broken store would take minutes.
    """
    test = getattr(suite, name)
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    choices = [[named(mark.args[0], values) for values in mark.args[1]] for mark in marks]
    for chosen in itertools.product(*choices):
        suite._opened = []
        arguments = {name: value for part in chosen for name, value in part.items()}
        try:
            test(**arguments)
            outcome = None
        except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
            outcome = error
        finally:
            suite._close_all()
        yield outcome


def is_caught(suite, *names):
    """Tell whether one of these tests fails; none after that is run."""
    return any(
        outcome is not None and not isinstance(outcome, pytest.skip.Exception)
        for name in names
        for outcome in outcomes_of(suite, name)
    )


@pytest.fixture(autouse=True)
def _no_shrinking(monkeypatch):
    """Let a test fail at once: nobody reads its difference, or needs a smaller example of it."""
    monkeypatch.delenv("CI", raising=False)  # where it is set, pytest draws every difference whole
    quick = [Phase.explicit, Phase.generate]
    for name in dir(StateConformance):
        test = getattr(StateConformance, name)
        if hasattr(test, "hypothesis"):
            slow = test._hypothesis_internal_use_settings
            monkeypatch.setattr(
                test,
                "_hypothesis_internal_use_settings",
                settings(slow, phases=quick, database=None),
            )


def named(names, values):
    if isinstance(names, str) and "," not in names:
        return {names: values}
    return dict(zip(names, values, strict=True))


def suite_of(make, **hooks):
    hooks = {"many": 70_000, "make_backing": lambda self, kind: make(), **hooks}
    return type("Suite", (StateConformance,), hooks)()


class ConfusesTypes(MemoryMap):
    """Takes 1 for "1"."""

    def multi_get(self, keys):
        return super().multi_get([tuple(map(str, key)) for key in keys])

    def multi_put(self, keys, values):
        super().multi_put([tuple(map(str, key)) for key in keys], values)


class InItsOwnOrder(MemoryMap):
    """Answers as its keys are sorted, as `SELECT ... WHERE k IN (...)` may."""

    def multi_get(self, keys):
        return super().multi_get(sorted(keys, key=encode_key))


class OncePerKey(MemoryMap):
    """Answers a key that is asked for twice once."""

    def multi_get(self, keys):
        return super().multi_get(list({encode_key(key): key for key in keys}.values()))


class LeavesOutTheAbsent(MemoryMap):
    def multi_get(self, keys):
        return [found for found in super().multi_get(keys) if found is not None]


class KeepsTheFirst(MemoryMap):
    """Does not replace."""

    def multi_put(self, keys, values):
        for key, value in zip(keys, values, strict=True):
            if super().multi_get([key]) == [None]:
                super().multi_put([key], [value])


class TextOnly(MemoryMap):
    """Brings every value back as text."""

    def multi_put(self, keys, values):
        super().multi_put(keys, [record(OPAQUE, str(v.value), v.txid) for v in values])


class Forgetful(MemoryMap):
    """Takes no more than so many keys in a call."""

    def multi_put(self, keys, values):
        super().multi_put(keys[:65_535], values[:65_535])


class MovesAnyHead(MemoryMap):
    """Moves the head without the condition."""

    def move_head(self, expected, new):
        super().move_head(self.read_head(), new)


class MovesByBatchAlone(MemoryMap):
    """Compares the head's batch and attempt, and nothing else of it."""

    def move_head(self, expected, new):
        head = self.read_head()
        if head and expected and stamp_of(head) == stamp_of(expected):
            expected = head
        super().move_head(expected, new)


def stamp_of(head):
    return head.stamp.txid, head.stamp.attempt


class ForgetsResolved(MemoryMap):
    """Keeps all of a head but the attempts that have committed."""

    def move_head(self, expected, new):
        super().move_head(expected, at(new.stamp.txid, new.stamp.attempt, committed=new.committed))


class NoCheck(MemoryMap):
    """Puts whatever the head says."""

    def fenced_put(self, stamp, keys, values, read=None):
        self.multi_put(keys, values)


class CheckThenAct(MemoryMap):
    """Writes before it checks."""

    def fenced_put(self, stamp, keys, values, read=None):
        self.multi_put(keys, values)
        check_stamp(self.read_head(), stamp, state="the state")


class TakesCommitted(MemoryMap):
    """Lets a batch be written that has settled."""

    def fenced_put(self, stamp, keys, values, read=None):
        head = self.read_head()
        if head is None or head.stamp != stamp:
            raise FencedError("refused")
        self.multi_put(keys, values)


class HalfThenRaises(MemoryMap):
    """Stores pair by pair, so that a bad one leaves those before it."""

    def fenced_put(self, stamp, keys, values, read=None):
        check_stamp(self.read_head(), stamp, state="the state")
        for key, value in zip(keys, values, strict=True):
            self.multi_put([key], [value])


class NeverCompares(MemoryMap):
    """Compares and puts without comparing."""

    def multi_compare_and_put(self, keys, read, values):
        self.multi_put(keys, values)
        return [True] * len(keys)


class AllOrNothing(MemoryMap):
    """Says of all keys what is true of the least."""

    def multi_compare_and_put(self, keys, read, values):
        if self.multi_get(keys) != list(read):
            return [False] * len(keys)
        return super().multi_compare_and_put(keys, read, values)


class ComparesAndThenPuts(MemoryMap):
    """Compares and puts, but not in one step: here another comes between, the first time."""

    def __init__(self):
        super().__init__()
        self.first, self.put = True, threading.Semaphore(0)

    def multi_compare_and_put(self, keys, read, values):
        same = [a == b for a, b in zip(self.multi_get(keys), read, strict=True)]
        if self.first:
            self.first = False
            self.put.acquire(timeout=10)
        for key, value, ok in zip(keys, values, same, strict=True):
            if ok:
                self.multi_put([key], [value])
        self.put.release()
        return same


class ComparesTheValueAlone(MemoryMap):
    """Takes a record of another batch with the same value for the one that was read."""

    def multi_compare_and_put(self, keys, read, values):
        now = self.multi_get(keys)
        same = [a and b and a.value == b.value for a, b in zip(now, read, strict=True)]
        read = [a if ok else b for a, b, ok in zip(now, read, same, strict=True)]
        return super().multi_compare_and_put(keys, read, values)


class OverwritesLate(MemoryMap, ComparingMap):
    """A comparing map that does not compare."""

    title = "the comparing map"
    fenced_put = ComparingMap.fenced_put
    multi_compare_and_put = NeverCompares.multi_compare_and_put


class SaysNothingOfALostKey(MemoryMap, ComparingMap):
    """A comparing map that does not say when somebody else has written meanwhile."""

    title = "the comparing map"

    def fenced_put(self, stamp, keys, values, read=None):
        self.multi_compare_and_put(keys, read, values)


class CachesFirst(CachedMap):
    """Fills the cache before the store has taken the write."""

    def fenced_put(self, stamp, keys, values, read=None):
        self._cache.keep([encode_key(key) for key in keys], values)
        self._backing.fenced_put(stamp, keys, values, read)


class KeepsAfterUndoing(CachedMap):
    """Does not drop what the store undoes or another attempt leaves."""

    def move_head(self, expected, new):
        self._backing.move_head(expected, new)


class MissesOne(MemoryMap):
    def scan(self, shard=0, shards=1):
        for chunk in super().scan(shard, shards):
            yield chunk[: len(chunk) - (shard == 0)]


class ListsTwice(MemoryMap):
    """Gives every shard everything."""

    def scan(self, shard=0, shards=1):
        yield from super().scan()


class ListsText(MemoryMap):
    """Lists its keys as it keeps them."""

    def scan(self, shard=0, shards=1):
        for chunk in super().scan(shard, shards):
            yield [((encode_key(key),), found) for key, found in chunk]


class OneForAll(MemoryMap):
    """Every map of it is the same one."""

    shared: ClassVar[dict[str, object]] = {}

    def __init__(self):
        super().__init__()
        self._records = self.shared


class BrokenOnClose(MemoryMap):
    """Empty once it was closed."""

    def close(self):
        self._records.clear()


class TwoMethods(BackingMap):
    """A store without a fence that loses what a second put of the same batch brings."""

    def __init__(self):
        self.records = {}

    def multi_get(self, keys):
        return [self.records.get(encode_key(key)) for key in keys]

    def multi_put(self, keys, values):
        for key, value in zip(keys, values, strict=True):
            found = self.records.get(encode_key(key))
            if getattr(found, "txid", None) != getattr(value, "txid", 0):
                self.records[encode_key(key)] = value


CAUGHT = [
    (ConfusesTypes, "test_no_two_odd_keys_are_confused"),
    (ConfusesTypes, "test_any_keys_come_back_each_with_its_own_record"),
    (InItsOwnOrder, "test_answers_come_in_the_order_of_the_keys_one_for_each"),
    (OncePerKey, "test_answers_come_in_the_order_of_the_keys_one_for_each"),
    (LeavesOutTheAbsent, "test_what_was_never_put_is_none"),
    (KeepsTheFirst, "test_a_put_replaces_and_leaves_other_keys_alone"),
    (TextOnly, "test_a_value_comes_back_as_it_was_and_of_its_type"),
    (Forgetful, "test_many_keys_go_in_one_call"),
    (OneForAll, "test_two_stores_are_two"),
    (BrokenOnClose, "test_what_was_put_is_still_there_after_closing"),
    (MovesAnyHead, "test_the_head_does_not_move_from_anything_else"),
    (MovesAnyHead, "test_a_zombie_driver_moves_no_head"),
    (MovesByBatchAlone, "test_the_head_does_not_move_from_anything_else"),
    (ForgetsResolved, "test_the_head_moves_from_what_is_expected_with_all_its_fields"),
    (NoCheck, "test_a_put_with_any_other_stamp_is_refused_and_changes_nothing"),
    (NoCheck, "test_a_zombies_put_is_refused_and_changes_no_record"),
    (NoCheck, "test_a_new_driver_goes_on_and_the_old_one_is_fenced"),
    (CheckThenAct, "test_a_put_with_any_other_stamp_is_refused_and_changes_nothing"),
    (CheckThenAct, "test_a_zombies_put_is_refused_and_changes_no_record"),
    (
        TakesCommitted,
        "test_a_put_is_refused_once_the_batch_has_settled_and_where_nobody_claimed",
    ),
    (HalfThenRaises, "test_a_put_with_a_key_that_is_none_stores_nothing_at_all"),
    (NeverCompares, "test_compare_and_put_leaves_a_key_alone_whose_record_is_another"),
    (NeverCompares, "test_a_batch_that_commits_while_a_key_is_amended_is_not_lost"),
    (AllOrNothing, "test_compare_and_put_leaves_a_key_alone_whose_record_is_another"),
    (ComparesTheValueAlone, "test_compare_and_put_leaves_a_key_alone_whose_record_is_another"),
    (ComparesAndThenPuts, "test_no_update_of_many_at_once_is_lost"),
    (
        OverwritesLate,
        "test_a_zombie_that_passed_the_check_does_not_overwrite_and_does_not_count",
    ),
    (
        SaysNothingOfALostKey,
        "test_an_attempt_that_meets_the_late_write_of_a_zombie_counts_all_the_same",
    ),
    (
        lambda: CachesFirst(MemoryMap(), 50),
        "test_a_put_with_any_other_stamp_is_refused_and_changes_nothing",
    ),
    (MissesOne, "test_every_record_is_listed_once_over_any_number_of_shards"),
    (ListsTwice, "test_every_record_is_listed_once_over_any_number_of_shards"),
    (ListsText, "test_odd_keys_are_listed_as_they_were"),
    (TwoMethods, "test_opaque_value_4_prev_1_txid_2_of_the_trident_documentation"),
    (TwoMethods, "test_a_failed_write_is_made_good_by_the_replay"),
]


@pytest.mark.parametrize(("make", "name"), CAUGHT, ids=lambda part: getattr(part, "__name__", part))
def test_a_broken_store_is_caught(make, name):
    assert is_caught(suite_of(make), name)


@pytest.mark.parametrize("name", sorted({name for _, name in CAUGHT}))
def test_what_catches_them_lets_a_good_store_pass(name):
    compares = "passed_the_check" in name or "late_write_of_a_zombie" in name
    make = ComparingGood if compares else MemoryMap

    assert set(outcomes_of(suite_of(make), name)) == {None}


class ComparingGood(MemoryMap, ComparingMap):
    title = "the comparing map"
    fenced_put = ComparingMap.fenced_put


@pytest.fixture
def sqlite_suite(tmp_path):
    """Make a suite over SQLite maps that were changed; the maps have typed columns."""
    number = itertools.count()

    def make(break_it):
        def backing(self, kind):
            state = SQLiteState(tmp_path / "states.db", f"state{next(number)}", kind=kind)
            made = state.bind(Schema.parse("word string"), Schema.parse("n bigint")).backing()
            break_it(made)
            return made

        return suite_of(None, make_backing=backing, make_int_backing=backing)

    return make


def adds_blindly(backing):
    """Combine into whatever is there: a replay counts twice."""

    def combine(stamp, keys, values, combiner):
        check_stamp(backing.read_head(), stamp, state="the state")
        records = []
        for key, value in zip(keys, values, strict=True):
            (found,) = backing.multi_get([key])
            old = getattr(found, "value", found)
            new = value if old is None else combiner.combine(old, value)
            records.append(record(backing._kind, new, stamp.txid, stamp.attempt, old))
        backing.multi_put(keys, records)

    backing.fenced_combine = combine


def combines_unchecked(backing):
    real = backing.fenced_combine

    def combine(stamp, keys, values, combiner):
        real(backing.read_head().stamp, keys, values, combiner)

    backing.fenced_combine = combine


@pytest.mark.parametrize(
    ("break_it", "name"),
    [
        (adds_blindly, "test_combining_in_the_store_equals_combining_in_python"),
        (adds_blindly, "test_a_task_retried_within_one_attempt_combines_from_the_same_value"),
        (adds_blindly, "test_a_failed_combine_is_made_good_by_the_replay"),
        (
            combines_unchecked,
            "test_combining_with_any_other_stamp_is_refused_and_changes_nothing",
        ),
    ],
)
def test_a_store_that_combines_by_another_rule_is_caught(sqlite_suite, break_it, name):
    assert is_caught(sqlite_suite(break_it), name)


def test_a_cache_that_keeps_what_the_store_undid_is_caught(tmp_path):
    number = itertools.count()

    def backing(self, kind):
        state = SQLiteState(tmp_path / "states.db", f"state{next(number)}", kind=kind)
        return KeepsAfterUndoing(state.backing(), 50)

    suite = suite_of(None, make_backing=backing)

    assert is_caught(suite, "test_an_opaque_batch_may_come_back_with_other_tuples")


@pytest.fixture
def network():
    server = MapServer()
    with FaultProxy(*server.address, quiet_s=0.01) as proxy:
        yield lambda kind: suite_of(lambda: kind(proxy.port), proxy=proxy)
    server.close()


NETWORK = (
    "test_the_next_attempt_makes_good_what_the_network_lost",
    "test_sums_are_exact_whatever_the_network_lost",
)


def test_a_good_client_is_exact_whatever_the_network_loses(network):
    assert not is_caught(network(RemoteMap), *NETWORK)


@pytest.mark.parametrize("kind", [Deaf, Stubborn, Clinging, Blunt])
def test_a_client_that_misreads_the_network_is_caught(network, kind):
    assert is_caught(network(kind), *NETWORK)


def pytest_run(folder, *options):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "."]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.soak
def test_the_store_of_the_documentation_passes_the_kit(tmp_path):
    store, fence, recipe = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "stores.md").read_text(), re.S
    )
    parts = (store, fence, recipe, USE_THE_RECIPE)
    (tmp_path / "test_store.py").write_text("\n\n".join(parts))

    # Not the histories at random: they are all fsync, and run over our own maps already. With its
    # fence the store does all that it does without; only what is then skipped is of interest.
    chosen = "not test_sums_are_exact and (Fenced or recipe or head)"
    ran = pytest_run(tmp_path, "-rs", "-W", "error", "-k", chosen)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "this store has no fence" in ran.stdout


USE_THE_RECIPE = """
TestTableMap.many = 1_000


def test_the_recipe_travels(tmp_path):
    import pickle
    from waterspout.testing import Batches

    recipe = TableState.opaque(str(tmp_path / "states.db"), "counts")
    assert recipe.risk is None
    for _ in range(2):
        state = pickle.loads(pickle.dumps(recipe)).make_state(None, 0, 1)
    assert state.is_fenced
    batches = Batches(state)
    batches.lose({"x": 9})
    batches.commit({"x": 1})
    assert batches.values("x") == [1]
"""


def test_the_kit_needs_pytest_and_the_rest_of_the_test_kit_does_not():
    program = """if True:
        import sys
        sys.modules["pytest"] = sys.modules["hypothesis"] = None
        import waterspout.testing
        from waterspout.testing import Batches
        from waterspout.testing._faulty import FaultyMap
        try:
            waterspout.testing.StateConformance
        except ImportError as error:
            print(type(error).__name__, error)
    """

    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert ran.stdout.startswith("MissingDependencyError hypothesis is not installed; run: pip")


def test_there_is_nothing_else_that_is_made_on_demand():
    import waterspout.testing

    with pytest.raises(AttributeError, match="has no attribute 'Conformance'"):
        _ = waterspout.testing.Conformance


def test_a_suite_that_does_not_say_how_a_store_is_made_says_so():
    with pytest.raises(NotImplementedError, match="Suite must say how a store is made"):
        type("Suite", (StateConformance,), {})().make_backing(OPAQUE)


def test_a_map_without_a_listing_says_which_map_it_is():
    with pytest.raises(StoreError, match="TwoMethods cannot list what it holds"):
        next(TwoMethods().scan())
