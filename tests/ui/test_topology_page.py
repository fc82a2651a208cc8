"""The page of a topology: whom it asks, and what it says when nobody answers."""

from __future__ import annotations

import copy

import httpx
import pytest

from tests.ui.answers import CORE
from tests.ui.pages import Api, directory, reading
from waterspout.ui._library import ui


def table_of(user, marker):
    (table,) = user.find(marker=marker).elements
    return table


def test_a_driver_that_is_lost_is_shown_as_such_and_what_was_known_stays():
    api = Api(CORE)

    async def act(user):
        await user.open("/t/words")
        await user.should_see("running")
        api.down = httpx.ConnectError("connection refused")
        await user.should_see("The driver does not answer", retries=40)
        await user.should_see("process 4242 on box")

    reading(act, directory(api))


@pytest.mark.soak
def test_a_name_that_is_not_known_is_said_to_be_so():
    async def act(user):
        await user.open("/t/wrods")
        await user.should_see("There is no topology wrods")

    reading(act, directory(Api({})))


def test_the_tables_show_what_the_api_tells_and_the_acker_is_among_them():
    api = Api(CORE)

    async def act(user):
        await user.open("/t/words")
        await user.should_see("process 4242 on box")
        bolts = table_of(user, "bolts").rows
        assert [row["id"] for row in bolts] == ["split", "count", "store", "audit", "__acker"]
        assert bolts[1]["executed"] == 612_500
        assert bolts[1]["link"] == "/t/words/component?id=count"
        (graph,) = user.find(marker="graph").elements
        assert "capacity 0.93" in graph.content

    reading(act, directory(api))
    windows = [query["window"] for _, path, query, _ in api.asked if path == "stats"]
    assert windows[:5] == ["600", "600", "10800", "86400", "all"]


@pytest.mark.soak
def test_another_window_is_asked_for_as_soon_as_it_is_chosen():
    api = Api(CORE)

    async def act(user):
        await user.open("/t/words?window=86400")
        await user.should_see("process 4242 on box")
        assert api.asked[1][2] == {"window": "86400"}
        assert table_of(user, "bolts").rows[0]["link"] == (
            "/t/words/component?window=86400&id=split"
        )

    reading(act, directory(api))


@pytest.mark.soak
def test_a_component_has_its_inputs_outputs_tasks_and_errors():
    async def act(user):
        await user.open("/t/words/component?id=store")
        await user.should_see("bolt, 1 task")
        found = {table._props["title"]: table.rows for table in user.find(kind=ui.table).elements}
        assert [row["window_name"] for row in found["Bolt stats"]] == [
            *("10 min", "3 h", "1 d", "all time")
        ]
        assert [row["task"] for row in found["Tasks"]] == [3, 4]
        assert [row["component"] for row in found["Errors"]] == ["store"]

    reading(act, directory(Api(CORE)))


@pytest.mark.soak
def test_a_component_that_is_not_there_is_said_to_be_so():
    async def act(user):
        await user.open("/t/words/component?id=nobody")
        await user.should_see("words has no component 'nobody'")

    reading(act, directory(Api(CORE)))


@pytest.mark.soak
def test_errors_configuration_and_log_are_shown():
    async def act(user):
        await user.open("/t/words/errors")
        await user.should_see(kind=ui.table)
        assert table_of(user, "errors").rows[0]["count"] == 3
        await user.open("/t/words/config")
        await user.should_see("Find a key or a value")
        rows = table_of(user, "configuration").rows
        assert rows[0] == {"key": "topology.ackers", "value": "1"}
        await user.open("/t/words/log")
        await user.should_see("17:00:59 INFO wave 59 took 0.59 s")

    reading(act, directory(Api(CORE)))


@pytest.mark.soak
def test_a_run_without_errors_says_so():
    quiet = {**copy.deepcopy(CORE), "errors": []}

    async def act(user):
        await user.open("/t/words/errors")
        await user.should_see("No error")

    reading(act, directory(Api(quiet)))


@pytest.mark.soak
def test_on_a_phone_the_graph_goes_down():
    async def act(user):
        await user.open("/t/words")
        await user.should_see("process 4242 on box")
        (graph,) = user.find(marker="graph").elements
        assert graph.content.startswith("flowchart TB\n")

    reading(act, directory(Api(CORE)), narrow=True)


@pytest.mark.soak
def test_a_view_that_a_kind_of_topology_does_not_have_is_not_offered():
    async def act(user):
        await user.open("/t/words")
        await user.should_see("process 4242 on box")
        await user.should_see(marker="view-dead-letters")
        await user.should_not_see(marker="view-batches")

    reading(act, directory(Api(CORE)))


@pytest.mark.soak
def test_a_bug_in_a_view_is_shown_and_logged(caplog):
    broken = {**CORE, "config": ["not", "options"]}

    async def act(user):
        await user.open("/t/words/config")
        await user.should_see("this is a bug", retries=20)

    reading(act, directory(Api(broken)))
    assert "Configuration" in caplog.text
