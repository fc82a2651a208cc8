"""Count all tickets again, in plain Python, and compare with what the topology has stored."""

import json
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

FOLDER = Path(__file__).parent / "tickets"


def recounted(folder=FOLDER):
    """Return tickets and income of each route, from the files."""
    sold, income = Counter(), Counter()
    for path in sorted(folder.glob("[0-9]*.json")):
        for ticket in map(json.loads, path.read_text().splitlines()):
            sold[ticket["route"]] += 1
            income[ticket["route"]] += ticket["fare"]
    return {route: (sold[route], income[route]) for route in sorted(sold)}


def stored(database="ferry.db"):
    """Return the same from the table of the topology."""
    with closing(sqlite3.connect(database)) as db:
        rows = db.execute("SELECT route, tickets, income FROM routes")
        return {route: (tickets, income) for route, tickets, income in rows}


if __name__ == "__main__":
    wanted, found = recounted(), stored(*sys.argv[1:])
    for route, (tickets, income) in wanted.items():
        held = found.get(route, (0, 0))
        verdict = "exact" if held == (tickets, income) else f"not: there are {tickets}, {income}"
        print(f"{route:8} {held[0]:4} tickets {held[1]:5} taken   {verdict}")
    sys.exit(wanted != found)
