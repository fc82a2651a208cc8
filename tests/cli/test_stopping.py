"""Signals: noted while something runs, an interruption while it starts."""

from __future__ import annotations

import os
import signal

import pytest

from waterspout.cli.stopping import StopSignals

every_signal = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])


@pytest.fixture(autouse=True)
def _hang_up_is_not_ignored():
    """As in a terminal, though these tests themselves may have been started with nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@every_signal
def test_while_something_starts_a_signal_interrupts(number):
    with StopSignals(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


@every_signal
def test_while_something_runs_a_signal_is_noted_and_the_second_interrupts(number):
    with StopSignals() as stop:
        stop.be_patient()

        os.kill(os.getpid(), number)

        assert stop.wait(5)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)

    with StopSignals() as stop:
        stop.be_patient()
        during = signal.getsignal(signal.SIGTERM)

    assert during is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_hang_up_that_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.wait(0.01)
    finally:
        signal.signal(signal.SIGHUP, before)
