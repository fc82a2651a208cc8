"""What an error that came out of Spark means for the batch."""

from __future__ import annotations

from pyspark.errors import PythonException

from waterspout._causes import one_line, operation_in
from waterspout.errors import (
    DataLossError,
    FailedException,
    NumberTooLargeError,
    OutsideError,
    UserCodeError,
    WorkerLostError,
)
from waterspout.spark.carried import carried_outage
from waterspout.spark.session import SparkRuntime
from waterspout.spark.tries import FAILED_MARK
from waterspout.spouts._malformed import marked_record

__all__ = ["TOO_LARGE", "translate"]

TOO_LARGE = f"{NumberTooLargeError.__module__}.{NumberTooLargeError.__name__}: "
_LOST = f"{DataLossError.__module__}.{DataLossError.__name__}: "
_WORKER_DIED = ("Python worker exited unexpectedly", "Python worker failed", "ExecutorLostFailure")


def translate(error: BaseException, runtime: SparkRuntime) -> BaseException:
    """Return the error to act on: a wish for a replay, a dead JVM, or what it is."""
    text = str(error)
    if FAILED_MARK in text:
        reason = text.split(FAILED_MARK, 1)[1].strip().splitlines()[0]
        return FailedException(reason)
    if TOO_LARGE in text:
        reason = text.split(TOO_LARGE, 1)[1].strip().splitlines()[0]
        return NumberTooLargeError(reason)
    if _LOST in text:
        return DataLossError(text.split(_LOST, 1)[1].strip().splitlines()[0])
    found = marked_record(text) or carried_outage(text)
    if found is not None:
        return found
    if isinstance(error, PythonException):
        return _user_code_error(text)
    if not runtime.is_alive:
        return OutsideError(
            "Spark is gone: its JVM has died or the session was stopped. Nothing is lost; run the "
            "same command again."
        )
    if any(sign in text for sign in _WORKER_DIED):
        return WorkerLostError("a Python worker of Spark died under its work, and did so again")
    return error


def _user_code_error(text: str) -> UserCodeError:
    """Return the error of a worker: what it comes to, and beside it the worker's traceback."""
    start = text.find("Traceback (most recent call last)")
    trace = text[start:] if start >= 0 else text
    error = UserCodeError(one_line(trace).removesuffix("."))
    error.trace = trace.strip()
    error.operation = operation_in(trace)
    return error
