"""`AttemptLog`: what has become of the latest attempts at batches, step by step. No clock in here.

It is told in the words of events. One attempt is one record: when each of its phases began and
ended, how it ended, and for each state when it was claimed, written and settled.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from waterspout._causes import told
from waterspout.coordination.events import (
    BatchCancelled,
    BatchCommitted,
    BatchCommitting,
    BatchEmitted,
    BatchFailed,
    BatchProcessed,
    CommitStep,
    Event,
    StateWritten,
)
from waterspout.transactional._attempt import TransactionAttempt

__all__ = ["AttemptLog"]

_KEEP = 400

_EARLIER_RUN = "an earlier run has left it unfinished"


class AttemptLog:
    """Keeps the newest attempts, each as a dict of plain values."""

    def __init__(self, keep: int = _KEEP) -> None:
        self._keep = keep
        self._records: OrderedDict[TransactionAttempt, dict[str, Any]] = OrderedDict()
        self._why: dict[int, str] = {}
        """Why batches that are to be replayed are."""

    def __len__(self) -> int:
        return len(self._records)

    def newest(self, limit: int) -> list[dict[str, Any]]:
        """Return copies of the records of the newest attempts, oldest first."""
        records = list(self._records.values())[-limit:] if limit > 0 else []
        return [{**each, "states": _copied(each["states"])} for each in records]

    def written(self, attempt: TransactionAttempt) -> list[str]:
        """Return the states that an attempt has written."""
        states = self._records.get(attempt, {}).get("states", {})
        return [name for name, steps in states.items() if steps["written"] is not None]

    def note(self, event: Event) -> None:
        """Take in an event; one that is not about an attempt changes nothing."""
        match event:
            case BatchEmitted(attempt=attempt, timestamp=now):
                self._begin(attempt, now, event.plan_s)
            case BatchProcessed(attempt=attempt, timestamp=now):
                self._set(attempt, processed=now)
            case BatchCommitting(attempt=attempt, timestamp=now):
                self._set(attempt, committing=now)
            case CommitStep(attempt=attempt, step=step, state=state, timestamp=now):
                if state is None:
                    self._set(attempt, **{step: now})
                else:
                    self._set_state(attempt, state, **{step: now})
            case StateWritten(attempt=attempt, state=state, rows=rows):
                self._set_state(attempt, state, rows=rows)
            case BatchCommitted(attempt=attempt, timestamp=now, progress=progress):
                self._why.pop(attempt.txid, None)
                self._set(
                    attempt,
                    ended=now,
                    outcome="committed",
                    processing_s=progress.processing_s,
                    commit_s=progress.commit_s,
                    input_rows=progress.input_rows,
                    written_rows=progress.written_rows,
                    executed_tuples=progress.executed_tuples,
                )
            case BatchFailed(attempt=attempt, timestamp=now, error=error):
                text = told(error)
                self._why[attempt.txid] = text
                self._set(attempt, ended=now, outcome="failed", error=text)
            case BatchCancelled(attempt=attempt, timestamp=now, failed=failed):
                text = f"batch {failed.txid} before it failed"
                self._why[attempt.txid] = text
                self._set(attempt, ended=now, outcome="cancelled", error=text)

    def _begin(self, attempt: TransactionAttempt, now: float, plan_s: float) -> None:
        replay = attempt.attempt_id > 0
        why = self._why.pop(attempt.txid, _EARLIER_RUN if replay else None)
        self._records[attempt] = {
            "txid": attempt.txid,
            "attempt": attempt.attempt_id,
            "replay": replay,
            "why": why,
            "outcome": "in flight",
            "error": None,
            "emitted": now,
            "processed": None,
            "committing": None,
            "begun": None,
            "marked": None,
            "ended": None,
            "plan_s": plan_s,
            "processing_s": None,
            "commit_s": None,
            "input_rows": None,
            "written_rows": None,
            "executed_tuples": None,
            "states": {},
        }
        while len(self._records) > self._keep:
            self._records.popitem(last=False)

    def _set(self, attempt: TransactionAttempt, **values: Any) -> None:
        record = self._records.get(attempt)
        if record is not None:
            record.update(values)

    def _set_state(self, attempt: TransactionAttempt, state: str, **values: Any) -> None:
        record = self._records.get(attempt)
        if record is not None:
            empty = {"claimed": None, "written": None, "settled": None, "rows": None}
            record["states"].setdefault(state, empty).update(values)


def _copied(states: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: dict(steps) for name, steps in states.items()}
