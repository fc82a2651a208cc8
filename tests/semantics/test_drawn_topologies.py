"""Whole topologies and schedules of failures at random: what `explain()` calls exact is exact."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from tests.rows import stores
from tests.semantics.drawn_cases import (
    TRANSACTIONAL,
    Ask,
    NewValues,
    Source,
    Static,
    Step,
    Update,
    draw,
    draw_rows,
)
from tests.semantics.drawn_runs import first_wrong, run
from tests.soaking import repeated, soaked
from waterspout.coordination import loop
from waterspout.coordination.commit_protocol import CommitProtocol, LedgerKeeper
from waterspout.spouts._base import SpoutKind
from waterspout.spouts._read_files import Tally
from waterspout.state import RowsState, _head
from waterspout.state._batched import BatchedMap
from waterspout.state.sqlite import _rows as sqlite_rows
from waterspout.trident import _topology
from waterspout.trident.plan import verdicts
from waterspout.trident.plan.nodes import Query
from waterspout.trident.plan.nodes import Update as PlannedUpdate


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(1800)
@repeated(80, in_soak=3000)
def test_nothing_is_wrong(count):
    totals: Counter[str] = Counter()

    assert first_wrong(range(count), totals) == ""
    assert totals["batches"] > 2 * count
    assert min(totals["crashes"], totals["exact"], totals["weak"]) > count / 2


@pytest.mark.timeout(1800)
@repeated(40, in_soak=1200)
def test_nothing_is_wrong_with_rows(count):
    totals: Counter[str] = Counter()

    assert first_wrong(range(count), totals, draw_rows) == ""
    assert min(totals["crashes"], totals["exact"]) > count / 2


def test_a_seed_has_one_history():
    first, second = run(draw(7)), run(draw(7))

    assert first.batches == second.batches > 0
    assert (first.crashes, first.fired) == (second.crashes, second.fired)


def test_everything_is_drawn():
    found: Counter[str] = Counter()
    for seed in range(1000):
        case = draw(seed)
        found.update(_traits(case.things))
        found["nothing happens"] += case.schedule.is_calm
        found["strict"] += case.schedule.strict
        found["zombies"] += case.schedule.zombies
        found["stores that are away"] += case.schedule.away > 0

    assert min(found.values()) > 20, found
    assert len(found) > 30, found


def _traits(things):
    for thing in things:
        match thing:
            case Source(kind, form):
                yield f"{kind} {form}"
            case Step(name):
                yield name
            case Ask(state=state):
                asked = things[state]
                yield "static" if isinstance(asked, Static) else f"asks {asked.kind}"
            case Update(how=how, kind=kind, place=place, partitions=partitions):
                yield from (f"state by {how}", f"{kind} state", f"state in {place.store}")
                yield f"{partitions} partitions"
            case NewValues():
                yield "new values"


def _ask_blindly(monkeypatch):
    monkeypatch.setattr(verdicts, "_why_an_answer_is_wrong", lambda plan, query: None)


def _trust_static_states(monkeypatch):
    found = verdicts._why_it_varies

    def why(plan, node):
        return None if isinstance(node, Query) else found(plan, node)

    monkeypatch.setattr(verdicts, "_why_it_varies", why)


def _deal_by_all_fields(monkeypatch):
    monkeypatch.setattr(PlannedUpdate, "keys", property(lambda self: None))


def _spread_without_keys(monkeypatch):
    monkeypatch.setattr(_topology, "why_in_one", lambda update, kind: None)


def _trust_lists_of_files(monkeypatch):
    monkeypatch.setattr(Tally, "__eq__", lambda self, other: True)


def _let_states_share_a_table(monkeypatch):
    monkeypatch.setattr(_head, "refuse_other_name", lambda head, name, state: None)


def _forget_that_all_have_settled(monkeypatch):
    monkeypatch.setattr(LedgerKeeper, "all_settled", lambda self: None)


def _ask_no_witness(monkeypatch):
    for state in (BatchedMap, RowsState):
        monkeypatch.setattr(state, "refuse_lost_records", lambda self: None)


def _plan_what_has_begun_again(monkeypatch):
    monkeypatch.setattr(
        loop, "is_pinned", lambda spout, pins_batches: spout.kind is SpoutKind.TRANSACTIONAL
    )


def _leave_the_rows_of_a_lost_attempt(monkeypatch):
    for store in (sqlite_rows, stores):
        monkeypatch.setattr(store, "takes_over", lambda expected, new: False)


def _tell_who_knows_already(monkeypatch):
    forgets = property(lambda self: {}, lambda self, claimed: None)
    monkeypatch.setattr(CommitProtocol, "_claimed", forgets, raising=False)


def _asks_a_transactional_state(case):
    asked = [case.things[t.state] for t in case.things if isinstance(t, Ask)]
    return any(isinstance(t, Update) and t.kind == TRANSACTIONAL for t in asked)


def _has_static_states_that_change(case):
    return case.schedule.change > 0 and any(isinstance(t, Static) for t in case.things)


def _spreads_an_updater(case):
    return any(update.is_persist and update.partitions > 1 for update in case.updates.values())


def _meets(*whats):
    def meets(case):
        return case.schedule.disaster is not None and case.schedule.disaster.what in whats

    return meets


_loses_a_list = _meets("list deleted", "list emptied", "list restored")


@pytest.mark.parametrize(
    ("take_out", "concerned"),
    [
        pytest.param(_ask_blindly, _asks_a_transactional_state, id="C1"),
        soaked(_trust_static_states, _has_static_states_that_change, id="C2"),
        pytest.param(_deal_by_all_fields, _spreads_an_updater, id="C3-declared"),
        soaked(_spread_without_keys, _spreads_an_updater, id="C3-undeclared"),
        pytest.param(_trust_lists_of_files, _loses_a_list, id="C4"),
        pytest.param(_let_states_share_a_table, lambda case: case.shares_a_store, id="C5"),
        soaked(_forget_that_all_have_settled, _meets("restored", "failover"), id="C7"),
        pytest.param(_ask_no_witness, _meets("emptied"), id="C13"),
        soaked(_tell_who_knows_already, lambda case: case.schedule.away > 0, id="settling"),
    ],
)
def test_what_was_wrong_once_is_found_when_its_fix_is_taken_out(monkeypatch, take_out, concerned):
    take_out(monkeypatch)

    cases = filter(concerned, map(draw, range(1000)))
    found = next((outcome for outcome in map(run, cases) if outcome.wrong), None)

    assert found is not None


@pytest.mark.parametrize(
    "take_out", [_plan_what_has_begun_again, _leave_the_rows_of_a_lost_attempt]
)
def test_rows_go_wrong_when_what_keeps_them_exact_is_taken_out(monkeypatch, take_out):
    take_out(monkeypatch)

    assert any(run(draw_rows(seed)).wrong for seed in range(300))
