"""What a batch does to the dead letters: adds new ones, removes those that were asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from waterspout.errors import TooManyBadRowsError
from waterspout.letters import DeadLetter, refuse_when_full
from waterspout.safe_repr import shown
from waterspout.trident.isolation.letters import LetterRequest, Seen, read_aside
from waterspout.trident.isolation.store import Letters
from waterspout.trident.operations.contracts import StateUpdater, TridentCollector
from waterspout.tuples import TridentTuple

__all__ = ["LettersUpdater"]

_EXAMPLES = 3


class LettersUpdater(StateUpdater[Letters]):
    """Stops the run before a batch with too many letters is committed."""

    def __init__(self, limit: int, max_bad_ratio: float) -> None:
        self._limit = limit
        self._max_bad_ratio = max_bad_ratio

    def update_state(
        self, state: Letters, tuples: Sequence[TridentTuple], collector: TridentCollector
    ) -> None:
        """Sort out what came beside the rows, and write it under the batch."""
        asides = [read_aside(row[0]) for row in tuples]
        letters = [each for each in asides if isinstance(each, DeadLetter)]
        seen = Counter[str]()
        for each in asides:
            if isinstance(each, Seen):
                seen.update(each.rows)
        self._refuse_too_many(letters, seen, state)
        gone = [each.letter.id for each in asides if isinstance(each, LetterRequest)]
        state.remove(gone)
        if letters:  # otherwise there is nothing to count for
            before = state.count() - len(gone)
            refuse_when_full(before, letters, self._limit, "the batch is committed")
        state.add(letters)

    def _refuse_too_many(
        self, letters: Sequence[DeadLetter], seen: Counter[str], state: Letters
    ) -> None:
        # Rows that were replayed do not count: they were known to be bad.
        fresh = [letter for letter in letters if letter.failures == 1]
        for node, bad in Counter(letter.failed_in for letter in fresh).items():
            if bad > self._max_bad_ratio * seen[node]:
                errors = [
                    letter.error.split("\n")[0] for letter in fresh if letter.failed_in == node
                ]
                txid, _ = state.txid_and_attempt
                examples = "; ".join(shown(e)[1:-1] for e in dict.fromkeys(errors[:_EXAMPLES]))
                raise TooManyBadRowsError(
                    f"{bad:,} of the {seen[node]:,} rows of batch {txid} that came to {node} are "
                    f"bad: {bad / max(1, seen[node]):.1%}, and max_bad_ratio allows "
                    f"{self._max_bad_ratio:.1%}. Nothing of the batch was committed. Mend the "
                    f"operation or the source, or raise max_bad_ratio, and run the same command "
                    f"again. Errors: {examples}"
                )
