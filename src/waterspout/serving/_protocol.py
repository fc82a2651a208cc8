"""HTTP/1.1 on a connection, within the limits: uvicorn's own protocol, with time-outs.

uvicorn waits forever for the headers of a request, and for a caller who does not read. A server in
a driver must not. And what it would say in plain text becomes the JSON of all other errors.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from waterspout.serving._answers import HEADERS, Refusal
from waterspout.serving._guard import too_large_head
from waterspout.serving._limits import Limits

__all__ = ["LimitedProtocol", "protocol_within"]


def protocol_within(limits: Limits) -> type[H11Protocol]:
    """Return the protocol of connections that keep to these limits."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})


class LimitedProtocol(H11Protocol):
    """A connection that is cut when its caller is too slow, or one too many."""

    limits = Limits()
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.abort()
        else:
            self._cut_after(self.limits.read_secs)

    def connection_lost(self, exc: Exception | None) -> None:
        """End waiting."""
        self._go_on()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has come; the rest of a head must come in time."""
        super().data_received(data)
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._cut_after(self.limits.read_secs)

    def handle_events(self) -> None:
        """Handle what is complete; with a head, the guard takes over."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.cycle.response_complete:
            self._go_on()

    def on_response_complete(self) -> None:
        """See to it that a connection that is to close does so."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._cut_after(self.limits.write_secs)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, whether what was sent is taken or not."""
        super().timeout_keep_alive_handler()
        self._cut_after(self.limits.write_secs)

    def pause_writing(self) -> None:
        """Wait for a caller who does not take the answer, but not for ever."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.limits.write_secs, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the answer is being taken."""
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, or begins with more than a head may have."""
        (left, _) = self.conn.trailing_data
        refusal = Refusal(400, "bad_request", "this is no request of HTTP/1.1")
        if len(left) > self.limits.header_bytes:
            refusal = too_large_head(self.limits)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = refusal.answer()
            names = {**HEADERS, **dict(answer.headers), "connection": "close"}
            headers = [(name.encode(), value.encode()) for name, value in names.items()]
            for event in (
                h11.Response(status_code=refusal.status, headers=headers),
                h11.Data(data=bytes(answer.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._cut_after(self.limits.write_secs)

    def _cut_after(self, seconds: float) -> None:
        self._go_on()
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _go_on(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
