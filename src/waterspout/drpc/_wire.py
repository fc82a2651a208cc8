"""What a call looks like over HTTP, to the server and to clients. No I/O.

    POST /drpc/{function}?min_txid=7&timeout=2.5    the body is the argument, as text
    200  {"id": "12", "result": [["cat", 3]], "txid": 8}
    4xx, 5xx  {"error": {"kind": "FAILED_REQUEST", "message": "...", "operation": "each(...)"}}

A refusal with Retry-After was made before anything was done: the same call may be made again.
"""

from __future__ import annotations

import json
from typing import Any

from waterspout.drpc._calls import DrpcAnswer, DrpcError, DrpcErrorKind

__all__ = ["ANSWER_BYTES_MAX", "INTERNAL", "RETRY_AFTER_S", "STATUS", "STORM_KIND", "body_of"]

ANSWER_BYTES_MAX = 16 << 20
RETRY_AFTER_S = 1

INTERNAL = "INTERNAL_ERROR"

STORM_KIND = {
    DrpcErrorKind.FAILED: "FAILED_REQUEST",
    DrpcErrorKind.TIMED_OUT: "SERVER_TIMEOUT",
    DrpcErrorKind.UNAVAILABLE: INTERNAL,
    DrpcErrorKind.SHUTDOWN: "SERVER_SHUTDOWN",
}
"""The kinds of errors as Storm's DRPCExecutionException names them."""

STATUS = {
    DrpcErrorKind.FAILED: 422,
    DrpcErrorKind.TIMED_OUT: 504,
    DrpcErrorKind.UNAVAILABLE: 503,
    DrpcErrorKind.SHUTDOWN: 503,
}


def body_of(answer: DrpcAnswer) -> bytes | DrpcError:
    """Return the JSON of a result, or why it cannot be sent."""
    content: dict[str, Any] = {"id": answer.id, "result": answer.tuples, "txid": answer.txid}
    try:
        body = json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        return DrpcError(DrpcErrorKind.FAILED, f"the result cannot be written as JSON: {error}")
    if len(body) > ANSWER_BYTES_MAX:
        return DrpcError(
            DrpcErrorKind.FAILED,
            f"the result has more than {ANSWER_BYTES_MAX:,} bytes, which is as much as is sent",
        )
    return body
