"""The extremes of what devices report: of each hour whole tuples, of each kind the values.

waterspout run examples/devices.py --until-idle
sqlite3 devices.db 'SELECT hour, device, lowest FROM coldest'
sqlite3 devices.db 'SELECT kind, lowest, highest FROM ranges'

`min_by` and `max_by` go by a field, `min` and `max` by a function of the tuple. They keep one
tuple of each partition of a batch; behind `global_` there is one partition. `Min` and `Max`
are aggregators of a value, over all batches.
"""

from waterspout import submit
from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Average, Columns, Max, Min, TridentTopology

READINGS = [  # hour, device, kind, celsius, charge in percent, drain in percent an hour
    (1, "roof", "outdoor", 4.5, 80, 4.0),
    (1, "hall", "indoor", 19.5, 35, 5.0),
    (1, "shed", "outdoor", 2.0, 90, 3.0),
    (2, "roof", "outdoor", 3.0, 76, 4.0),
    (2, "hall", "indoor", 20.5, 30, 1.0),
    (2, "shed", "outdoor", 5.5, 87, 9.0),
]
DATABASE = "devices.db"


def hours_left(reading):
    """How long a battery lasts."""
    return reading["charge"] / reading["drain"]


def kept_by_hour(stream, table, **columns):
    """Keep the one tuple of each hour in a table."""
    state = SQLiteState.opaque(DATABASE, table)
    return stream.group_by(["hour", "device"]).persistent_aggregate(state, Columns(**columns))


topology = TridentTopology("devices")
spout = FixedBatchSpout(["hour", "device", "kind", "celsius", "charge", "drain"], 3, READINGS)
readings = topology.new_stream("readings", spout)
of_the_hour = readings.global_()

coldest = kept_by_hour(of_the_hour.min_by("celsius"), "coldest", lowest=("celsius", Min()))
warmest = kept_by_hour(of_the_hour.max_by("celsius"), "warmest", highest=("celsius", Max()))
weakest = kept_by_hour(of_the_hour.min(hours_left), "weakest", left=("charge", Min()))
strongest = kept_by_hour(of_the_hour.max(hours_left), "strongest", left=("charge", Max()))

ranges = readings.group_by("kind").persistent_aggregate(
    SQLiteState.opaque(DATABASE, "ranges"),
    Columns(lowest=("celsius", Min()), highest=("celsius", Max()), mean=("celsius", Average())),
)

if __name__ == "__main__":
    run = submit(topology)
    run.process_all_available()
    run.stop()
    for kind in ("indoor", "outdoor"):
        print(kind, ranges.get(kind))
