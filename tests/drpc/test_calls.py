"""The data of a call."""

from __future__ import annotations

import pytest

from waterspout.drpc._calls import DrpcAnswer, DrpcError, DrpcErrorKind


def test_an_answer_is_a_result_or_an_error_and_never_both() -> None:
    error = DrpcError(DrpcErrorKind.FAILED, "no such word", operation="each Split")

    assert DrpcAnswer("1", tuples=[]).error is None
    assert DrpcAnswer("1", error=error).tuples is None
    with pytest.raises(AssertionError):
        DrpcAnswer("1", tuples=[], error=error)
    with pytest.raises(AssertionError):
        DrpcAnswer("1")
