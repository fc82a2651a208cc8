"""Views of a topology, read by NiceGUI's simulated reader over answers in the shapes of the API."""

from __future__ import annotations

import json

import httpx
import pytest
from nicegui import ui

from tests.ui.pages import Api, directory, reading
from tests.ui.test_attempts import AGAIN, DONE, FAILED
from tests.ui.test_series import BATCHES
from waterspout.ui._asking import outcome_text
from waterspout.ui._attempts import matrix
from waterspout.ui._batches_view import matrix_rows
from waterspout.ui._control_view import parallelism_of
from waterspout.ui._letters_view import letter_rows

STATES = [
    {"name": "a", "kind": "opaque", "store": "sqlite:/x#a", "guarantee": "exactly-once", "why": ""},
    {"name": "b", "kind": "opaque", "store": "redis", "guarantee": "exactly-once", "why": ""},
]
TOPOLOGY = {"name": "words", "kind": "trident", "status": "running", "states": STATES}
LETTER = {
    "id": "7:1:0", "failed_in": "each(parse)", "error": "ValueError: no number\nmore",
    "failures": 1, "can_be_replayed": True, "position": "/data/a.csv:3", "txid": 7, "attempt": 1,
    "trace": "T",
    "first_failed": "2026-11-17T00:00:00+00:00", "last_failed": "2026-11-17T00:00:01+00:00",
    "row": {"line": "'x'", "n": "7"}, "request": None, "status": "",
    "fields": {"line": "string", "n": "bigint"}, "texts": {"line": "x", "n": "7"},
}  # fmt: skip
LETTERS = {"total": 3, "matching": 1, "components": ["each(parse)"], "letters": [LETTER]}
SNAPSHOT = {
    "in_flight": [{"txid": 8, "attempt": 0, "phase": "processing", "waits_for": "processing"}]
}


class Posting(Api):
    """An API that remembers the bodies of what it was asked to do, with the tokens."""

    def __init__(self, answers) -> None:
        super().__init__(answers)
        self.done: list[tuple[str, object, str | None]] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            body = json.loads(request.content or b"null")
            self.done.append((request.url.path, body, request.headers.get("authorization")))
            if request.headers.get("authorization") != "Bearer sesame":
                return httpx.Response(401, json={"error": {"message": "send the token"}})
        return super().handle(request)


def seen(act, **answers):
    api = Posting({"topology": TOPOLOGY, **answers})
    reading(lambda user: act(user, api), directory(api))


def table(user, mark: str) -> ui.table:
    return next(iter(user.find(marker=mark).elements))


@pytest.mark.soak
def test_batches_pressure_and_states_are_shown_as_the_api_tells_them():
    """One reader for three views: to begin a simulation takes longer than to read one."""
    told = {"window": 600, "step_s": 1, "points": BATCHES, "now": BATCHES[0], "reason": "so it is"}
    batches = {"attempts": [DONE, FAILED, AGAIN], "states": ["a", "b"]}

    async def act(user, api):
        await user.open("/t/words/batches")
        await user.should_see("Commit matrix", retries=40)
        grid, rows = table(user, "matrix"), table(user, "attempts").rows
        assert [column["label"] for column in grid.columns] == ["Attempt", "a", "b"]
        assert [(r["name"], r["s0"], r["s1"]) for r in grid.rows] == [
            ("7:1", "written", "claimed"), ("7", "lost", "lost"), ("6", "committed", "committed"),
        ]  # fmt: skip
        assert [(row["name"], row["outcome"], row["replay"]) for row in rows] == [
            ("7:1", "in flight", True), ("7", "failed", False), ("6", "committed", False),
        ]  # fmt: skip
        chart = next(iter(user.find(marker="timeline").elements))
        assert chart.options["yAxis"]["data"] == ["7:1", "7", "6"]
        api.answers["batches"] = {"attempts": [], "states": []}
        await user.should_see("No batch yet", retries=40)
        await user.should_not_see("Commit matrix")

        await user.open("/t/words/pressure")
        await user.should_see("so it is", retries=40)
        await user.should_see("waits at in: 4 files, 800 bytes")
        await user.should_see("in flight: 3")
        await user.should_see("Lag of each spout: files")
        assert ("GET", "pressure", {"window": "600"}, None) in api.asked

        await user.open("/t/words/states")
        await user.should_see("batch 8, attempt 0: processing, waits for processing", retries=40)
        user.find(marker="key").type("cat")
        user.find(marker="look").click()
        await user.should_see("42")
        user.find(marker="explain").click()
        await user.should_see("there is no states/a/explain here")
        assert ("GET", "states/a/value", {"key": "cat"}, None) in api.asked

    answers = {"states/a/value": {"value": 42}, "pressure": told, "batches": batches}
    seen(act, snapshot=SNAPSHOT, **answers)


def test_a_letter_is_looked_at_repaired_and_replayed_with_the_token():
    async def act(user, api):
        await user.open("/t/words/dead-letters")
        await user.should_see("1 of 3", retries=40)
        assert [row["id"] for row in table(user, "letters").rows] == ["7:1:0"]
        user.find(marker="letters").trigger("rowClick", [None, {"id": "7:1:0"}, 0])
        await user.should_see("Letter 7:1:0")
        await user.should_see("/data/a.csv:3")
        user.find(marker="field-n").clear().type("8")
        user.find(marker="replay-this").click()
        await user.should_see("n becomes 8")
        user.find(marker="do").click()
        await user.should_see("send the token")
        user.find(marker="token").type("sesame")
        user.find(marker="do").click()
        await user.should_see("1 dead letter is to be replayed")
        body = {"ids": ["7:1:0"], "set": {"n": "8"}}
        path = "/api/v1/dead-letters/replay"
        assert api.done == [(path, body, None), (path, body, "Bearer sesame")]

    answer = {"done": 1, "text": "1 dead letter is to be replayed", "problem": ""}
    seen(act, **{"dead-letters": LETTERS, "dead-letters/replay": answer})


@pytest.mark.soak
def test_a_button_does_nothing_before_it_was_asked_and_shows_the_outcome():
    async def act(user, api):
        await user.open("/t/words/control")
        await user.should_see("Deactivate", retries=40)
        user.find(marker="control-kill").click()
        await user.should_see("Kill words?")
        assert api.done == []
        user.find(marker="wait").type("5")
        user.find(marker="token").type("sesame")
        user.find(marker="do").click()
        await user.should_see("killed after batch 4")
        assert api.done == [("/api/v1/kill", {"wait_s": 5.0}, "Bearer sesame")]
        user.find(marker="leave").click()
        user.find(marker="control-rebalance").click()
        user.find(marker="parallelism").type("split")
        user.find(marker="do").click()
        await user.should_see("split is not COMPONENT=N, such as split=4")
        assert len(api.done) == 1

        api.answers |= {"/drpc": {"functions": ["words"]}, "/drpc/words": {"result": [["cat", 3]]}}
        await user.open("/t/words/drpc")
        await user.should_see("Arguments", retries=40)
        user.find(marker="args").type("cat dog")
        user.find(marker="call").click()
        await user.should_see('["cat", 3]')
        assert ("GET", "/drpc/words", {"args": "cat dog", "timeout": "4"}, None) in api.asked

    seen(act, kill={"outcome": "done", "text": "killed after batch 4"})


def test_rows_of_tables_are_plain_texts():
    columns, rows = matrix_rows(matrix([DONE], ["a"]))

    assert [column["name"] for column in columns] == ["name", "s0", "s1"]
    assert (rows[0]["s0"], rows[0]["titles"]["s0"][:28]) == (
        "committed",
        "batch 6, attempt 0: committe",
    )
    (row,) = letter_rows([LETTER])
    assert (row["values"], row["error"]) == ("line='x', n=7", "ValueError: no number")
    assert outcome_text(None) == "Done."
    with pytest.raises(ValueError, match="split=0 is not COMPONENT=N"):
        parallelism_of("a=1, split=0")
