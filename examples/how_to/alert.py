"""Tell somebody when a run waits too long, replays again and again, or stops."""

from collections.abc import Callable

from waterspout.events import BatchCommitted, BatchFailed, Event, RunEnded, ServiceAway


class Alarm:
    """A listener: `run.subscribe(Alarm(page))`, where `page` reaches a person."""

    def __init__(self, page: Callable[[str], None], replays: int = 5) -> None:
        self.page, self.replays, self.failed = page, replays, 0

    def __call__(self, event: Event) -> None:
        match event:
            case ServiceAway(service=service, away_s=away_s) if away_s > 60:
                self.page(f"{event.run} waits for {service}, {away_s:.0f} s")
            case BatchFailed(attempt=attempt, error=error):
                self.failed += 1
                if self.failed == self.replays:
                    self.page(f"{event.run}: batch {attempt.txid} fails again and again: {error}")
            case BatchCommitted():
                self.failed = 0
            case RunEnded(error=error) if error is not None:
                self.page(f"{event.run} has stopped: {error}")
