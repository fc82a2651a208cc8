"""`DRPCSpout` and `ReturnResults`: requests into a core topology, and results out of it.

The spout takes requests from their line, in the driver, and emits each with where its result
goes: its return info. `ReturnResults` sends the result back to the spout task named there, which
answers. A request is never emitted again: if it fails, its caller is told and may ask again.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from waterspout._schema import check_topology_id
from waterspout._tuples import Fields, Tuple
from waterspout.drpc._calls import DrpcAnswer, DrpcError, DrpcErrorKind, DrpcRequest
from waterspout.drpc._lines import RequestLine
from waterspout.drpc._plain import plain
from waterspout.errors import ConfigError, TopologyError
from waterspout.topology._collector import SpoutCollector
from waterspout.topology._component import Bolt, Spout, StreamSchema
from waterspout.topology._context import TopologyContext
from waterspout.topology._graph import RETURN_STREAM

__all__ = ["DRPCSpout", "ReturnResults"]

_ACKERS = "topology.acker.executors"
_TIMED_OUT = "timed out"

# All tasks of a spout, copies of one object in this process, take requests from the same line.
_lines: dict[int, RequestLine] = {}
_numbers = itertools.count(1)


class DRPCSpout(Spout):
    """Emits the requests of a function, each with its return info.

    The tuples that it leads to go, with the return info, to a `ReturnResults`. Each is emitted
    once. If it fails, or is acked before its result was returned, its caller is told so.
    """

    output_fields = ("args", "return_info")
    _is_final: ClassVar[bool] = True
    _takes_returns: ClassVar[bool] = True

    def __init__(self, function: str) -> None:
        check_topology_id(function)
        self.function = function
        self._number = next(_numbers)
        self._taken: deque[DrpcRequest] = deque()
        self._open: set[str] = set()

    def connect(self, line: RequestLine) -> None:
        """Take requests from this line; called before the run starts."""
        _lines[self._number] = line

    def _check_use(self, context: TopologyContext, conf: Mapping[str, Any]) -> None:
        if not context.this_sources:
            raise TopologyError(
                f"spout {context.this_component_id!r} takes requests for {self.function!r}, but "
                "no bolt returns results; add one: set_bolt(id, ReturnResults())"
            )
        if conf.get(_ACKERS) == 0:
            raise ConfigError(
                f"{_ACKERS} is 0, but DRPC of core topologies needs an acker: nobody else learns "
                f"that a request for {self.function!r} has failed"
            )

    def open(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: SpoutCollector
    ) -> None:
        self._collector = collector
        self._task = context.this_task_id
        self._taken, self._open = deque(), set()

    def next_tuple(self) -> None:
        line = _lines.get(self._number)
        if line is None:
            return  # nobody serves this run
        if not self._taken:
            self._taken.extend(line.take())
        if self._taken:
            request = self._taken.popleft()
            info = json.dumps({"id": request.id, "task": self._task})
            self._open.add(request.id)
            self._collector.emit([request.args, info], msg_id=request.id)

    def lag(self) -> int | None:
        line = _lines.get(self._number)
        return None if line is None else line.stats()["waiting"] + len(self._taken)

    def _returned(self, values: Sequence[Any]) -> None:
        id, result = values
        self._answer([DrpcAnswer(id, tuples=[[result]])])

    def ack(self, msg_id: str) -> None:
        if msg_id in self._open:
            self._tell(
                msg_id,
                DrpcErrorKind.FAILED,
                "all tuples of the request were acked, but no result was returned; emit one to "
                "ReturnResults, anchored",
            )

    def fail(self, msg_id: str) -> None:
        self._fail_because(msg_id, "", "failed")

    def _fail_because(self, msg_id: str, component: str, why: str) -> None:
        kind = DrpcErrorKind.FAILED
        if why == _TIMED_OUT and not component:
            kind, why = DrpcErrorKind.TIMED_OUT, "the topology was not done with it in time"
        self._tell(msg_id, kind, why, component or None)

    def close(self) -> None:
        left = [*self._open, *(request.id for request in self._taken)]
        error = DrpcError(DrpcErrorKind.SHUTDOWN, f"the spout of {self.function!r} was closed")
        self._answer([DrpcAnswer(id, error=error) for id in left])
        self._taken.clear()

    def _tell(self, id: str, kind: DrpcErrorKind, why: str, component: str | None = None) -> None:
        self._answer([DrpcAnswer(id, error=DrpcError(kind, why, component))])

    def _answer(self, answers: Iterable[DrpcAnswer]) -> None:
        answers = list(answers)
        self._open.difference_update(answer.id for answer in answers)
        line = _lines.get(self._number)
        if line is not None:
            line.answer(answers)

    def __getstate__(self) -> dict[str, Any]:
        return {"function": self.function, "_number": self._number}


class ReturnResults(Bolt):
    """Returns results to those who have asked. Takes tuples of two fields: result, return info."""

    _before: ClassVar[int] = 0
    """How many fields stand before these two."""

    def declared_streams(self) -> dict[str, StreamSchema]:
        """Return the one stream that leads back to the spouts."""
        return {RETURN_STREAM: StreamSchema(Fields("id", "result"), direct=True)}

    def _check_use(self, context: TopologyContext, conf: Mapping[str, Any]) -> None:
        for component, stream in context.this_sources:
            fields = context.component_output_fields(component, stream)
            if len(fields) != 2 + self._before:
                raise TopologyError(
                    f"bolt {context.this_component_id!r} returns results: it takes tuples of two "
                    f"fields, the result and the return info, but {component!r} emits "
                    f"({', '.join(fields)})"
                )

    def execute(self, tuple: Tuple) -> None:
        *_, result, info = tuple.values
        where = json.loads(info)
        # Not anchored: the driver takes it when the wave is over, before it acks anything.
        self.collector.emit_direct(
            where["task"], [where["id"], plain(result)], stream=RETURN_STREAM
        )
        self.collector.ack(tuple)
