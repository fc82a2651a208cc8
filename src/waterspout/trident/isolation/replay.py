"""The hidden spout that feeds requests for dead letters into a topology, in new batches."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from waterspout._arrow import arrow_type, make_array
from waterspout._letters import DeadLetter
from waterspout._schema import Schema
from waterspout.errors import SerdeError, SourceError, StateMismatchError
from waterspout.spouts._base import BatchPlanner, BatchSpout, RunsIn, SpoutContext, SpoutKind
from waterspout.spouts._reads import Read, RowsRead
from waterspout.trident.isolation.letters import ASIDE, LetterRequest, to_aside
from waterspout.trident.isolation.store import LettersLocation

__all__ = ["REPLAY_SPOUT_ID", "ReplaySpout", "fit_row"]

REPLAY_SPOUT_ID = "dead-letters"
_BATCH_MAX = 1_000


class ReplaySpout(BatchSpout):
    """Emits requests in the order of their numbers.

    It is transactional: the metadata of a batch names its requests. `nodes` are the operations
    that put rows aside, with the fields of their input. A letter of any other operation cannot
    be replayed.
    """

    kind = SpoutKind.TRANSACTIONAL
    read_in = RunsIn.DRIVER

    def __init__(self, location: LettersLocation, nodes: Mapping[str, Schema]) -> None:
        self._location = location
        self._nodes = nodes

    @property
    def schema(self) -> Schema:
        return Schema(((ASIDE, "string"),))

    def open(self, context: SpoutContext) -> BatchPlanner:
        """Note as done what the last committed batch did, and check that the letters are there.

        A driver may have died when that batch was committed, before it could note this.
        """
        location = self._location
        with closing(location.open()) as letters, closing(location.requests()) as requests:
            before = context.known.get(context.current - 1)
            if before is not None:
                if letters.read_head() is None:
                    raise StateMismatchError(
                        f"the dead letters of {context.current - 1} committed batches are not in "
                        f"{self._location.where}. Restore that file, or start over by removing the "
                        "topology's folder under the waterspout home."
                    )
                requests.done(before["ids"])
            # The letters are settled now: a late request for one that is gone is seen as such.
            requests.forget_done()
        return _ReplayPlanner(self._location, self._nodes)

    def read(self, metadata: Any) -> Read:
        if not metadata["ids"]:
            return RowsRead(self.schema, [])
        with closing(self._location.requests()) as requests:
            found = requests.some(metadata["ids"])
        if len(found) != len(metadata["ids"]):
            raise SourceError(
                f"requests for dead letters are missing in {self._location.where}: an unfinished "
                "batch holds them. Restore the file."
            )
        return RowsRead(self.schema, [(to_aside(request),) for request in found])

    def so_far(self, metadata: Any, folder: Path | None, spout_id: str) -> Any | None:
        """Return it if nothing was ever asked for: the rows that were replayed are not kept."""
        return metadata if metadata["upto"] == 0 else None


class _ReplayPlanner(BatchPlanner):
    def __init__(self, location: LettersLocation, nodes: Mapping[str, Schema]) -> None:
        self._letters = location.open()
        self._requests = location.requests()
        self._nodes = nodes

    def is_ready(self, previous: Any) -> bool:
        return bool(self._requests.after(_upto(previous), 1))

    def plan(self, txid: int, previous: Any, target: int | None = None) -> Any:
        upto = _upto(previous)
        ids = []
        for request in self._requests.after(upto, _BATCH_MAX):
            upto = request.id
            if not self._letters.has(request.letter.id):
                # Somebody asked for it who had seen it before it was replayed.
                self._requests.done([request.id])
            elif reason := self._why_not(request):
                self._requests.refuse(request.id, reason)
            else:
                ids.append(request.id)
        return {"upto": upto, "ids": ids}

    def succeeded(self, txid: int, metadata: Any) -> None:
        self._requests.done(metadata["ids"])

    def close(self) -> None:
        self._letters.close()
        self._requests.close()

    def _why_not(self, request: LetterRequest) -> str | None:
        if request.action != "replay":
            return None
        inputs = self._nodes.get(request.letter.failed_in)
        if inputs is None:
            return f"the topology has no operation {request.letter.failed_in} that puts rows aside"
        try:
            fit_row(request.letter, inputs)
        except (SerdeError, TypeError, ValueError) as error:
            return str(error)
        return None


def fit_row(letter: DeadLetter, inputs: Schema) -> dict[str, Any]:
    """Return a letter's row by field, one Arrow array of one value each; raise if it does not fit.

    Fields go by name: the order may have changed since the row was put aside.
    """
    stored, node = letter.row, letter.failed_in
    if stored is None:
        raise ValueError("its values could not be stored, only what they look like")
    for name in inputs.names:
        if name not in stored:
            raise ValueError(f"{node} now reads field {name!r}, which the letter does not have")
    for name in stored:
        if name not in inputs.names:
            raise ValueError(f"the letter has field {name!r}, which {node} does not read any more")
    return {
        name: make_array([stored[name]], arrow_type(kind or "?"), field=name, where=node)
        for name, kind in inputs
    }


def _upto(previous: Any) -> int:
    return 0 if previous is None else int(previous["upto"])
