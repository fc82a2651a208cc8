"""How soon a thread of the driver gives way, while another talks to the JVM and afterwards."""

from __future__ import annotations

import sys
import threading

import pytest

from waterspout.spark.turns import quick_turns


@pytest.fixture(autouse=True)
def _interval():
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.004)
    yield
    sys.setswitchinterval(before)


def test_turns_are_short_inside_and_as_they_were_afterwards():
    def refuse() -> None:
        with quick_turns():
            assert sys.getswitchinterval() < 0.001
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        refuse()

    assert sys.getswitchinterval() == pytest.approx(0.004)


def test_the_last_of_several_threads_sets_them_back():
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with quick_turns():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=stay)
    with quick_turns():
        thread.start()
        entered.wait(10)
    still = sys.getswitchinterval()
    leave.set()
    thread.join(10)

    assert still < 0.001
    assert sys.getswitchinterval() == pytest.approx(0.004)


def test_turns_that_were_shorter_stay_so():
    sys.setswitchinterval(0.00001)

    with quick_turns():
        assert sys.getswitchinterval() == pytest.approx(0.00001)
