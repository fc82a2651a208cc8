"""`waterspout drpc`: a function of a running topology, called from a shell."""

from __future__ import annotations

import json

import pytest

from tests.coordination.commanded import until
from tests.drpc.test_http import Odd, serving
from tests.drpc.test_service import Shout


@pytest.fixture
def url(place):
    """A word count that runs in the home, served, with two functions."""
    with serving(place, Shout(), Odd()) as (_, url):
        status = place / "home" / "words" / "commands" / "status"
        until(lambda: status.exists() and url in status.read_text())
        yield url


def test_the_tuples_of_the_answer_are_lines_and_a_document_for_programs(cli, url):
    assert cli("drpc", "odd", "cat") == (0, '["a", 1, null]\n', "")
    told = json.loads(cli("drpc", "shout", "to be", "--json").out)
    assert told == {"function": "shout", "result": [["TO BE"]], "txid": told["txid"]}
    assert json.loads(cli("drpc", "odd", "--json").out)["txid"] == 7


def test_the_run_is_found_by_its_home_or_by_its_address(cli, url):
    assert cli("drpc", "odd", "x", "--topology", "words").code == 0
    assert cli("drpc", "odd", "x", "--url", f"{url}/").code == 0
    missing = cli("drpc", "odd", "x", "--topology", "wrods")
    assert missing.code == 2
    assert "'wrods' is not served" in missing.err
    assert "--topology words" in missing.err
    nobody = cli("drpc", "odd", "x", "--home", "elsewhere")
    assert nobody.code == 2
    assert "waterspout run FILE --serve" in nobody.err
    assert cli("drpc", "odd", "x", "--url", "localhost:1").code == 2


def test_a_call_that_has_no_result_ends_with_1_and_says_why(cli, url):
    failed = cli("drpc", "odd", "fail")
    unknown = cli("drpc", "even", "x", "--json")

    assert (failed.code, failed.out) == (1, "")
    assert failed.err == "error: FAILED_REQUEST in each(shout): ValueError: no\n"
    assert unknown.code == 1
    assert json.loads(unknown.err)["error"]["kind"] == "DRPCExecutionException"
