"""Sell tickets: write the next files of the tutorial's tickets.

python examples/tutorial/sell.py 3

File 4 has the tickets of the fourth hour, and so on; the same number always gives the same file. A
file appears whole: it is written under a name that nobody reads, then renamed.
"""

import datetime as dt
import json
import random
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "tickets"
FIRST_HOUR = dt.datetime(2026, 5, 1, 8, tzinfo=dt.UTC)
FARES = {"island": 9, "north": 4, "south": 5}


def tickets(number):
    """Return the tickets of a file; from the fourth on, one comes from a ship without signal."""
    draw = random.Random(number)
    hour = FIRST_HOUR + dt.timedelta(hours=number - 1)
    times = sorted(hour + dt.timedelta(minutes=draw.randrange(60)) for _ in range(8))
    if number > 3:
        times.append(hour - dt.timedelta(minutes=100))
    routes = [draw.choice(sorted(FARES)) for _ in times]
    return [
        {
            "id": f"{number:02}-{place}",
            "route": route,
            "sold": sold.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "fare": FARES[route],
        }
        for place, (route, sold) in enumerate(zip(routes, times, strict=True), 1)
    ]


def sell(files, folder=FOLDER):
    """Write the next files and return their paths."""
    folder.mkdir(exist_ok=True)
    last = max((int(path.stem) for path in folder.glob("[0-9]*.json")), default=0)
    written = []
    for number in range(last + 1, last + files + 1):
        path, unfinished = folder / f"{number:02}.json", folder / f".{number:02}.json"
        unfinished.write_text("".join(json.dumps(ticket) + "\n" for ticket in tickets(number)))
        unfinished.rename(path)
        written.append(path)
    return written


if __name__ == "__main__":
    for path in sell(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
        print(f"sold: {path.name}")
