"""A topology and a schedule of failures, drawn from a seed: data only, so that it can be shrunk.

Every stream has the fields `k`, `g`, `id`. What stands in the list of a case refers to what stands
before it by position.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from waterspout.faults import BATCH_POINTS, ROWS_POINTS

Row = tuple[str, str, int]

KEYS = "abcd"
LABELS = "xyz"
STATEFUL = ("window", "deduplicate", "within")
TRANSACTIONAL, OPAQUE, NON_TRANSACTIONAL = "transactional", "opaque", "non-transactional"


@dataclass(frozen=True)
class Source:
    """A spout: rows in partitions of a log, behind emitters, or in files; some come late."""

    kind: str
    form: str
    parts: tuple[tuple[Row, ...], ...]
    late: tuple[tuple[Row, ...], ...]
    take: int


@dataclass(frozen=True)
class Place:
    """Where a state is kept; those of one number are in one file, or are one store."""

    store: str
    number: int
    table: str = ""
    spelling: str = "plain"


@dataclass(frozen=True)
class Step:
    """An operation on one stream, or on two; some keep a state of their own."""

    name: str
    of: tuple[int, ...]
    by: int = 0
    place: Place | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """By what rows are the same to it."""
        return {2: ("k",), 3: ("g",), 4: ("k", "g")}[self.by]


@dataclass(frozen=True)
class Static:
    """A state that this topology only reads; the one after it in `labels` replaces it."""

    labels: tuple[str, ...]


@dataclass(frozen=True)
class Ask:
    """What a state answers, as a filter or as a label; of a static state, always as a label."""

    of: int
    state: int
    keeps_new: bool = False


@dataclass(frozen=True)
class Update:
    """A stream written into a state."""

    of: int
    how: str
    keys: tuple[str, ...]
    kind: str
    place: Place
    partitions: int = 1
    declares_keys: bool = True
    hints_stream: bool = False

    @property
    def is_persist(self) -> bool:
        """Whether it is written by an updater of the user's own."""
        return self.how in ("persist", "firsts", "forgets")

    @property
    def writes_rows(self) -> bool:
        """Whether rows are appended as they are."""
        return self.how == "append"

    @property
    def must_be_refused(self) -> bool:
        """Whether several tasks would own one key."""
        spread = self.partitions > 1 and not self.hints_stream
        return self.is_persist and spread and not self.declares_keys

    @property
    def can_be_asked(self) -> bool:
        """Whether it maps `k` to a number."""
        return self.keys == ("k",) and self.how in ("count", "sum")


@dataclass(frozen=True)
class NewValues:
    """The stream of what an update has changed."""

    of: int


Thing: TypeAlias = Source | Step | Static | Ask | Update | NewValues


@dataclass(frozen=True)
class Disaster:
    """Something that only an operator or a machine can do, at the nth kill point that is passed.

    `copied_at` is when the copy was made that is put back.
    """

    what: str
    at: int
    copied_at: int = 0
    target: int = 0


@dataclass(frozen=True)
class Schedule:
    """What goes wrong, how likely, and how often at most."""

    seed: int
    most: int = 0
    crash: float = 0.0
    crash_at: str = ""
    fail: float = 0.0
    error: float = 0.0
    lost_write: float = 0.0
    half_write: float = 0.0
    lost_answer: float = 0.0
    outage: float = 0.0
    away: float = 0.0
    change: float = 0.0
    zombies: bool = False
    in_flight: int = 1
    strict: bool = False
    rolls_back: bool = False
    disaster: Disaster | None = None

    @property
    def is_calm(self) -> bool:
        """Whether nothing goes wrong at all."""
        chances = (self.crash, self.fail, self.error, self.lost_write, self.half_write)
        return not any((*chances, self.lost_answer, self.away, self.disaster))


@dataclass(frozen=True)
class Case:
    """All that a run depends on."""

    things: tuple[Thing, ...]
    schedule: Schedule

    @property
    def updates(self) -> dict[int, Update]:
        """The states that are written."""
        return {i: t for i, t in enumerate(self.things) if isinstance(t, Update)}

    @property
    def shares_a_store(self) -> bool:
        """Whether two states are written to one store, however that is spelled."""
        places = [(p.store, p.number, p.table) for p in (u.place for u in self.updates.values())]
        return len(set(places)) < len(places)

    def text(self) -> str:
        """Return the case, one thing a line."""
        lines = [f"{i:>3}  {thing}" for i, thing in enumerate(self.things)]
        return "\n".join([*lines, f"     {self.schedule}"])


def parents(thing: Thing) -> tuple[int, ...]:
    """Return the positions of all that a thing refers to."""
    match thing:
        case Step(of=of):
            return of
        case Ask(of=of, state=state):
            return (of, state)
        case Update(of=of) | NewValues(of=of):
            return (of,)
        case _:
            return ()


def follows(case: Case, thing: int, update: int) -> bool:
    """Whether a thing's rows come of an update's new values."""
    own = case.things[thing]
    streams = (own.of,) if isinstance(own, Ask) else parents(own)
    return thing == update or any(follows(case, parent, update) for parent in streams)


@dataclass
class Draw:
    """A case in the making."""

    rng: random.Random
    things: list[Thing] = field(default_factory=list)
    numbers: int = 0

    def add(self, thing: Thing) -> int:
        self.things.append(thing)
        return len(self.things) - 1

    def streams(self) -> list[int]:
        return [i for i, t in enumerate(self.things) if not isinstance(t, (Static, Update))]

    def plain_streams(self) -> list[int]:
        """Those whose rows have a known order: a source, or one operation on its rows."""
        simple = {i for i, t in enumerate(self.things) if isinstance(t, Source)}
        for i, thing in enumerate(self.things):
            if (
                isinstance(thing, Step)
                and thing.name in ("filter", "map")
                and thing.of[0] in simple
            ):
                simple.add(i)
        return sorted(simple)

    def updates(self) -> list[int]:
        return [i for i, t in enumerate(self.things) if isinstance(t, Update)]

    def askable(self) -> list[int]:
        return [i for i in self.updates() if self.things[i].can_be_asked]  # type: ignore[union-attr]

    def rows(self, most: int) -> tuple[Row, ...]:
        made = []
        for _ in range(self.rng.randrange(most + 1)):
            self.numbers += 1
            made.append((self.rng.choice(KEYS), self.rng.choice(LABELS), self.numbers))
        return tuple(made)

    def source(self) -> int:
        rng = self.rng
        form = rng.choice(["log", "log", "emitters", "files"])
        kind = rng.choice([*[TRANSACTIONAL] * 4, *[OPAQUE] * 4, NON_TRANSACTIONAL])
        if form == "files" or (form == "emitters" and kind == NON_TRANSACTIONAL):
            kind = TRANSACTIONAL
        most = 5 if form == "files" else 4
        parts = tuple(self.rows(4) for _ in range(rng.randrange(1, most)))
        number = rng.randrange(1, 3) if form == "files" else len(parts)
        late = tuple(self.rows(2) for _ in range(number))
        return self.add(Source(kind, form, parts, late, rng.randrange(1, 4)))

    def stream(self) -> int:
        """Return any stream, rather a late one."""
        streams = self.streams()
        return max(self.rng.choice(streams), self.rng.choice(streams))

    def step(self) -> None:
        rng = self.rng
        plain = ["filter", "map", "flat_map", "sums", "merge", "join"]
        name = rng.choice([*plain, *STATEFUL])
        of: tuple[int, ...] = (self.stream(),)
        if name in ("merge", "join"):
            other = rng.choice(self.streams())
            if other in of:
                return
            of = (*of, other)
        if name == "window":
            of = (rng.choice(self.plain_streams()),)
        place = None
        if name in STATEFUL:
            stores = ["memory", "late", "cached", "three methods", "sqlite", "files"]
            place = Place(rng.choice(stores), len(self.things), f"t{len(self.things)}")
        self.add(Step(name, of, rng.randrange(2, 5), place))

    def static_query(self) -> None:
        labels = tuple("".join(self.rng.choice(LABELS) for _ in KEYS) for _ in range(4))
        self.add(Ask(self.stream(), self.add(Static(labels))))

    def query(self) -> None:
        if not self.askable():
            self.update(how="count", keys=("k",))
        asked = self.rng.choice(self.askable())
        self.add(Ask(self.stream(), asked, self.rng.random() < 0.5))

    def new_values(self) -> None:
        emit = [i for i in self.updates() if self.things[i].how == "firsts"]  # type: ignore[union-attr]
        if emit or self.askable():
            self.add(NewValues(self.rng.choice([*emit, *self.askable()])))

    def update(
        self, of: int | None = None, how: str = "", keys: tuple[str, ...] | None = None
    ) -> None:
        rng = self.rng
        how = how or rng.choice(
            [
                *("count", "count", "sum", "ids", "reduce", "persist", "firsts", "forgets"),
                *("append", "append", "upsert"),
            ]
        )
        if keys is None:
            keys = rng.choice([("k",), ("k",), ("k",), ("g",), ("k", "g"), ()])
        declares, hints_stream = rng.random() < 0.8, rng.random() < 0.5
        if how in ("persist", "firsts", "forgets", "upsert"):
            keys = ("k",)
        kind = rng.choice([*[OPAQUE] * 4, *[TRANSACTIONAL] * 4, NON_TRANSACTIONAL])
        partitions = rng.randrange(1, 5)
        of = self.stream() if of is None else of
        place = self.place()
        if how == "append":
            keys, place = (), self.rows_place()
            kind = TRANSACTIONAL if place.store == "pinned" else OPAQUE
        self.add(Update(of, how, keys, kind, place, partitions, declares, hints_stream))

    def place(self) -> Place:
        """Return a new place; a table may be in a file that another has."""
        rng = self.rng
        usual = ["memory", "late", "cached", "three methods", "sqlite", "sqlite", "files"]
        store = "two methods" if rng.random() < 0.04 else rng.choice(usual)
        number = len(self.things)
        table = f"t{number}"
        if store == "sqlite":
            others = [u.place.number for u in self.made_updates() if u.place.store == "sqlite"]
            number = rng.choice([number, *others])
        return Place(store, number, table)

    def rows_place(self) -> Place:
        """Return a new place for rows."""
        store = self.rng.choice(["sqlite", "published", "pinned", "pinned"])
        return Place(store, len(self.things), f"t{len(self.things)}")

    def made_updates(self) -> list[Update]:
        return [thing for thing in self.things if isinstance(thing, Update)]

    def make_all_opaque(self) -> None:
        """Let every state be opaque, as users are told to."""
        for i, thing in enumerate(self.things):
            if isinstance(thing, Update):
                place = thing.place
                if place.store == "pinned":
                    place = replace(place, store="published")
                self.things[i] = replace(thing, kind=OPAQUE, place=place)

    def share_a_store(self) -> None:
        """Put one state where another one is, as it is spelled there or otherwise."""
        first, second = sorted(self.rng.sample(self.updates(), 2))
        one, other = self.things[first], self.things[second]
        assert isinstance(one, Update)
        assert isinstance(other, Update)
        if any(second in parents(thing) for thing in self.things) and one.how != other.how:
            return
        if one.place.store == "two methods":
            return  # it has no head to tell them apart, and is not exactly-once anyway
        spelling = self.rng.choice(["plain", "dots", "link"])
        place = replace(one.place, spelling=spelling)
        self.things[second] = replace(other, how=one.how, keys=one.keys, kind=one.kind, place=place)


def draw(seed: int) -> Case:
    """Return the case of a seed."""
    rng = random.Random(seed)
    made = Draw(rng)
    for _ in range(rng.choice([1, 1, 2])):
        made.source()
    chances: Sequence[tuple[Callable[[], None], int]] = (
        (made.update, 4),
        (made.step, 4),
        (made.query, 3),
        (made.static_query, 2),
        (made.new_values, 1),
    )
    actions, weights = zip(*chances, strict=True)
    for _ in range(rng.randrange(2, 8)):
        rng.choices(actions, weights)[0]()
    last = made.streams()[-1]
    if not any(last in parents(thing) for thing in made.things):
        made.update(last)
    while not made.updates():
        made.update()
    if rng.random() < 0.3:
        made.make_all_opaque()
    if len(made.updates()) > 1 and rng.random() < 0.06:
        made.share_a_store()
    return Case(tuple(made.things), _schedule(rng, made))


def _schedule(rng: random.Random, made: Draw) -> Schedule:
    def sometimes(chance: float) -> float:
        return chance if rng.random() < 0.5 else 0.0

    calm = rng.random() < 0.1
    if calm:
        return Schedule(rng.randrange(2**32), in_flight=rng.randrange(1, 4))
    disaster = _disaster(rng, made) if rng.random() < 0.3 else None
    crash_at = rng.choice(
        [rng.choice((*BATCH_POINTS, *ROWS_POINTS)), rng.choice(["write.after", ""]), ""]
    )
    return Schedule(
        seed=rng.randrange(2**32),
        most=rng.randrange(1, 6),
        crash=0.3 if crash_at else rng.choice([0.0, 0.02, 0.05]),
        crash_at=crash_at,
        fail=sometimes(0.03),
        error=sometimes(0.02),
        lost_write=sometimes(0.05),
        half_write=sometimes(0.1),
        lost_answer=sometimes(0.05),
        outage=sometimes(0.1),
        change=sometimes(0.3),
        zombies=rng.random() < 0.5,
        in_flight=rng.randrange(1, 4),
        strict=rng.random() < 0.1,
        rolls_back=disaster is None and rng.random() < 0.2,
        disaster=disaster,
        away=sometimes(0.02),
    )


def _disaster(rng: random.Random, made: Draw) -> Disaster:
    at = rng.choice([rng.randrange(2, 150), 10_000])  # or when all has been read
    copied_at = rng.randrange(1, min(at, 120))
    lists = [i for i, t in enumerate(made.things) if isinstance(t, Source) and t.form == "files"]
    if lists and rng.random() < 0.6:
        what = rng.choice(["list deleted", "list emptied", "list restored"])
        return Disaster(what, at, copied_at, rng.choice(lists))
    what = rng.choice(["restored", "restored", "failover", "emptied", "ledger restored"])
    return Disaster(what, at, copied_at, rng.choice(made.updates()))
