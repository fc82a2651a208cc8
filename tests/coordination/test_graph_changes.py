"""Every kind of change of a topology, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from waterspout.coordination.graph_changes import Ruling, compare
from waterspout.errors import ConfigError, StateMismatchError
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import EmittedBatch, Ledger

LINES = {
    "spout": "FileSpout",
    "kind": "transactional",
    "path": "/in",
    "format": "json",
    "fields": "word string, amount bigint",
}
COUNTS = {
    "backend": "sqlite",
    "kind": "opaque",
    "table": "counts",
    "layout": "word string -> n bigint",
    "partitions": 2,
}
TOTALS = {**COUNTS, "table": "totals"}
OWN = {"backend": "Mine", "partitions": 1}
WINDOW = {**COUNTS, "table": "state2", "layout": "partition int, slot int -> text string"}
GRAPH = {"spout lines": LINES, "state state1": COUNTS}
RESTING = Ledger(
    "words",
    GRAPH,
    current=5,
    committed_attempt=0,
    committed_metadata={"lines": {}},
    earlier_attempt=0,
    earlier_metadata={"lines": {}},
    settled=True,
)
BEGUN = replace(RESTING, emitted={5: EmittedBatch(0, {"lines": {}})}, begun=(0,))
REST = "until it comes to rest (waterspout run --until-idle), then"


def told(given, ledger=RESTING, retire=()):
    found = compare(ledger, given, retire)
    return [(change.piece, change.ruling, change.text) for change in found.changes]


def with_state(**changes):
    return {"spout lines": LINES, "state state1": {**COUNTS, **changes}}


def with_spout(**changes):
    return {"spout lines": {**LINES, **changes}, "state state1": COUNTS}


def test_an_equal_graph_has_no_changes_and_stays_as_it_is():
    found = compare(RESTING, GRAPH)

    assert (found.changes, found.graph, found.names) == ((), GRAPH, {"state1": "state1"})


def test_a_new_state_begins_with_the_next_batch_and_the_ledger_notes_it():
    given = {**GRAPH, "state state2": TOTALS}

    found = compare(RESTING, given)

    assert told(given) == [
        (
            "state state2 (sqlite totals)",
            Ruling.NOTED,
            "is new: it begins empty, with batch 5. What the 4 batches before it held is not in "
            "it.",
        )
    ]
    assert found.graph == {**GRAPH, "state state2": {**TOTALS, "since": 5}}
    assert (found.first_of("state1"), found.first_of("state2")) == (1, 5)


def test_what_was_noted_stays_in_later_runs():
    later = replace(RESTING, current=9, fingerprint={"state state1": {**COUNTS, "since": 5}})

    found = compare(later, {"state state1": COUNTS})

    assert (found.changes, found.first_of("state1")) == ((), 5)


def test_before_anything_has_committed_a_new_state_begins_as_all_do():
    fresh = Ledger("words", GRAPH)
    given = {**GRAPH, "state state2": TOTALS}

    assert compare(fresh, given).graph == given
    assert told(given, fresh)[0][1:] == (
        Ruling.ALLOWED,
        "is new: it begins with batch 1, as all.",
    )


def test_a_state_that_is_added_before_another_leaves_that_one_its_name():
    given = {"spout lines": LINES, "state state1": TOTALS, "state state2": COUNTS}

    found = compare(RESTING, given)

    assert found.names == {"state1": "state2", "state2": "state1"}
    assert found.graph == {**GRAPH, "state state2": {**TOTALS, "since": 5}}
    assert [str(change).partition(":")[0] for change in found.changes] == [
        "state state1 (sqlite totals) is new"
    ]
    again = compare(RESTING.grow(found.graph), given)
    assert (again.changes, again.names) == ((), found.names)


def test_states_without_a_table_are_found_again_by_their_names():
    ledger = replace(RESTING, fingerprint={"state state1": OWN})

    found = compare(ledger, {"state state1": OWN, "state state2": OWN})

    assert found.names == {"state1": "state1", "state2": "state2"}
    assert list(found.graph) == ["state state1", "state state2"]


def test_a_new_spout_begins_at_its_beginning_with_the_next_batch():
    given = {**GRAPH, "spout more": LINES}

    assert told(given) == [
        (
            "spout more",
            Ruling.ALLOWED,
            "is new: it begins at its beginning, with batch 5.",
        )
    ]
    assert compare(RESTING, given).graph["spout more"] == {**LINES, "since": 5}


@pytest.mark.parametrize(("piece", "name"), [("state state1", "counts"), ("spout lines", "lines")])
def test_what_is_gone_in_silence_is_refused_with_the_remedy(piece, name):
    given = {key: value for key, value in GRAPH.items() if key != piece}

    ((_, ruling, text),) = told(given)

    assert ruling is Ruling.REFUSED
    assert text == (
        "is not in the topology any more. If that is meant, say so: waterspout run --retire "
        f"{name}, or Config(retire=['{name}']). If it was renamed or moved, change it back."
    )


@pytest.mark.parametrize("name", ["counts", "state1", "state state1"])
def test_a_state_is_retired_by_its_table_or_its_name(name):
    given = {"spout lines": LINES}

    found = compare(RESTING, given, [name])

    assert [(change.ruling, change.text) for change in found.changes] == [
        (
            Ruling.NOTED,
            "is retired: batch 4 is its last. Its records stay as they are; nobody writes them any "
            "more.",
        )
    ]
    assert found.graph == {**given, "retired state state1": {**COUNTS, "until": 4}}
    # Saying it again in later runs does no harm.
    again = compare(RESTING.grow(found.graph), given, [name])
    assert (again.changes, again.graph) == ((), found.graph)


def test_a_spout_is_retired_and_begins_anew_when_it_comes_back():
    given = {"state state1": COUNTS, "spout more": LINES}

    found = compare(RESTING, given, ["lines"])

    assert [change.ruling for change in found.changes] == [Ruling.NOTED, Ruling.ALLOWED]
    assert found.graph == {
        "state state1": COUNTS,
        "spout more": {**LINES, "since": 5},
        "retired spout lines": {**LINES, "until": 4},
    }
    back = compare(RESTING.grow(found.graph), {**given, "spout lines": LINES})
    assert back.graph == {
        **given,
        "spout lines": {**LINES, "since": 5},
        "spout more": {**LINES, "since": 5},
    }


def test_a_name_that_nothing_has_cannot_be_retired():
    with pytest.raises(ConfigError, match="has nothing named 'count', but counts, lines"):
        compare(RESTING, GRAPH, ["count"])


def test_what_is_still_in_the_code_is_not_retired():
    assert told(GRAPH, retire=["counts"])[0][1:] == (
        Ruling.REFUSED,
        "is to be retired, but it is still in the topology. Take it out of the code.",
    )


@pytest.mark.parametrize(
    ("ledger", "batch"), [(BEGUN, 5), (replace(RESTING, settled=False), 4)], ids=["begun", "marked"]
)
def test_a_state_that_may_hold_a_part_of_a_batch_is_not_retired(ledger, batch):
    ((_, ruling, text),) = told({"spout lines": LINES}, ledger, ["counts"])

    assert ruling is Ruling.REFUSED
    assert f"in the middle of batch {batch}, which it may hold in part" in text
    assert REST in text


def test_the_table_of_a_retired_state_is_not_used_again():
    retired = RESTING.grow(compare(RESTING, {"spout lines": LINES}, ["counts"]).graph)

    ((_, ruling, text),) = told(GRAPH, retired)

    assert ruling is Ruling.REFUSED
    assert "that has been retired: the batches since then are not in it" in text


def test_a_state_in_another_table_is_another_state():
    rulings = {piece: ruling for piece, ruling, _ in told(with_state(table="elsewhere"))}

    assert rulings == {
        "state state1 (sqlite elsewhere)": Ruling.NOTED,
        "state state1 (sqlite counts)": Ruling.REFUSED,
    }


@pytest.mark.parametrize("layout", ["word string -> n bigint, total bigint"])
def test_a_new_column_begins_empty_and_the_ledger_notes_it(layout):
    found = compare(RESTING, with_state(layout=layout))

    assert [(change.ruling, change.text) for change in found.changes] == [
        (
            Ruling.NOTED,
            "has more columns now: total. The new column begins empty, with batch 5; the other "
            "columns go on.",
        )
    ]
    grown = {**COUNTS, "layout": layout, "columns_since": {"total": 5}}
    assert found.graph["state state1"] == grown
    later = replace(RESTING.grow(found.graph), current=8)
    more = compare(later, with_state(layout=f"{layout}, least bigint"))
    assert more.graph["state state1"]["columns_since"] == {"total": 5, "least": 8}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layout": "word string, day date -> n bigint"}, "its records stand under other keys"),
        ({"layout": "(any key) -> n bigint"}, "has the key (word string) and is to have (any)"),
        ({"layout": "word string -> total bigint"}, "has a column 'n' that is not in the topology"),
        ({"layout": "word string -> n double"}, "what is stored is bigint"),
        ({"layout": "word string -> total bigint, n bigint"}, "new ones behind them"),
        ({"kind": "transactional"}, "was an opaque state and is a transactional one now"),
    ],
)
def test_what_does_not_fit_the_records_of_a_state_is_refused(changes, reason):
    ((piece, ruling, text),) = told(with_state(**changes))

    assert (piece, ruling) == ("state state1 (sqlite counts)", Ruling.REFUSED)
    assert reason in text


def test_the_partitions_of_a_state_may_change_where_a_key_has_one_record():
    assert told(with_state(partitions=8)) == [
        (
            "state state1 (sqlite counts)",
            Ruling.ALLOWED,
            "is spread over 8 partitions from batch 5 on, not 2. A key has one record, whoever "
            "writes it: nothing is moved.",
        )
    ]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({**WINDOW, "table": "mine", "by_partition": True}, "is kept by partition, and would not"),
        (OWN, "only its own code knows"),
    ],
)
def test_the_partitions_of_what_is_kept_by_partition_are_not_changed(entry, reason):
    ledger = replace(RESTING, fingerprint={"state state1": {**entry, "partitions": 3}})

    ((_, ruling, text),) = told({"state state1": entry}, ledger)

    assert ruling is Ruling.REFUSED
    assert reason in text
    assert "Write parallelism_hint(3)" in text


def test_a_second_window_without_a_store_cannot_be_told_from_the_first():
    ledger = replace(RESTING, fingerprint={"state state2": WINDOW})

    ((_, ruling, text),) = told(
        {"state state2": WINDOW, "state state3": {**WINDOW, "table": "state3"}}, ledger
    )

    assert ruling is Ruling.REFUSED
    assert "Give the new one a store" in text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"spout": "RateSpout"}, "a position that one has stored means nothing to the other"),
        ({"kind": "opaque"}, "what is stored of its batches would not fit"),
        ({"path": "/other"}, "had path /in and has /other now: the files that were read"),
        ({"format": "csv"}, "files that wait would be read in another way"),
        ({"topic": "t"}, "had topic none and has t now: its stored positions would not fit"),
    ],
)
def test_a_spout_of_another_kind_is_refused_with_the_reason(changes, reason):
    ((piece, ruling, text),) = told(with_spout(**changes))

    assert (piece, ruling) == ("spout lines", Ruling.REFUSED)
    assert reason in text


def test_a_spout_may_have_other_fields_from_the_next_batch_on():
    ((_, ruling, text),) = told(with_spout(fields="word string, amount double, day date"))

    assert ruling is Ruling.NOTED
    assert text == (
        "has other fields from batch 5 on: day is new; amount was bigint and is double."
    )


def test_streams_of_a_core_spout_may_change():
    ledger = Ledger("words", {"spout s": {"kind": "S", "streams": {"default": ["a"]}}})

    ((_, ruling, text),) = told(
        {"spout s": {"kind": "S", "streams": {"default": ["a"], "errors": ["e"]}}}, ledger
    )

    assert (ruling, text) == (
        Ruling.NOTED,
        "has other streams from now on: errors is new.",
    )


@pytest.mark.parametrize(
    "given",
    [
        {**GRAPH, "spout more": LINES},
        with_spout(fields="word string"),
        with_state(layout="word string -> n bigint, total bigint"),
    ],
    ids=["spout", "fields", "column"],
)
def test_a_batch_of_which_a_transactional_state_may_hold_a_part_keeps_its_rows(given):
    kind = {"kind": "transactional"}
    changed = {**given, "state state1": {**given["state state1"], **kind}}
    opaque = replace(BEGUN, fingerprint=GRAPH)
    transactional = replace(BEGUN, fingerprint=with_state(**kind))

    assert compare(opaque, given).refused == []
    (refused,) = compare(transactional, changed).refused
    assert "may hold a part of batch 5" in refused.text
    assert REST in refused.text


def test_a_new_state_may_join_a_batch_that_has_begun():
    transactional = replace(BEGUN, fingerprint=with_state(kind="transactional"))
    given = {**with_state(kind="transactional"), "state state2": TOTALS}

    found = compare(transactional, given)

    assert (found.refused, found.first_of("state2")) == ([], 5)


def test_a_rollback_takes_what_began_with_the_batch_back_with_it():
    grown = RESTING.grow({**GRAPH, "state state2": {**TOTALS, "since": 5}})

    back = grown.roll_back()

    assert back.fingerprint["state state2"]["since"] == 4
    assert Ledger.from_json(back.to_json()) == back


def test_a_committer_of_other_inputs_is_refused_and_a_new_one_begins_with_the_next_batch():
    commit = {"kind": "Commit", "inputs": ["count.default by fields"]}
    ledger = replace(RESTING, fingerprint={"committer a": commit})

    changes = told({"committer a": {**commit, "inputs": []}, "committer b": commit}, ledger)

    assert [(piece, ruling) for piece, ruling, _ in changes] == [
        ("committer a", Ruling.REFUSED),
        ("committer b", Ruling.NOTED),
    ]


def test_a_graph_that_grows_does_not_lose_an_attempt():
    begun = RESTING.emit(TransactionAttempt(5, 0), {"lines": {}}).begin(TransactionAttempt(5, 0))

    grown = begun.grow(compare(begun, {**GRAPH, "state state2": TOTALS}).graph)

    assert replace(grown, fingerprint=begun.fingerprint) == begun


def test_what_was_added_later_is_noted_while_it_is_filled_and_when_it_is_whole():
    layout = "word string -> n bigint, total bigint"
    later = {
        "state state1": {**COUNTS, "layout": layout, "columns_since": {"total": 5}},
        "state state2": {**TOTALS, "since": 5},
    }
    given = {"state state1": {**COUNTS, "layout": layout}, "state state2": TOTALS}
    found = compare(replace(RESTING, fingerprint=later, current=8), given)

    assert [found.lacking(name) for name in ("state1", "state2")] == [("total",), ()]
    assert found.why_not_whole("state1") == "its column total began with batch 5"
    assert found.why_not_whole("state2") == "it began with batch 5, and has nothing of those before"
    begun = RESTING.begin_to_fill(found.filling(["state1", "state2"]))
    with pytest.raises(StateMismatchError, match="was filled in part, by a fill that did not end"):
        compare(begun, given).refuse_half_filled()
    assert begun.why_not_roll_back() is not None
    whole = compare(begun.grow(compare(begun, given).filled(["state1", "state2"])), given)
    whole.refuse_half_filled()
    assert [whole.lacking(name) for name in ("state1", "state2")] == [None, None]
    assert (whole.changes, whole.why_not_whole("state2"), whole.first_of("state2")) == ((), None, 5)


def test_what_a_retired_spout_gave_is_not_counted_again():
    retired = compare(RESTING, {"state state1": COUNTS}, ["lines"])

    with pytest.raises(ConfigError, match="spout lines was retired: what it gave cannot be"):
        retired.refuse_retired_spouts()
    assert retired.why_not_whole("state1") == "spout lines was retired"
