"""Commands from the driver's own process, as its server gives them."""

from __future__ import annotations

import threading

import pytest

from tests.coordination.commanded import embedded, running, until, words
from waterspout import Config
from waterspout.coordination.commands.messages import Change
from waterspout.coordination.store import MemoryCoordinationStore
from waterspout.errors import CommandError, ConfigError


def test_a_run_in_memory_obeys_too(tmp_path):
    with running(words(tmp_path), MemoryCoordinationStore("words")) as (run, _):
        run.process_all_available(timeout=30)

        assert run.ask("deactivate", "ann").facts == {"active": False}
        assert run.status == "inactive"
        assert run.ask("kill", "ann").text == "killed after batch 3"
        assert run.await_termination(timeout=30)


def test_what_cannot_be_is_refused_before_the_run_is_asked(tmp_path):
    with running(words(tmp_path), embedded(tmp_path)) as (run, _):
        with pytest.raises(ConfigError, match="max_spout_pending is 0"):
            run.ask("rebalance", "ann", change=Change(pending=0))
        with pytest.raises(ConfigError, match="wait is -1"):
            run.ask("kill", "ann", wait_s=-1)


def test_a_run_that_has_ended_refuses(tmp_path):
    with running(words(tmp_path), embedded(tmp_path)) as (run, _):
        run.stop()

        with pytest.raises(CommandError, match="the run has ended"):
            run.ask("activate", "ann")


def test_a_command_that_the_run_did_not_look_at_is_taken_back_and_never_obeyed(tmp_path):
    stand, hangs = threading.Event(), threading.Event()
    with running(words(tmp_path), embedded(tmp_path), Config(idle_poll_millis=1)) as (run, loop):
        run.process_all_available(timeout=30)
        step = loop.step

        def stuck(wait_s: float = 0.0) -> None:
            hangs.set()
            assert stand.wait(30)
            step(wait_s)

        loop.step = stuck
        assert hangs.wait(30)

        with pytest.raises(CommandError, match="was taken back"):
            run.ask("deactivate", "ann", timeout_s=0.05)

        loop.step = step
        stand.set()
        run.process_all_available(timeout=30)
        until(lambda: run.status == "idle")
