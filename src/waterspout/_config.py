"""`Config`: every limit and timeout, with its unit, its default and Storm's key.

An option is declared once, below, with the rule that its value must meet; checks, errors,
`to_dict` and the reference table are all made from that declaration.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import math
import os
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeGuard, TypeVar

from waterspout._backoff import Backoff
from waterspout._habits import SaysInstead
from waterspout._storm_keys import meaningless
from waterspout.errors import ConfigError

__all__ = ["Config", "ConfigRow", "Options", "as_config"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_SETTERS = (
    *("put", "set", "get", "update", "set_debug", "set_num_workers", "set_num_ackers"),
    *("set_max_spout_pending", "set_message_timeout_secs", "register_metrics_consumer"),
)
_UNITS = {"secs": "seconds", "millis": "milliseconds"}  # by the end of a name


class ConfigRow(NamedTuple):
    """One line of the reference table that `Config.describe` returns."""

    name: str
    key: str
    unit: str
    default: object
    doc: str


class _Rule(NamedTuple):
    """What an option accepts; None is accepted as well wherever it is the default."""

    expected: str
    accepts: Callable[[object], bool]


def _is_integer(value: object) -> TypeGuard[int]:
    # True is an int to Python; "ackers: yes" in a YAML file is a mistake, not one acker.
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return _is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value != ""


def _is_names(value: object) -> bool:
    return isinstance(value, tuple) and value != () and all(_is_text(name) for name in value)


_SWITCH = _Rule("true or false", lambda v: isinstance(v, bool))
_COUNT = _Rule("an integer >= 0", lambda v: _is_integer(v) and v >= 0)
_SIZE = _Rule("an integer >= 1", lambda v: _is_integer(v) and v >= 1)
_PORT = _Rule("an integer from 1 to 65535", lambda v: _is_integer(v) and 1 <= v <= 65535)
_DELAY = _Rule("a number >= 0", lambda v: _is_number(v) and v >= 0)
_DURATION = _Rule("a number > 0", lambda v: _is_number(v) and v > 0)
_SHARE = _Rule("a number from 0 to 1", lambda v: _is_number(v) and 0 <= v <= 1)
_TEXT = _Rule("a non-empty string", _is_text)
_NODE = _Rule('a string that starts with "/"', lambda v: _is_text(v) and v.startswith("/"))
_NAMES = _Rule("a non-empty list of non-empty strings", _is_names)
_SOME_NAMES = _Rule("a list of non-empty strings", lambda v: v == () or _is_names(v))

_LISTENS = _Rule(
    '"host:port", such as "127.0.0.1:0" (port 0: any that is free)',
    lambda v: (
        _is_text(v)
        and re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d{1,5}", v) is not None
        and int(v.rpartition(":")[2]) < 65536
    ),
)
_TOKEN = _Rule(
    "a string of printable ASCII characters without spaces",
    lambda v: _is_text(v) and all("!" <= c <= "~" for c in v),
)
_ACL = _Rule(
    'a list of "scheme:id:permissions", the permissions of c d r w a, such as "world:anyone:r"',
    lambda v: _is_names(v) and all(re.fullmatch(r"[a-z0-9]+:.*:[cdrwa]+", e) for e in v),  # type: ignore[attr-defined]
)


def _one_of(*choices: str) -> _Rule:
    return _Rule(f"one of {', '.join(choices)}", lambda v: isinstance(v, str) and v in choices)


def _option(
    default: T,
    rule: _Rule,
    doc: str,
    *,
    key: str = "",
    unit: str = "",
    aliases: tuple[str, ...] = (),
    zero_is_none: bool = False,
    secret: bool = False,
) -> T:
    """Declare an option; without a `key` of Storm's it is `waterspout.` and its name with dots."""
    named = {"key": key, "unit": unit, "aliases": aliases, "zero_is_none": zero_is_none}
    about = {"rule": rule, "doc": doc, "secret": secret, **named}
    return field(default=default, metadata=about, repr=not secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(SaysInstead):
    """The options of one run: frozen, hashable, picklable, checked when made.

    >>> Config.from_dict({"topology.max.spout.pending": 4, "ackers": 2}).max_batches
    4
    """

    _instead: ClassVar[Mapping[str, str]] = dict.fromkeys(
        _SETTERS,
        "it is frozen: Config(max_spout_pending=4), or Config.from_dict({...}) with Storm's keys",
    )

    ackers: int = _option(
        1,
        _COUNT,
        "Tasks that track tuple trees; 0: every tuple is acked when it is emitted.",
        unit="tasks",
        key="topology.acker.executors",
        aliases=("topology.ackers",),
    )
    message_timeout_secs: float = _option(
        30,
        _DURATION,
        "Time after which a tuple tree that is not complete is failed.",
        key="topology.message.timeout.secs",
    )
    enable_message_timeouts: bool = _option(
        True,
        _SWITCH,
        "Whether tuple trees time out at all.",
        key="topology.enable.message.timeouts",
    )
    max_spout_pending: int | None = _option(
        None,
        _SIZE,
        "Unfinished tuples per spout task (None: no limit), or batches in flight (None: as many as "
        "the measured times suggest; 1 without batch_sizing).",
        unit="tuples or batches",
        key="topology.max.spout.pending",
        zero_is_none=True,
    )
    max_replays: int = _option(
        3,
        _COUNT,
        "Times a failed message is replayed before it becomes a dead letter.",
        unit="replays",
    )
    tick_tuple_freq_secs: float | None = _option(
        None,
        _DURATION,
        "Time between tick tuples; None: no ticks.",
        key="topology.tick.tuple.freq.secs",
    )
    bolt_errors: str = _option(
        "fail",
        _one_of("fail", "crash"),
        "What an exception in a bolt's execute does: fail that tuple, or end the run.",
    )
    wave_secs: float = _option(
        1.0,
        _DURATION,
        "Time that a wave of tuples should take; its size follows from what was measured.",
    )
    wave_budget_secs: float = _option(
        5.0,
        _DURATION,
        "Time after which bolts stop in a wave; what they have not reached waits for the next.",
    )
    wave_max_tuples: int = _option(
        100_000, _SIZE, "Most tuples that a wave takes from all spouts.", unit="tuples"
    )
    wave_collapse_tuples: int = _option(
        2_000,
        _COUNT,
        "Waves up to this size run in a single task, without a shuffle, and so do transactional "
        "batches; these also if their bolts have little to do. 0: none does.",
        unit="tuples",
    )
    backpressure_high: float = _option(
        0.9,
        _DURATION,
        "Waiting tuples, as a share of a wave's size, or staged rows, as one of staged_max_rows, "
        "from which on no spout is asked.",
        unit="share",
        key="backpressure.disruptor.high.watermark",
    )
    backpressure_low: float = _option(
        0.4,
        _DELAY,
        "Share at which the spouts are asked again.",
        unit="share",
        key="backpressure.disruptor.low.watermark",
    )
    dead_letters_max: int = _option(
        100_000,
        _SIZE,
        "Dead letters that are kept; the run stops rather than drop one.",
        unit="messages",
    )
    on_error: str = _option(
        "fail",
        _one_of("fail", "dead_letter"),
        "What a row that a Trident operation fails on, or a malformed record of a file, does: fail "
        "the batch, or be put aside.",
    )
    max_bad_ratio: float = _option(
        1.0,
        _SHARE,
        "Share of a batch's rows that may become dead letters at one operation; more stop the run.",
        unit="share",
    )
    batch_emit_interval_millis: float = _option(
        0,
        _DELAY,
        "Least time between the starts of two batches.",
        key="topology.trident.batch.emit.interval.millis",
    )
    batch_sizing: bool | None = _option(
        None,
        _SWITCH,
        "Whether batches size themselves; None: they do, but not in the test kit.",
    )
    batch_interval_millis: float = _option(
        3000,
        _DURATION,
        "Time that a batch should take while there is a backlog; its size follows from it.",
    )
    staged_max_rows: int = _option(
        2_000_000,
        _SIZE,
        "Rows that processed batches may have left for their commits; see backpressure_high.",
        unit="rows",
    )
    batch_timeout_secs: float = _option(
        600,
        _DURATION,
        "Time after which a phase of a batch that is not done has crashed; see max_retries.",
    )
    spout_max_batch_size: int | None = _option(
        None,
        _SIZE,
        "Most tuples that a batch takes from a spout that knows no batches; None: 1,000 at first, "
        "then as batch_interval_millis asks.",
        unit="tuples",
        key="topology.spout.max.batch.size",
    )
    max_retries: int = _option(
        3, _COUNT, "Crashes without progress after which the run stops.", unit="retries"
    )
    outage_secs: float = _option(
        600,
        _DELAY,
        "Time for which a store, a broker or ZooKeeper that is away is waited for; then the run "
        "stops.",
    )
    retry_backoff_millis: float = _option(
        100, _DELAY, "Pause before the first retry; each further one doubles it."
    )
    retry_backoff_max_millis: float = _option(10_000, _DELAY, "Longest pause before a retry.")
    cancel_wait_secs: float = _option(5.0, _DELAY, "Time that cancelled work is given to end.")
    idle_poll_millis: float = _option(
        50, _DURATION, "Pause between two looks at a source that had nothing."
    )
    lease_secs: float = _option(
        10.0,
        _DURATION,
        "Time without renewal after which another driver may take the topology over.",
    )
    drpc_queue_size: int = _option(
        128,
        _SIZE,
        "Requests that may wait for one DRPC function, and be worked on by it; more are refused.",
        unit="requests",
        key="drpc.queue.size",
    )
    drpc_request_timeout_secs: float = _option(
        30,
        _DURATION,
        "Time after which a DRPC request without an answer is told an error.",
        key="drpc.request.timeout.secs",
    )
    home: str | None = _option(
        None,
        _TEXT,
        "Folder of the embedded stores; None: $WATERSPOUT_HOME, else ./.waterspout.",
        unit="path",
    )
    strict: bool = _option(False, _SWITCH, "Refuse a topology that is not exactly-once.")
    state_partitions: int = _option(
        2, _SIZE, "Partitions of a state without a parallelism_hint.", unit="partitions"
    )
    retire: tuple[str, ...] = _option(
        (),
        _SOME_NAMES,
        "States (by table) or spouts that were taken out of the topology, and are to go.",
        unit="names",
    )
    commit_in: str = _option(
        "auto",
        _one_of("auto", "driver", "tasks"),
        "Where states are written and committers finish: in the driver, in Spark tasks, or as is "
        "best.",
    )
    collect_max_rows: int = _option(
        200_000,
        _SIZE,
        "Most rows brought to the driver for a commit; above it the commit runs in tasks.",
        unit="rows",
    )
    serve: str | None = _option(
        None,
        _LISTENS,
        "Where the driver answers questions about the run over HTTP, such as 127.0.0.1:0; None: "
        "nowhere.",
        unit="host:port",
    )
    serve_token: str | None = _option(
        None,
        _TOKEN,
        "What a caller must know to give commands, or ${NAME} of the environment; beyond loopback "
        "to ask anything.",
        unit="token",
        secret=True,
    )
    serve_hosts: tuple[str, ...] = _option(
        (),
        _SOME_NAMES,
        "Names by which callers reach that server, beside its own; others are refused.",
        unit="hosts",
    )
    traces: bool = _option(
        False,
        _SWITCH,
        "Send a trace of each batch by OpenTelemetry, to where its environment variables say.",
    )
    connect_timeout_secs: float = _option(
        10.0,
        _DURATION,
        "Time within which Spark Connect or ZooKeeper must answer when a run starts.",
    )
    zookeeper_servers: tuple[str, ...] | None = _option(
        None,
        _NAMES,
        "Hosts of the ZooKeeper that coordinates; None: the embedded store does.",
        unit="hosts",
        key="transactional.zookeeper.servers",
    )
    zookeeper_port: int = _option(
        2181, _PORT, "Port of those hosts.", unit="port", key="transactional.zookeeper.port"
    )
    zookeeper_root: str = _option(
        "/transactional",
        _NODE,
        "Node under which everything is kept.",
        unit="path",
        key="transactional.zookeeper.root",
    )
    zookeeper_acl: tuple[str, ...] | None = _option(
        None,
        _ACL,
        "Who may use what is created there, beside the user that creates it, such as sasl:bob:r.",
        unit="scheme:id:permissions",
    )
    zookeeper_tls: bool = _option(
        False, _SWITCH, "Encrypt, and check the servers' certificates; so does any file of these."
    )
    zookeeper_tls_ca: str | None = _option(
        None, _TEXT, "Certificates of who signs servers; None: those of the system.", unit="path"
    )
    zookeeper_tls_cert: str | None = _option(
        None, _TEXT, "Our own certificate, for servers that ask for one.", unit="path"
    )
    zookeeper_tls_key: str | None = _option(
        None, _TEXT, "Its key, if it is not in the same file.", unit="path"
    )

    def __new__(cls, *given: object, **options: object) -> Config:
        """Refuse an unknown keyword with the hint that Python's own error lacks."""
        if given:
            raise ConfigError(
                f"Config takes options by name, not {_shown(given[0])}; write "
                "Config(max_spout_pending=4), or Config.from_dict({...}) with Storm's keys"
            )
        for name in options:
            if name not in cls.__dataclass_fields__:
                raise _unknown(name, cls.__dataclass_fields__)
        # Not super(): slots=True makes a second class, and super() would look for the first.
        return object.__new__(cls)

    def __post_init__(self) -> None:
        """Check every option against its rule, and store lists as tuples."""
        for option in dataclasses.fields(self):
            value = _checked(option, getattr(self, option.name), repr(option.name))
            object.__setattr__(self, option.name, value)
        if self.backpressure_low >= self.backpressure_high:
            raise ConfigError(
                f"'backpressure_low' is {self.backpressure_low:g}; it must be below "
                f"'backpressure_high', which is {self.backpressure_high:g}"
            )

    @classmethod
    def from_dict(cls, options: Mapping[str, object]) -> Config:
        """Build from Python names, Storm's keys, or a mix of both."""
        return cls._from_mapping(options, "")

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> Config:
        """Build from a YAML file that is one flat mapping of the keys `from_dict` takes."""
        import yaml  # here, because executors load this module and need no YAML

        try:
            with open(path, "rb") as file:
                content = yaml.safe_load(file)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
        except Exception as error:  # PyYAML lets ValueError, KeyError and others out as well
            raise ConfigError(f"{path}: is not valid YAML: {error}") from error
        if not isinstance(content, Mapping):
            # An empty file is more often a lost one than a wish for the defaults.
            found = "is empty" if content is None else f"holds a {type(content).__name__}"
            raise ConfigError(f"{path}: {found}; expected a mapping of options ({{}} for none)")
        return cls._from_mapping(content, f"{path}: ")

    @classmethod
    def _from_mapping(cls, options: Mapping[Any, object], where: str) -> Config:
        if not isinstance(options, Mapping):
            raise ConfigError(f"{where}options are a mapping of keys, not {_shown(options)}")
        values: dict[str, Any] = {}
        written: dict[str, str] = {}
        passed_over: dict[str, str] = {}
        for key, value in options.items():
            option = _BY_KEY.get(key) if isinstance(key, str) else None
            if option is None:
                why = meaningless(key) if isinstance(key, str) else None
                if why is None:
                    raise _unknown(key, _BY_KEY, where, nested=isinstance(value, Mapping))
                passed_over[key] = why
                continue
            name = option.name
            if name in written:
                raise ConfigError(f"{where}{written[name]!r} and {key!r} are the same option")
            written[name] = key
            if option.metadata["zero_is_none"] and _is_integer(value) and value == 0:
                value = None
            label = repr(key) if key == name else f"{key!r} ({name})"
            values[name] = _checked(option, value, f"{where}{label}")
        if passed_over:
            log.warning("%s", _without_meaning(passed_over, where))
        return cls(**values)

    def to_dict(self) -> dict[str, object]:
        """Return every option under its dotted key, ready for JSON and for `from_dict`."""
        values = {_BY_NAME[name]: getattr(self, name) for name in _BY_NAME}
        return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}

    def masked(self) -> dict[str, object]:
        """Return what `to_dict` does, but of a secret only whether there is one."""
        secret = {o.name for o in dataclasses.fields(self) if o.metadata["secret"]}
        hidden = {_BY_NAME[name] for name in secret if getattr(self, name) is not None}
        return {key: "***" if key in hidden else v for key, v in self.to_dict().items()}

    def replace(self, **changes: object) -> Config:
        """Return a copy with some options changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    @classmethod
    def describe(cls) -> list[ConfigRow]:
        """Return one row per option, in the order of declaration, for the docs."""
        rows = []
        for option in dataclasses.fields(cls):
            name, given = option.name, option.metadata
            key = given["key"] or f"waterspout.{name.replace('_', '.')}"
            unit = given["unit"] or _UNITS.get(name.rpartition("_")[2], "")
            rows.append(ConfigRow(name, key, unit, option.default, given["doc"]))
        return rows

    @classmethod
    def known_keys(cls) -> Mapping[str, str]:
        """Return the dotted key of every spelling of every option."""
        return {spelling: _BY_NAME[option.name] for spelling, option in _BY_KEY.items()}

    def home_path(self) -> Path:
        """Return the folder of the embedded stores, by the environment as it is now."""
        # A "~" that reached us unexpanded would become a folder of that very name.
        home = self.home or os.environ.get("WATERSPOUT_HOME") or ".waterspout"
        return Path(home).expanduser()

    @property
    def max_batches(self) -> int:
        """Batches that may be in flight at once, where nobody chooses by what was measured."""
        return self.max_spout_pending or 1

    @property
    def chooses_in_flight(self) -> bool:
        """Whether a run on Spark chooses how many batches are in flight."""
        return self.max_spout_pending is None and self.batch_sizing is not False

    @property
    def retry_backoff(self) -> Backoff:
        """The pauses before retries."""
        return Backoff(self.retry_backoff_millis / 1000, self.retry_backoff_max_millis / 1000)


Options: TypeAlias = Config | Mapping[str, object] | None
"""What is taken wherever somebody gives options: a Config, a mapping of keys, or none."""


def as_config(given: Options) -> Config:
    """Return the options that somebody gave."""
    if given is None:
        return Config()
    return given if isinstance(given, Config) else Config.from_dict(given)


def _without_meaning(passed_over: Mapping[str, str], where: str) -> str:
    """Return one sentence about options of Storm's, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for key, why in passed_over.items():
        by_reason.setdefault(why, []).append(key)
    said = "; ".join(f"{', '.join(keys)} ({why})" for why, keys in by_reason.items())
    return f"{where}options of Storm's that change nothing here: {said}"


def _checked(option: dataclasses.Field[Any], value: object, label: str) -> object:
    """Return `value` in its stored form, or raise what is wrong with it."""
    stored = value
    if isinstance(value, list):
        stored = tuple(value)
    elif isinstance(value, os.PathLike):
        stored = os.fspath(value)
    rule: _Rule = option.metadata["rule"]
    optional = option.default is None
    if rule.accepts(stored) or (optional and value is None):
        return stored
    expected = f"{rule.expected} or None" if optional else rule.expected
    # What is almost a secret is none to show either.
    seen = "not what it must be" if option.metadata["secret"] else _shown(value)
    raise ConfigError(f"{label} is {seen}; expected {expected}")


def _unknown(
    key: object, known: Mapping[str, object], where: str = "", *, nested: bool = False
) -> ConfigError:
    # Cut, because difflib is quadratic; cutoff 0, because even a far hint shows the spelling.
    spelling = key[:100] if isinstance(key, str) else _shown(key)
    (closest,) = difflib.get_close_matches(spelling, known, n=1, cutoff=0.0)
    hint = "; sections are not read, write dotted keys" if nested else ""
    # Storm's setters, setNumWorkers and such, in Python's spelling.
    why = meaningless(f"topology.{spelling.removeprefix('num_').replace('_', '.')}")
    if why is not None:
        return ConfigError(f"{where}there is no option {_shown(key)}: {why}")
    return ConfigError(
        f"{where}unknown option {_shown(key)}; the closest known one is {closest!r}{hint}"
    )


def _shown(value: object) -> str:
    # reprlib keeps a YAML alias bomb short; an int of too many digits has no repr at all.
    try:
        return repr(value[:100]) if isinstance(value, str) else reprlib.repr(value)[:200]
    except ValueError:
        return f"of type {type(value).__name__}, too large to show"


_BY_NAME: dict[str, str] = {row.name: row.key for row in Config.describe()}
_BY_KEY: dict[str, dataclasses.Field[Any]] = {
    key: option
    for option in dataclasses.fields(Config)
    for key in (option.name, _BY_NAME[option.name], *option.metadata["aliases"])
}
