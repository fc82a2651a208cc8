"""The list of topologies: what is there, how it stands, what a restart goes on with."""

from __future__ import annotations

import pytest

from tests.ui.pages import Api, directory, reading, served
from waterspout.ui._library import ui


def rows(user) -> list[dict]:
    (table,) = user.find(kind=ui.table).elements
    return table.rows


def test_a_home_in_which_nothing_has_run_explains_itself_with_commands():
    async def act(user):
        await user.open("/")
        await user.should_see("Nothing has run here yet")
        await user.should_see("waterspout demo")
        await user.should_see("waterspout run topology.py --ui")
        await user.should_see("/nowhere")

    reading(act, directory(Api({}), list))


@pytest.mark.soak
def test_a_run_is_listed_with_its_link():
    async def act(user):
        await user.open("/")
        await user.should_see("1: 1 running")
        assert rows(user)[0]["link"] == "/t/words"

    reading(act, directory(Api({})))
    assert served
