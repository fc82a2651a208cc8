"""`Config`: one declaration gives the checks, the dotted keys and the reference table."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterspout._config import Config
from waterspout.errors import ConfigError

DEFAULTS = {
    "ackers": ("topology.acker.executors", 1),
    "message_timeout_secs": ("topology.message.timeout.secs", 30),
    "enable_message_timeouts": ("topology.enable.message.timeouts", True),
    "max_spout_pending": ("topology.max.spout.pending", None),
    "max_replays": ("waterspout.max.replays", 3),
    "tick_tuple_freq_secs": ("topology.tick.tuple.freq.secs", None),
    "bolt_errors": ("waterspout.bolt.errors", "fail"),
    "wave_secs": ("waterspout.wave.secs", 1.0),
    "wave_budget_secs": ("waterspout.wave.budget.secs", 5.0),
    "wave_max_tuples": ("waterspout.wave.max.tuples", 100_000),
    "wave_collapse_tuples": ("waterspout.wave.collapse.tuples", 2_000),
    "backpressure_high": ("backpressure.disruptor.high.watermark", 0.9),
    "backpressure_low": ("backpressure.disruptor.low.watermark", 0.4),
    "dead_letters_max": ("waterspout.dead.letters.max", 100_000),
    "on_error": ("waterspout.on.error", "fail"),
    "max_bad_ratio": ("waterspout.max.bad.ratio", 1.0),
    "batch_emit_interval_millis": ("topology.trident.batch.emit.interval.millis", 0),
    "batch_timeout_secs": ("waterspout.batch.timeout.secs", 600),
    "batch_sizing": ("waterspout.batch.sizing", None),
    "batch_interval_millis": ("waterspout.batch.interval.millis", 3000),
    "staged_max_rows": ("waterspout.staged.max.rows", 2_000_000),
    "spout_max_batch_size": ("topology.spout.max.batch.size", None),
    "max_retries": ("waterspout.max.retries", 3),
    "outage_secs": ("waterspout.outage.secs", 600),
    "retry_backoff_millis": ("waterspout.retry.backoff.millis", 100),
    "retry_backoff_max_millis": ("waterspout.retry.backoff.max.millis", 10_000),
    "cancel_wait_secs": ("waterspout.cancel.wait.secs", 5.0),
    "idle_poll_millis": ("waterspout.idle.poll.millis", 50),
    "lease_secs": ("waterspout.lease.secs", 10.0),
    "drpc_queue_size": ("drpc.queue.size", 128),
    "drpc_request_timeout_secs": ("drpc.request.timeout.secs", 30),
    "home": ("waterspout.home", None),
    "strict": ("waterspout.strict", False),
    "state_partitions": ("waterspout.state.partitions", 2),
    "retire": ("waterspout.retire", ()),
    "commit_in": ("waterspout.commit.in", "auto"),
    "collect_max_rows": ("waterspout.collect.max.rows", 200_000),
    "serve": ("waterspout.serve", None),
    "serve_token": ("waterspout.serve.token", None),
    "serve_hosts": ("waterspout.serve.hosts", ()),
    "traces": ("waterspout.traces", False),
    "connect_timeout_secs": ("waterspout.connect.timeout.secs", 10.0),
    "zookeeper_servers": ("transactional.zookeeper.servers", None),
    "zookeeper_port": ("transactional.zookeeper.port", 2181),
    "zookeeper_root": ("transactional.zookeeper.root", "/transactional"),
    "zookeeper_acl": ("waterspout.zookeeper.acl", None),
    "zookeeper_tls": ("waterspout.zookeeper.tls", False),
    "zookeeper_tls_ca": ("waterspout.zookeeper.tls.ca", None),
    "zookeeper_tls_cert": ("waterspout.zookeeper.tls.cert", None),
    "zookeeper_tls_key": ("waterspout.zookeeper.tls.key", None),
}
KEYS = dict(DEFAULTS.values())

GOOD = {
    "ackers": [0, 1, 64],
    "message_timeout_secs": [0.5, 1, 30],
    "enable_message_timeouts": [True, False],
    "max_spout_pending": [None, 1, 5000],
    "max_replays": [0, 3],
    "tick_tuple_freq_secs": [None, 0.1, 60],
    "bolt_errors": ["fail", "crash"],
    "wave_secs": [0.1, 10],
    "wave_budget_secs": [0.1, 60],
    "wave_max_tuples": [1, 10**6],
    "wave_collapse_tuples": [0, 10**6],
    "backpressure_high": [0.5, 0.9, 4],
    "backpressure_low": [0, 0.4],
    "dead_letters_max": [1, 10**6],
    "on_error": ["fail", "dead_letter"],
    "max_bad_ratio": [0, 0.25, 1, 1.0],
    "batch_emit_interval_millis": [0, 0.5, 500],
    "batch_timeout_secs": [0.1, 600],
    "batch_sizing": [None, True, False],
    "batch_interval_millis": [0.5, 3000],
    "staged_max_rows": [1, 2_000_000],
    "spout_max_batch_size": [None, 1, 1000],
    "max_retries": [0, 9],
    "retry_backoff_millis": [0, 100.5],
    "retry_backoff_max_millis": [0, 1e6],
    "cancel_wait_secs": [0, 5],
    "idle_poll_millis": [0.1, 50],
    "lease_secs": [0.2, 10],
    "serve": ["127.0.0.1:0", "localhost:8080", "[::1]:65535"],
    "serve_token": ["t", "${WATERSPOUT_TOKEN}"],
    "serve_hosts": [(), ("streams.example.org",)],
    "connect_timeout_secs": [0.2, 10],
    "drpc_queue_size": [1, 10**6],
    "drpc_request_timeout_secs": [0.1, 600],
    "home": [None, "/tmp/x", "relative"],
    "strict": [True, False],
    "traces": [True, False],
    "state_partitions": [1, 200],
    "retire": [(), ("counts", "lines")],
    "commit_in": ["auto", "driver", "tasks"],
    "collect_max_rows": [1, 10**9],
    "zookeeper_servers": [None, ("zk1",), ("zk1", "zk2")],
    "zookeeper_port": [1, 65535],
    "zookeeper_root": ["/", "/a/b"],
    "zookeeper_acl": [None, ("world:anyone:r", "x509:CN=a:b:cdrwa")],
    "zookeeper_tls": [True, False],
    "zookeeper_tls_ca": [None, "/a/ca.pem"],
    "zookeeper_tls_cert": [None, "/a/me.pem"],
    "zookeeper_tls_key": [None, "/a/me.key"],
}
BAD = {
    "ackers": [-1, True, 1.0, "1", None],
    "message_timeout_secs": [0, -1, True, "30", None, float("nan"), float("inf")],
    "enable_message_timeouts": [0, 1, "true", None],
    "max_spout_pending": [-1, True, 1.5, "4"],
    "max_replays": [-1, False, 0.5],
    "tick_tuple_freq_secs": [0, -1, True, "1"],
    "bolt_errors": ["Fail", None, True],
    "wave_secs": [0, None],
    "wave_budget_secs": [0, "5"],
    "wave_max_tuples": [0, 1.5],
    "wave_collapse_tuples": [-1, None],
    "backpressure_high": [0, "0.9"],
    "backpressure_low": [-0.1, None],
    "dead_letters_max": [0, None],
    "on_error": ["dead-letter", None, True],
    "max_bad_ratio": [-0.1, 1.5, True, "0.5", None],
    "batch_emit_interval_millis": [-1, None, False],
    "batch_timeout_secs": [0, None],
    "batch_sizing": [0, "yes"],
    "batch_interval_millis": [0, None, "3 s"],
    "staged_max_rows": [0, None, 1.5],
    "spout_max_batch_size": [0, 1.0],
    "max_retries": [-1, None],
    "retry_backoff_millis": [-0.1, "1"],
    "retry_backoff_max_millis": [-1, float("inf")],
    "cancel_wait_secs": [-1, None],
    "idle_poll_millis": [0, -1],
    "lease_secs": [0, True],
    "serve": ["127.0.0.1", ":80", "h:65536", 8080, "http://h:80"],
    "serve_token": ["", "two words", "a\nb", 7],
    "serve_hosts": ["host", ("",)],
    "connect_timeout_secs": [0, None],
    "drpc_queue_size": [0, None],
    "drpc_request_timeout_secs": [0, "30"],
    "home": ["", 1, b"/tmp"],
    "strict": [None, 1, "no"],
    "traces": [None, 1, "yes"],
    "state_partitions": [0, True],
    "retire": ["counts", ("",), (1,)],
    "commit_in": ["Driver", "", None, ["auto"]],
    "collect_max_rows": [0, 1e5],
    "zookeeper_servers": ["zk1", [], [""], [1], {"zk1"}],
    "zookeeper_port": [0, 65536, "2181", True],
    "zookeeper_root": ["", "transactional", None],
    "zookeeper_acl": [(), "world:anyone:r", ("world:anyone",), ("world:anyone:x",), (1,)],
    "zookeeper_tls": ["yes", None],
    "zookeeper_tls_ca": ["", 1],
    "zookeeper_tls_cert": ["", 1],
    "zookeeper_tls_key": ["", 1],
}


def cases(table):
    return [(name, value) for name, values in table.items() for value in values]


def options():
    """Any set of good options, each under its name or its dotted key."""
    spelled = {name: st.sampled_from([name, DEFAULTS[name][0]]) for name in GOOD}
    one = st.sampled_from(sorted(GOOD)).flatmap(
        lambda name: st.tuples(st.just(name), spelled[name], st.sampled_from(GOOD[name]))
    )
    return st.lists(one, unique_by=lambda option: option[0])


def test_defaults_and_keys_are_the_documented_ones():
    rows = {row.name: (row.key, row.default) for row in Config.describe()}

    assert rows == DEFAULTS


def test_every_option_says_what_it_is_for():
    assert all(row.doc.endswith(".") and "\n" not in row.doc for row in Config.describe())


def test_every_quantity_has_a_unit():
    without = {row.name for row in Config.describe() if not row.unit}

    switches = {"enable_message_timeouts", "strict", "commit_in", "bolt_errors", "on_error"}
    switches |= {"batch_sizing", "traces", "zookeeper_tls"}
    assert without == switches


def test_a_row_is_name_key_unit_default_and_doc():
    assert Config.describe()[1] == (
        "message_timeout_secs",
        "topology.message.timeout.secs",
        "seconds",
        30,
        "Time after which a tuple tree that is not complete is failed.",
    )


@pytest.mark.parametrize(("name", "value"), cases(GOOD))
def test_a_good_value_is_kept(name, value):
    assert getattr(Config(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "value"), cases(BAD))
def test_a_bad_value_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=f"^'{name}' is .*; expected "):
        Config(**{name: value})


@pytest.mark.parametrize(("name", "value"), cases(BAD))
def test_a_bad_value_in_a_dict_is_refused_by_name_and_key(name, value):
    key = DEFAULTS[name][0]

    with pytest.raises(ConfigError) as caught:
        Config.from_dict({key: value})

    assert str(caught.value).startswith(f"'{key}' ({name}) is ")


def test_an_error_shows_the_value_and_what_is_expected():
    with pytest.raises(ConfigError) as caught:
        Config.from_dict({"topology.max.spout.pending": -3})

    assert str(caught.value) == (
        "'topology.max.spout.pending' (max_spout_pending) is -3; expected an integer >= 1 or None"
    )


def test_an_alias_is_named_as_it_was_written():
    with pytest.raises(ConfigError, match=r"^'topology\.ackers' \(ackers\) is -1; expected"):
        Config.from_dict({"topology.ackers": -1})


def test_a_value_too_large_to_print_is_still_a_config_error():
    with pytest.raises(ConfigError, match="too large to show"):
        Config(ackers=-(10**5000))


@pytest.mark.parametrize(
    ("key", "closest"),
    [
        ("topology.max.spout.pendin", "topology.max.spout.pending"),
        ("max_spout_pendin", "max_spout_pending"),
        ("topology.acker", "topology.ackers"),
        ("waterspout.lease.sec", "waterspout.lease.secs"),
    ],
)
def test_an_unknown_key_names_the_closest_known_one(key, closest):
    with pytest.raises(ConfigError) as caught:
        Config.from_dict({key: 1})

    assert str(caught.value) == f"unknown option {key!r}; the closest known one is {closest!r}"


def test_an_unknown_keyword_names_the_closest_option():
    with pytest.raises(ConfigError, match=r"unknown option 'acker'.* 'ackers'"):
        Config(acker=1)


@pytest.mark.parametrize(
    "key",
    [None, 1, 10**5000, ("ackers",), "", "x" * 10**6],
    ids=["none", "int", "huge int", "tuple", "empty", "long"],
)
def test_any_unknown_key_is_a_config_error(key):
    with pytest.raises(ConfigError, match="unknown option"):
        Config.from_dict({key: 1})


def test_options_are_keyword_only():
    with pytest.raises(ConfigError, match=r"options by name, not {'ackers': 1}.*from_dict"):
        Config({"ackers": 1})


def test_names_and_keys_may_be_mixed():
    config = Config.from_dict({"ackers": 2, "topology.max.spout.pending": 4})

    assert config == Config(ackers=2, max_spout_pending=4)


def test_topology_ackers_is_an_alias():
    assert Config.from_dict({"topology.ackers": 5}) == Config(ackers=5)


def test_one_option_under_two_names_is_refused():
    with pytest.raises(ConfigError, match=r"'ackers' and 'topology\.ackers' are the same option"):
        Config.from_dict({"ackers": 2, "topology.ackers": 2})


@pytest.mark.parametrize("key", ["topology.max.spout.pending", "max_spout_pending"])
def test_storms_zero_means_no_limit_in_a_dict(key):
    assert Config.from_dict({key: 0}).max_spout_pending is None


def test_false_is_not_storms_zero():
    with pytest.raises(ConfigError, match="is False; expected an integer"):
        Config.from_dict({"topology.max.spout.pending": False})


def test_zero_pending_as_a_keyword_is_refused():
    with pytest.raises(ConfigError, match="'max_spout_pending' is 0"):
        Config(max_spout_pending=0)


@pytest.mark.parametrize(("pending", "batches"), [(None, 1), (1, 1), (7, 7)])
def test_max_batches_is_the_pending_limit_or_one(pending, batches):
    assert Config(max_spout_pending=pending).max_batches == batches


def test_a_list_of_servers_is_stored_as_a_tuple():
    assert Config(zookeeper_servers=["a", "b"]).zookeeper_servers == ("a", "b")


def test_a_path_object_is_stored_as_text(tmp_path):
    assert Config(home=tmp_path).home == str(tmp_path)


def test_to_dict_has_every_dotted_key_and_keeps_none():
    assert Config().to_dict() == {**KEYS, "waterspout.retire": [], "waterspout.serve.hosts": []}


@given(options())
def test_a_dict_of_any_options_survives_json_and_comes_back_equal(chosen):
    config = Config.from_dict({spelling: value for _, spelling, value in chosen})

    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@given(options())
def test_every_spelling_gives_the_same_config(chosen):
    by_name = Config(**{name: value for name, _, value in chosen})

    assert Config.from_dict({spelling: value for _, spelling, value in chosen}) == by_name


@given(options())
def test_a_config_survives_pickle_and_hashes_alike(chosen):
    config = Config(**{name: value for name, _, value in chosen})
    copy = pickle.loads(pickle.dumps(config))

    assert (copy, hash(copy)) == (config, hash(config))


def test_the_low_mark_stands_below_the_high_one():
    with pytest.raises(ConfigError, match=r"'backpressure_low' is 0\.9; it must be below"):
        Config(backpressure_low=0.9)


def test_a_config_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Config().ackers = 2


def test_replace_changes_a_copy():
    config = Config(ackers=2)

    assert (config.replace(max_retries=9), config) == (
        Config(ackers=2, max_retries=9),
        Config(ackers=2),
    )


def test_replace_checks_the_value():
    with pytest.raises(ConfigError, match="'ackers' is -1"):
        Config().replace(ackers=-1)


def test_replace_refuses_an_unknown_option():
    with pytest.raises(ConfigError, match=r"unknown option 'lease'.* 'lease_secs'"):
        Config().replace(lease=1)


def test_home_is_the_option_first(monkeypatch):
    monkeypatch.setenv("WATERSPOUT_HOME", "/from/env")

    assert Config(home="/own").home_path() == Path("/own")


def test_home_follows_the_environment_at_the_time_of_the_call(monkeypatch):
    config = Config()
    monkeypatch.setenv("WATERSPOUT_HOME", "/from/env")

    assert config.home_path() == Path("/from/env")


@pytest.mark.parametrize("value", [None, ""])
def test_home_is_a_local_folder_without_the_environment(monkeypatch, value):
    monkeypatch.delenv("WATERSPOUT_HOME", raising=False)
    if value is not None:
        monkeypatch.setenv("WATERSPOUT_HOME", value)

    assert Config().home_path() == Path(".waterspout")


def test_home_expands_a_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")

    assert Config(home="~/ws").home_path() == Path("/home/me/ws")


def write(tmp_path, text):
    path = tmp_path / "storm.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_yaml_takes_names_and_dotted_keys(tmp_path):
    path = write(
        tmp_path,
        "topology.max.spout.pending: 4\n"
        "ackers: 2\n"
        "transactional.zookeeper.servers: [zk1, zk2]\n"
        "waterspout.home: ~\n",
    )

    assert Config.from_yaml(path) == Config(
        max_spout_pending=4, ackers=2, zookeeper_servers=("zk1", "zk2")
    )


def test_yaml_path_may_be_text(tmp_path):
    assert Config.from_yaml(str(write(tmp_path, "{}"))) == Config()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty; expected a mapping"),
        ("# nothing\n", "is empty; expected a mapping"),
        ("- ackers\n", "holds a list; expected a mapping"),
        ("ackers\n", "holds a str; expected a mapping"),
        ("ackers: [1\n", "is not valid YAML"),
        ("ackers: !!python/object/apply:os.getcwd []\n", "is not valid YAML"),
        ("ackers: !!int ''\n", "is not valid YAML"),
        ("home: !!timestamp x\n", "is not valid YAML"),
        ("home: 2024-99-99\n", "is not valid YAML"),
        ("ackers: " + "9" * 5000, "is not valid YAML"),
        ("[" * 5000, "is not valid YAML"),
        (b"ackers: \xff\n", "is not valid YAML"),
        ("ackers: yes\n", "'ackers' is True; expected an integer >= 0"),
        ("ackerz: 1\n", "unknown option 'ackerz'; the closest known one is 'ackers'"),
        ("1: 2\n", "unknown option 1"),
        ("topology:\n  ackers: 1\n", "sections are not read, write dotted keys"),
    ],
)
def test_a_bad_yaml_file_is_refused_by_path(tmp_path, text, problem):
    path = write(tmp_path, text)

    with pytest.raises(ConfigError) as caught:
        Config.from_yaml(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)


def test_a_yaml_alias_bomb_is_refused_in_a_short_message(tmp_path):
    levels = [f"&a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    path = write(tmp_path, f"ackers: [&a0 [x], {', '.join(levels)}]")

    with pytest.raises(ConfigError, match="'ackers' is ") as caught:
        Config.from_yaml(path)

    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_yaml_file_that_cannot_be_read_is_refused_by_path(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        Config.from_yaml(tmp_path / name)

    assert str(caught.value).startswith(f"{tmp_path / name}: ")


def test_a_token_is_never_shown():
    conf = Config(serve_token="hunter2hunter2")

    assert "hunter2" not in repr(conf)
    assert conf.masked()["waterspout.serve.token"] == "***"
    assert Config().masked()["waterspout.serve.token"] is None
    with pytest.raises(ConfigError) as raised:
        Config(serve_token="hunter2 hunter2")
    assert "hunter2" not in str(raised.value)
