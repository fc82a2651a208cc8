"""Counts of failures: in a run, and over runs."""

from __future__ import annotations

import json

import pytest

from waterspout.waves import failures
from waterspout.waves.failures import FailureCounts, digest


def add(counts: FailureCounts, name: str, *, deadly: bool = False) -> int:
    return counts.add(name, lambda: f"key of {name}", deadly=deadly).count


def restarted(counts: FailureCounts) -> FailureCounts:
    return FailureCounts(json.loads(json.dumps(counts.stored())))


def test_counts_go_on_in_the_next_run_with_the_time_of_the_first_failure():
    first = FailureCounts()
    since = first.add("a", lambda: "key of a", deadly=True).since
    add(first, "a")
    second = restarted(restarted(first))

    again = second.add("a", lambda: "key of a", deadly=False)

    assert (again.count, again.since) == (3, since)


def test_what_is_done_is_forgotten_in_the_next_run_too():
    counts = FailureCounts()
    add(counts, "a"), add(counts, "b")
    counts.forget("a")

    assert list(counts.stored()) == ["key of b"]
    assert add(restarted(counts), "a") == 1


def test_it_has_news_from_a_failure_until_that_is_stored():
    counts = FailureCounts()
    story = [counts.has_news]
    add(counts, "a")
    story.append(counts.has_news)
    counts.stored()
    story.append(counts.has_news)
    counts.add("letter", lambda: None, deadly=False)

    assert [*story, counts.has_news] == [False, True, False, False]


def test_only_so_many_are_stored_the_newest(monkeypatch):
    monkeypatch.setattr(failures, "_STORED_MAX", 3)
    first = FailureCounts()
    for name in "abcd":
        add(first, name)
    second = restarted(first)
    add(second, "x"), add(second, "b")

    assert list(first.stored()) == ["key of a", "key of b", "key of c"]
    assert second.stored() == {
        "key of c": [1, second.stored()["key of c"][1]],
        "key of x": [1, second.stored()["key of x"][1]],
        "key of b": [2, second.stored()["key of b"][1]],
    }


def test_a_message_is_deadly_until_it_fails_in_another_way():
    counts = FailureCounts()
    story = [counts.is_deadly("a")]
    for deadly in (True, False):
        add(counts, "a", deadly=deadly)
        story.append(counts.is_deadly("a"))

    assert story == [False, True, False]


@pytest.mark.parametrize("other", [(2, "default", ("x",)), (1, "side", ("x",)), (1, "default", ())])
def test_messages_are_told_apart_by_id_stream_and_values(other):
    assert digest(1, "default", ("x",)) == digest(1, "default", ("x",))
    assert digest(*other) != digest(1, "default", ("x",))


def test_any_message_has_a_digest():
    assert len({digest(object(), "default", (lambda: 1,)), digest((1, "\ud800"), "x", None)}) == 2
