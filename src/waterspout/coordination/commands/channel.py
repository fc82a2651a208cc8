"""The channel between a run and commands from other terminals: the contract, and in a folder.

    <topology>/commands/<id>.request   what is asked; the run takes it by removing it
    <topology>/commands/<id>.answer    what has become of it; whoever asked removes it
    <topology>/commands/status         how the run stands, told at most once a second

Nothing here is waited for by a batch, and no lock is held by anyone: whoever is stopped in the
middle of a write leaves a draft behind that nobody reads. What must survive is in the ledger's own
store; of this, all may be lost.
"""

from __future__ import annotations

import json
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from waterspout._own_files import open_private, private_folder, refuse_link
from waterspout.coordination.commands.messages import Reply, Request, from_json, to_json
from waterspout.errors import DamagedStoreError, StoreError

__all__ = ["CommandChannel", "FolderChannel"]

_BYTES_MAX = 1_000_000


class CommandChannel(ABC):
    """Carries requests to a run, and its answers and its status back. Any thread may call.

    Whatever cannot be reached is a StoreError.
    """

    @abstractmethod
    def ask(self, request: Request) -> None:
        """Leave a request for the driver."""

    @abstractmethod
    def withdraw(self, id: str) -> bool:
        """Take a request back; False if the driver has taken it already."""

    @abstractmethod
    def answer_to(self, id: str) -> Reply | None:
        """Return what has become of a request so far; a final answer is removed with it."""

    @abstractmethod
    def requests(self) -> list[str]:
        """Return the ids of what is asked, oldest first, at next to no cost if nothing is."""

    @abstractmethod
    def take(self, id: str) -> Request | None:
        """Take a request, so that nobody else does; None if it was withdrawn or is damaged."""

    @abstractmethod
    def answer(self, answer: Reply) -> None:
        """Leave an answer, over an earlier one."""

    @abstractmethod
    def publish(self, status: Mapping[str, Any]) -> None:
        """Tell how the run stands; nobody waits for it to be stored."""

    @abstractmethod
    def status(self) -> dict[str, Any] | None:
        """Return what was published last; None if nothing was, or it cannot be read."""

    @abstractmethod
    def forget_answers(self) -> None:
        """Remove what earlier runs have left for those who did not wait for it."""


class FolderChannel(CommandChannel):
    """The channel of a topology whose coordination store is a file: files beside it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "commands"

    def ask(self, request: Request) -> None:
        self._write(f"{request.id}.request", to_json(request))

    def withdraw(self, id: str) -> bool:
        return self._remove(f"{id}.request")

    def answer_to(self, id: str) -> Reply | None:
        found = self._read(f"{id}.answer")
        if found is None:
            return None
        answer = from_json(Reply, found)
        if answer.is_final:
            self._remove(f"{id}.answer")
        return answer

    def requests(self) -> list[str]:
        return [name.removesuffix(".request") for name in self._names() if _is(name, ".request")]

    def take(self, id: str) -> Request | None:
        found = self._read(f"{id}.request")
        # Of the two who may remove it, one succeeds.
        if not self._remove(f"{id}.request"):
            return None
        with suppress(DamagedStoreError):
            return from_json(Request, found)
        return None

    def answer(self, answer: Reply) -> None:
        self._write(f"{answer.id}.answer", to_json(answer))

    def publish(self, status: Mapping[str, Any]) -> None:
        self._write("status", status)

    def status(self) -> dict[str, Any] | None:
        found = self._read("status")
        return found if isinstance(found, dict) else None

    def forget_answers(self) -> None:
        for name in self._names():
            if not _is(name, ".request") and name != "status":
                self._remove(name)

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable(error) from error

    def _read(self, name: str) -> Any:
        """Return what a file holds; None if there is none, or nothing that can be read."""
        path = self._folder / name
        try:
            refuse_link(path)
            with path.open("rb") as file:
                return json.loads(file.read(_BYTES_MAX))
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        except OSError as error:
            raise self._unusable(error) from error

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a draft and move it in place: a file of that name is always complete."""
        draft = self._folder / f".draft-{uuid.uuid4().hex}"
        try:
            refuse_link(self._folder)
            if not self._folder.exists():
                private_folder(self._folder)
            with open(open_private(draft, os.O_WRONLY | os.O_EXCL), "w", encoding="utf-8") as file:
                json.dump(content, file)
            draft.replace(self._folder / name)
        except OSError as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise self._unusable(error) from error

    def _remove(self, name: str) -> bool:
        try:
            (self._folder / name).unlink()
            return True
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> StoreError:
        return StoreError(f"the folder {self._folder} cannot be used: {error.strerror or error}")


def _is(name: str, kind: str) -> bool:
    return name.endswith(kind) and not name.startswith(".")
