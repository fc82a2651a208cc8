"""What a process keeps open: handed out again, closed in time, and left alone by a fork."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from waterspout._connections import Connections, PerProcess


class Link:
    def __init__(self, sock: socket.socket | None = None) -> None:
        self.sock = sock
        self.closed = 0

    def close(self) -> None:
        self.closed += 1
        if self.sock is not None:
            self.sock.close()


def kept(**options) -> Connections[str, Link]:
    return Connections(Link.close, **options)


def test_the_connection_used_last_is_handed_out_first_and_to_its_own_address_only():
    links, (a, b, c) = kept(), (Link(), Link(), Link())
    for address, link in (("x", a), ("x", b), ("y", c)):
        links.give(address, link)

    assert [links.take("x") for _ in range(3)] == [b, a, None]
    assert links.take("y") is c


def test_a_dead_connection_is_closed_and_the_next_one_handed_out():
    links = kept(socket_of=lambda link: link.sock.fileno())
    (here, there), (other, gone) = socket.socketpair(), socket.socketpair()
    a, b, c = Link(here), Link(other), Link(socket.socket())
    for link in (a, b, c):
        links.give("x", link)
    gone.close()
    c.sock.close()

    assert links.take("x") is a
    assert (a.closed, b.closed, c.closed) == (0, 1, 1)
    here.close()
    there.close()


def test_of_too_many_idle_ones_that_used_longest_ago_is_closed():
    links, made = kept(idle_max=2), [Link() for _ in range(3)]
    for i, link in enumerate(made):
        links.give(f"{i}", link)

    assert [link.closed for link in made] == [1, 0, 0]


def test_a_shared_connection_is_opened_once_until_it_is_discarded():
    links = kept()
    first = links.shared("x", Link)

    assert links.shared("x", Link) is first
    assert links.shared("y", Link) is not first
    links.discard(first)
    assert first.closed == 1
    assert links.shared("x", Link) is not first


def test_a_shared_connection_that_cannot_be_opened_is_tried_again_by_the_next():
    links = kept()

    with pytest.raises(OSError, match="refused"):
        links.shared("x", lambda: (_ for _ in ()).throw(OSError("refused")))
    assert links.shared("x", Link).closed == 0


def test_one_address_or_all_are_closed():
    links, (a, b) = kept(), (Link(), Link())
    links.give("x", a)
    links.give("y", b)

    links.close("x")
    assert (a.closed, b.closed) == (1, 0)
    links.close()
    assert (a.closed, b.closed) == (1, 1)


def test_threads_that_come_at_once_share_one_connection():
    links, opened = kept(), []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        links.shared("x", lambda: opened.append(Link()) or opened[-1])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(opened) == 1


@pytest.fixture
def pair():
    here, there = socket.socketpair()
    with here, there:
        there.settimeout(5)
        yield here, there


def in_a_fork(work) -> int:
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_has_nothing_and_its_parents_connection_stays_open(pair):
    here, there = pair
    links = kept(socket_of=lambda link: link.sock.fileno())
    links.give("x", Link(here))

    def in_child() -> bool:
        return links.take("x") is None and here.fileno() == -1

    assert in_a_fork(in_child) == 0
    link = links.take("x")
    assert link is not None
    here.sendall(b"still here")
    assert there.recv(100) == b"still here"


def test_what_a_fork_says_while_it_closes_its_copy_reaches_nobody(pair):
    here, there = pair

    class Polite(Link):
        def close(self) -> None:
            os.write(self.sock.fileno(), b"goodbye")
            super().close()

    links = Connections(Polite.close, socket_of=lambda link: link.sock.fileno())
    links.give("x", Polite(here))

    assert in_a_fork(lambda: links.take("x") is None) == 0
    there.settimeout(0.1)
    with pytest.raises(TimeoutError):
        there.recv(100)


def test_a_fork_waits_for_no_lock_that_a_thread_of_its_parent_holds():
    links = kept()
    opening, done = threading.Event(), threading.Event()

    def slowly() -> Link:
        opening.set()
        done.wait(30)
        return Link()

    thread = threading.Thread(target=lambda: links.shared("x", slowly))
    thread.start()
    opening.wait(30)
    try:
        assert in_a_fork(lambda: links.shared("x", Link).closed == 0) == 0
    finally:
        done.set()
        thread.join()


def test_each_process_makes_a_value_of_its_own():
    values = PerProcess(list)
    values.get().append("parent")

    assert in_a_fork(lambda: values.get() == []) == 0
    assert values.get() == ["parent"]
