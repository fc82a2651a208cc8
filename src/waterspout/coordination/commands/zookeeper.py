"""The channel between a run and commands from other terminals, in ZooKeeper.

    <root>/<topology>/commands/<id>          ephemeral: it is there as long as whoever asks
    <root>/<topology>/commands/<id>-answer   what has become of it
    <root>/<topology>/status                 how the run stands

A request is taken by writing over it if nobody has, and withdrawn by deleting it if nobody has: of
the two ZooKeeper carries out one, also where an answer is lost on its way.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

from waterspout.coordination.commands.channel import CommandChannel
from waterspout.coordination.commands.messages import Reply, Request, from_json, to_json
from waterspout.coordination.zookeeper_records import pack, unpack
from waterspout.coordination.zookeeper_session import Session, Unanswered
from waterspout.errors import StoreError

__all__ = ["ZooKeeperChannel"]

_ANSWER = "-answer"


class ZooKeeperChannel(CommandChannel):
    """Nodes below the topology's own; `connected` lends a session."""

    def __init__(self, path: str, connected: Callable[[], AbstractContextManager[Session]]) -> None:
        self._path = path
        self._folder = f"{path}/commands"
        self._connected = connected
        self._me = uuid.uuid4().hex.encode()

    def ask(self, request: Request) -> None:
        data, path = pack("request", to_json(request)), f"{self._folder}/{request.id}"
        with self._connected() as session:
            if session.get(self._folder) is None:
                with suppress(Unanswered):
                    session.transact(self._folder, lambda t: t.create(self._folder, b""))
            with suppress(Unanswered):
                session.transact(path, lambda t: t.create(path, data, ephemeral=True))
            if session.get(path) is None:
                raise StoreError(
                    f"{path} could not be created in ZooKeeper; give the command again"
                )

    def withdraw(self, id: str) -> bool:
        path = f"{self._folder}/{id}"
        with self._connected() as session:
            with suppress(Unanswered):
                session.transact(path, lambda t: t.delete(path, 0))
            return session.get(path) is None

    def answer_to(self, id: str) -> Reply | None:
        path = f"{self._folder}/{id}{_ANSWER}"
        with self._connected() as session:
            found = session.get(path)
            if found is None:
                return None
            answer = from_json(Reply, unpack("answer", found.data, path))
            if answer.is_final:
                self._delete(session, path)
            return answer

    def requests(self) -> list[str]:
        with self._connected() as session:
            names = session.children(self._folder)
        return [name for name in names if not name.endswith(_ANSWER)]

    def take(self, id: str) -> Request | None:
        path = f"{self._folder}/{id}"
        with self._connected() as session:
            found = session.get(path)
            if found is None or found.version != 0:
                return None  # withdrawn, or taken
            with suppress(Unanswered):
                session.transact(path, lambda t: t.set_data(path, self._me, 0))
            taken = session.get(path)
            if taken is not None and taken.data != self._me:
                return None
            # Gone by now means that whoever asked has gone after it was taken, or before: nobody
            # is there to be told that nothing was done.
            if taken is None:
                return None
        with suppress(StoreError):
            return from_json(Request, unpack("request", found.data, path))
        return None

    def answer(self, answer: Reply) -> None:
        data, path = pack("answer", to_json(answer)), f"{self._folder}/{answer.id}{_ANSWER}"
        with self._connected() as session:
            session.put(path, data)

    def publish(self, status: Mapping[str, Any]) -> None:
        with self._connected() as session:
            session.send(f"{self._path}/status", pack("status", status))

    def status(self) -> dict[str, Any] | None:
        path = f"{self._path}/status"
        with self._connected() as session:
            found = session.get(path)
        with suppress(StoreError):
            return None if found is None else unpack("status", found.data, path)
        return None

    def forget_answers(self) -> None:
        with self._connected() as session:
            for name in session.children(self._folder):
                if name.endswith(_ANSWER):
                    self._delete(session, f"{self._folder}/{name}")

    def _delete(self, session: Session, path: str) -> None:
        with suppress(Unanswered):  # it is removed by the next run at the latest
            session.transact(path, lambda t: t.delete(path))
