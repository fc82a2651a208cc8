"""Messages of a real RabbitMQ: none is lost, whoever dies, and each has one id."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import pickle
import socket
import subprocess
import sys
import time
import traceback

import psutil
import pytest

from tests.services.servers import await_condition, free_port
from waterspout.errors import ConfigError, MissingDependencyError, SourceError, TopologyError
from waterspout.spouts.rabbitmq import RabbitMQSpout
from waterspout.topology._context import TopologyContext

TIMEOUT_S = 30.0
SECRET = "hunter2-s3cret"


class Recorder:
    """A collector that notes what it gets."""

    def __init__(self):
        self.values, self.ids, self.errors = [], [], []

    def emit(self, values, msg_id=None, stream="default"):
        self.values.append(tuple(values))
        self.ids.append(msg_id)

    def report_error(self, error):
        self.errors.append(error)

    @property
    def bodies(self):
        return [values[0] for values in self.values]


def context(task=1):
    return TopologyContext("orders", "mq", task, {"mq": (task,)}, {})


@pytest.fixture
def spouts():
    """Open spouts, each with a recorder of its own, and close them at the end."""
    opened = []

    def start(*args, conf=None, task=1, **options):
        spout = RabbitMQSpout(*args, **options)
        opened.append(spout)
        recorder = Recorder()
        spout.open(conf or {}, context(task), recorder)
        return spout, recorder

    yield start
    for spout in opened:
        spout.close()


def drive(spout, done):
    """Call next_tuple until something is so."""

    def so():
        spout.next_tuple()
        return done()

    await_condition(so, TIMEOUT_S)


def receive(spout, recorder, count):
    """Drive a spout until it has emitted some number of messages; return their ids."""
    drive(spout, lambda: len(recorder.ids) >= count)
    assert len(recorder.ids) == count
    return recorder.ids


def cut(port):
    """Cut this process's connections to a port, as a network does; return how many."""
    found = [
        connection.fd
        for connection in psutil.Process().net_connections("tcp")
        if connection.raddr and connection.raddr.port == port
    ]
    for fd in found:
        with socket.socket(fileno=os.dup(fd)) as twin:
            twin.shutdown(socket.SHUT_RDWR)
    return len(found)


def test_the_lag_is_what_is_in_the_queue_and_what_was_not_emitted(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"a", b"b", b"c", b"d", b"e"])
    spout, recorder = spouts(
        rabbitmq.url, queue, prefetch=2, conf={"topology.max.spout.pending": 1}
    )

    receive(spout, recorder, 1)
    drive(spout, lambda: spout.lag() == 4)  # three at the broker, one in the inbox
    rabbitmq.publish(queue, [b"f"])
    drive(spout, lambda: spout.lag() == 5)
    spout.close()

    assert spout.lag() is None


def test_a_message_is_gone_when_it_is_acked_and_only_then(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"a", b"b", "\u00fc".encode()])
    spout, recorder = spouts(rabbitmq.url, queue)

    ids = receive(spout, recorder, 3)
    spout.ack(ids[0])
    spout.ack(ids[1])
    spout.close()

    assert recorder.values == [("a",), ("b",), ("\u00fc",)]
    assert len(set(ids)) == 3
    assert rabbitmq.bodies(queue) == ["\u00fc".encode()]


def test_acks_in_any_order_are_those_of_their_messages(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"%d" % number for number in range(10)])
    spout, recorder = spouts(rabbitmq.url, queue)
    ids = list(receive(spout, recorder, 10))

    for numbers in ((9, 0, 1), (5, 3), (2,)):
        for number in numbers:
            spout.ack(ids[number])
        spout.next_tuple()
    spout.close()

    assert rabbitmq.bodies(queue) == [b"4", b"6", b"7", b"8"]


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_failed_message_comes_again_under_its_id_until_it_is_acked(rabbitmq, spouts, kind):
    queue = rabbitmq.fresh_queue(x_queue_type=kind)
    rabbitmq.publish(queue, [b"again"], headers={"k": 1})
    spout, recorder = spouts(rabbitmq.url, queue)

    for count in range(1, 5):
        spout.fail(receive(spout, recorder, count)[-1])
    spout.ack(receive(spout, recorder, 5)[-1])
    spout.close()

    assert len(set(recorder.ids)) == 1
    assert recorder.errors == []
    assert rabbitmq.waiting(queue) == 0


def test_equal_messages_have_ids_of_their_own(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"same"] * 5)
    spout, recorder = spouts(rabbitmq.url, queue)

    ids = list(receive(spout, recorder, 5))
    spout.ack(ids[0])
    spout.fail(ids[3])
    back = receive(spout, recorder, 6)[-1]
    for msg_id in (ids[1], ids[2], back):
        spout.ack(msg_id)
    spout.close()

    assert len(set(ids)) == 5
    assert back == ids[3]
    assert rabbitmq.bodies(queue) == [b"same"], "the one that was never acked"


def test_an_id_is_of_the_message_not_of_the_delivery(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"plain"])
    rabbitmq.publish(queue, [b"one", b"other"], message_id="order-7")
    first, recorder = spouts(rabbitmq.url, queue)
    receive(first, recorder, 3)
    first.close()

    second, again = spouts(rabbitmq.url, queue)
    receive(second, again, 3)

    assert again.ids == recorder.ids
    assert [msg_id.startswith("order-7:") for msg_id in again.ids] == [False, True, True]
    assert len(set(again.ids)) == 3, "a message_id that is used twice is no trap"


def test_decode_sees_the_properties_and_makes_the_fields(rabbitmq, spouts):
    def decode(body, properties):
        names = ("message_id", "headers", "routing_key", "redelivered", "priority")
        return [len(body), {name: properties.get(name) for name in names}]

    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"\xff\x00"], message_id="m", headers={"a": 1})
    spout, recorder = spouts(rabbitmq.url, queue, fields=("size", "about"), decode=decode)

    receive(spout, recorder, 1)

    about = {"message_id": "m", "headers": {"a": 1}, "routing_key": queue}
    assert recorder.values == [(2, {**about, "redelivered": False, "priority": None})]


def test_what_cannot_be_decoded_goes_to_the_dead_letters_and_the_rest_goes_on(rabbitmq, spouts):
    dead = rabbitmq.fresh_queue()
    routing = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": dead}
    queue = rabbitmq.fresh_queue(**routing)
    rabbitmq.publish(queue, [b"a", b"\xff", b"\xfe", b"b"])
    spout, recorder = spouts(rabbitmq.url, queue)

    for msg_id in receive(spout, recorder, 2):
        spout.ack(msg_id)
    spout.close()

    assert recorder.bodies == ["a", "b"]
    assert spout.bad_messages == 2
    assert 1 <= len(recorder.errors) <= 2
    assert "UnicodeDecodeError" in str(recorder.errors[0])
    assert rabbitmq.waiting(queue) == 0
    assert rabbitmq.bodies(dead) == [b"\xff", b"\xfe"]


def test_what_decodes_to_other_than_the_fields_is_a_bad_message(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"a b", b"c", b"d e"])
    spout, recorder = spouts(
        rabbitmq.url, queue, fields=("x", "y"), decode=lambda body, _: body.decode().split()
    )

    receive(spout, recorder, 2)

    assert recorder.values == [("a", "b"), ("d", "e")]
    assert [("2 values" in str(error)) for error in recorder.errors] == [True]


def test_a_bad_message_may_end_the_run_and_stays_in_the_queue(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"a", b"\xff"])
    spout, recorder = spouts(rabbitmq.url, queue, on_bad_message="raise")

    with pytest.raises(SourceError, match="UnicodeDecodeError"):
        drive(spout, lambda: False)
    spout.ack(recorder.ids[0])
    spout.close()

    assert rabbitmq.bodies(queue) == [b"\xff"]


def test_no_more_than_the_prefetch_are_unacked(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"%d" % number for number in range(5)])
    spout, recorder = spouts(rabbitmq.url, queue, prefetch=3)

    receive(spout, recorder, 3)
    assert rabbitmq.waiting(queue) == 2
    for _ in range(200):
        spout.next_tuple()
    assert recorder.bodies == ["0", "1", "2"]

    spout.ack(recorder.ids[1])
    receive(spout, recorder, 4)
    assert rabbitmq.waiting(queue) == 1


def test_no_more_than_max_spout_pending_are_emitted(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"%d" % number for number in range(5)])
    spout, recorder = spouts(rabbitmq.url, queue, conf={"topology.max.spout.pending": 2})

    receive(spout, recorder, 2)
    await_condition(lambda: rabbitmq.waiting(queue) == 0, TIMEOUT_S)
    for _ in range(200):
        spout.next_tuple()
    assert recorder.bodies == ["0", "1"]

    spout.ack(recorder.ids[0])
    receive(spout, recorder, 3)


def test_tasks_share_a_queue(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    pairs = [spouts(rabbitmq.url, queue, prefetch=10, task=task) for task in (1, 2)]
    rabbitmq.publish(queue, [b"%d" % number for number in range(100)])

    def all_acked():
        for spout, recorder in pairs:
            spout.next_tuple()
            for msg_id in recorder.ids[len(done[spout]) :]:
                spout.ack(msg_id)
                done[spout].append(msg_id)
        return sum(map(len, done.values())) >= 100

    done = {spout: [] for spout, _ in pairs}
    await_condition(all_acked, TIMEOUT_S)
    for spout, _ in pairs:
        spout.close()

    got = [body for _, recorder in pairs for body in recorder.bodies]
    assert sorted(got, key=int) == [str(number) for number in range(100)]
    assert all(recorder.ids for _, recorder in pairs)
    assert rabbitmq.waiting(queue) == 0


def test_an_inactive_spout_gives_back_what_it_did_not_emit_and_still_acks(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"%d" % number for number in range(50)])
    spout, recorder = spouts(rabbitmq.url, queue, conf={"topology.max.spout.pending": 2})
    ids = list(receive(spout, recorder, 2))
    await_condition(lambda: rabbitmq.waiting(queue) == 0, TIMEOUT_S)

    spout.deactivate()
    assert rabbitmq.waiting(queue) == 48
    spout.ack(ids[0])
    spout.fail(ids[1])
    await_condition(lambda: rabbitmq.waiting(queue) == 49, TIMEOUT_S)

    spout.activate()
    receive(spout, recorder, 4)
    assert recorder.bodies == ["0", "1", "1", "2"]
    assert recorder.ids[2] == ids[1]
    assert recorder.errors == []


def test_an_ack_while_inactive_is_sent_at_once_and_a_loss_noticed_later(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"a", b"b"])
    spout, recorder = spouts(rabbitmq.url, queue)
    ids = list(receive(spout, recorder, 2))

    spout.deactivate()
    spout.ack(ids[0])
    cut(rabbitmq.port)
    await_condition(lambda: rabbitmq.waiting(queue) == 1, TIMEOUT_S)
    spout.ack("unknown")
    assert len(recorder.errors) == 1
    spout.activate()
    rabbitmq.publish(queue, [b"c"])
    receive(spout, recorder, 3)

    assert recorder.bodies == ["a", "b", "c"]


def test_acks_are_sent_from_time_to_time_even_if_nobody_asks_for_more(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"%d" % number for number in range(1200)])
    spout, recorder = spouts(rabbitmq.url, queue)

    for msg_id in receive(spout, recorder, 1200):
        spout.ack(msg_id)
    cut(rabbitmq.port)

    await_condition(lambda: rabbitmq.waiting(queue) == 200, TIMEOUT_S)


def test_it_may_be_closed_while_it_looks_for_the_broker(rabbitmq, spouts, monkeypatch):
    queue = rabbitmq.fresh_queue()
    monkeypatch.setenv("MQ_URL", rabbitmq.url)
    spout, recorder = spouts("${MQ_URL}", queue)
    cut(rabbitmq.port)
    drive(spout, lambda: recorder.errors)

    drive(spout, lambda: spout._link is not None)
    assert not spout._link.ready
    spout.deactivate()
    spout.activate()
    drive(spout, lambda: spout._link is not None)
    spout.close()
    spout.next_tuple()

    assert len(recorder.errors) == 1


def test_a_lost_connection_is_opened_again_and_nothing_is_emitted_twice(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"a", b"b", b"b"])
    spout, recorder = spouts(rabbitmq.url, queue)
    ids = list(receive(spout, recorder, 3))

    for losses in (1, 2):
        assert cut(rabbitmq.port) == 1
        drive(spout, lambda losses=losses: len(recorder.errors) == losses)
        rabbitmq.publish(queue, [b"new-%d" % losses])
        receive(spout, recorder, 3 + losses)
    spout.fail(ids[1])
    assert receive(spout, recorder, 6)[-1] == ids[1]
    for msg_id in {*ids, *recorder.ids}:
        spout.ack(msg_id)
    spout.close()

    assert recorder.bodies == ["a", "b", "b", "new-1", "new-2", "b"]
    assert len(recorder.errors) == 2
    assert rabbitmq.waiting(queue) == 0


def test_an_ack_for_a_delivery_of_an_earlier_connection_is_ignored(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"a"])
    spout, recorder = spouts(rabbitmq.url, queue)
    (msg_id,) = receive(spout, recorder, 1)
    cut(rabbitmq.port)
    other, others = spouts(rabbitmq.url, queue)
    receive(other, others, 1)

    drive(spout, lambda: recorder.errors)
    spout.ack(msg_id)
    drive(spout, lambda: spout._link is not None and spout._link.ready)
    spout.close()
    other.close()

    assert others.ids == [msg_id]
    assert rabbitmq.bodies(queue) == [b"a"]


@pytest.mark.soak
def test_a_broker_that_is_killed_is_waited_for(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"%d" % number for number in range(5)])
    spout, recorder = spouts(rabbitmq.url, queue)
    receive(spout, recorder, 5)

    rabbitmq.kill()
    until = time.monotonic() + 1  # several attempts
    drive(spout, lambda: time.monotonic() > until)
    away = spout.outage
    rabbitmq.restart()
    rabbitmq.publish(queue, [b"new"])

    for msg_id in receive(spout, recorder, 6):
        spout.ack(msg_id)
    spout.close()
    assert recorder.bodies == ["0", "1", "2", "3", "4", "new"]
    assert len(recorder.errors) == 1, "one outage, one report"
    assert (away.service, spout.outage) == ("rabbitmq", None)
    assert rabbitmq.waiting(queue) == 0


@pytest.mark.soak
def test_a_broker_that_does_not_answer_holds_nobody_up(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    spout, recorder = spouts(rabbitmq.url, queue)
    slowest_s = 0.0

    with socket.create_server(("127.0.0.1", 0)) as silent:
        spout._parameters.port = silent.getsockname()[1]
        cut(rabbitmq.port)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            began = time.monotonic()
            spout.next_tuple()
            slowest_s = max(slowest_s, time.monotonic() - began)
        assert spout._link is not None, "it waits for the silent one"
        spout._parameters.port = rabbitmq.port
    rabbitmq.publish(queue, [b"a"])
    receive(spout, recorder, 1)

    assert slowest_s < 1.0
    assert len(recorder.errors) == 1


CHILD = """if True:
    import sys
    from tests.spouts.test_rabbitmq import Recorder, context, receive
    from waterspout.spouts.rabbitmq import RabbitMQSpout

    spout, recorder = RabbitMQSpout(*sys.argv[1:3]), Recorder()
    spout.open({}, context(), recorder)
    ids = receive(spout, recorder, 20)
    for msg_id in ids[:7]:
        spout.ack(msg_id)
    spout.deactivate()  # waits until the broker has the acks
    print(*ids, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_did_not_ack_comes_again_under_the_same_ids(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"%d" % number for number in range(20)])
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, rabbitmq.url, queue],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        ids = child.stdout.readline().decode().split()
        child.kill()
    spout, recorder = spouts(rabbitmq.url, queue)

    receive(spout, recorder, 13)
    for msg_id in recorder.ids:
        spout.ack(msg_id)
    spout.close()

    assert recorder.bodies == [str(number) for number in range(7, 20)]
    assert recorder.ids == ids[7:]
    assert rabbitmq.waiting(queue) == 0


@pytest.mark.soak
def test_it_stays_connected_while_there_is_nothing_to_do(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    spout, recorder = spouts(f"{rabbitmq.url}?heartbeat=1", queue)

    # The broker gives up on who is silent for two of them.
    until = time.monotonic() + 4
    drive(spout, lambda: time.monotonic() > until)
    rabbitmq.publish(queue, [b"a"])
    receive(spout, recorder, 1)

    assert recorder.errors == []


@pytest.mark.soak
def test_who_was_silent_too_long_comes_back(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"a"])
    spout, recorder = spouts(f"{rabbitmq.url}?heartbeat=1", queue)
    ids = receive(spout, recorder, 1)

    await_condition(lambda: rabbitmq.waiting(queue) == 1, TIMEOUT_S)
    rabbitmq.publish(queue, [b"b"])
    receive(spout, recorder, 2)
    spout.ack(ids[0])
    spout.close()

    assert rabbitmq.bodies(queue) == [b"b"]
    assert len(recorder.errors) == 1


def test_a_queue_that_is_deleted_ends_the_run(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    spout, _ = spouts(rabbitmq.url, queue)
    with rabbitmq.channel() as channel:
        channel.queue_delete(queue)

    with pytest.raises(SourceError, match="NOT_FOUND"):
        drive(spout, lambda: False)


def test_a_queue_is_declared_if_asked_for(rabbitmq, spouts):
    spout, recorder = spouts(
        rabbitmq.url, "declared", declare=True, arguments={"x-max-length": 100}
    )
    rabbitmq.publish("declared", [b"a"])

    receive(spout, recorder, 1)

    with pytest.raises(SourceError, match="PRECONDITION_FAILED"):
        spouts(rabbitmq.url, "declared", declare=True, durable=False)


def everything_said(error, caplog):
    return "".join(traceback.format_exception(error)) + caplog.text


@pytest.mark.parametrize(
    ("address", "queue", "says"),
    [
        ("amqp://guest:{secret}@{host}/%2F", "fresh", "ACCESS_REFUSED"),
        ("amqp://guest:guest@{host}/nowhere", "fresh", "vhost nowhere not found"),
        ("amqp://guest:guest@{host}/%2F", "no-such-queue", r"NOT_FOUND.*declare=True"),
        ("amqp://guest:{secret}@{closed}/%2F", "fresh", "Connection refused"),
        ("amqp://guest:{secret}@no-such-host.invalid/%2F", "fresh", r"cannot be read"),
    ],
)
def test_what_cannot_be_opened_says_why_without_the_secret(
    rabbitmq, spouts, caplog, address, queue, says
):
    caplog.set_level(logging.DEBUG)
    hosts = {"host": f"127.0.0.1:{rabbitmq.port}", "closed": f"127.0.0.1:{free_port()}"}
    url = address.format(secret=SECRET, **hosts)
    queue = rabbitmq.fresh_queue() if queue == "fresh" else queue

    with pytest.raises(SourceError, match=says) as raised:
        spouts(url, queue)

    assert SECRET not in everything_said(raised.value, caplog)
    assert "127.0.0.1" in str(raised.value) or "no-such-host" in str(raised.value)


def test_a_url_may_come_from_the_environment(rabbitmq, spouts, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"a"])
    monkeypatch.setenv("MQ_PASSWORD", "guest")
    url = rabbitmq.url.replace(":guest@", ":${MQ_PASSWORD}@")
    spout, recorder = spouts(url, queue)
    receive(spout, recorder, 1)

    monkeypatch.setenv("MQ_PASSWORD", SECRET)
    with pytest.raises(SourceError, match="ACCESS_REFUSED") as raised:
        spouts(url, queue)
    assert SECRET not in everything_said(raised.value, caplog)

    monkeypatch.delenv("MQ_PASSWORD")
    with pytest.raises(ConfigError, match="MQ_PASSWORD"):
        spouts(url, queue)


def test_a_secret_is_not_shown():
    spout = RabbitMQSpout(f"amqp://me:{SECRET}@ss@mq:5672/orders?ssl_options=x", "q")

    assert repr(spout) == "RabbitMQSpout('amqp://mq:5672/orders', queue='q')"


@pytest.mark.parametrize("bad", [f"amqp://{SECRET}:x", f"http://me:{SECRET}@mq", SECRET, ""])
def test_a_url_that_cannot_be_read_is_not_quoted(bad, monkeypatch):
    with pytest.raises(TopologyError, match="amqp://user:password@host:port/vhost") as at_once:
        RabbitMQSpout(bad, "q")
    monkeypatch.setenv("MQ_URL", bad)
    with pytest.raises(TopologyError, match="amqp://user:password@host:port/vhost") as later:
        RabbitMQSpout("${MQ_URL}", "q").open({}, context(), Recorder())

    assert SECRET not in f"{at_once.value}{later.value}"


@pytest.mark.parametrize("option", ["heartbeat=soon", "ssl_options={", "nothing=1"])
def test_an_option_of_the_url_that_cannot_be_read_is_refused(option):
    spout = RabbitMQSpout(f"amqp://me:{SECRET}@mq/?{option}", "q")

    with pytest.raises(TopologyError, match="query") as raised:
        spout.open({}, context(), Recorder())

    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue": ""}, "queue has a name"),
        ({"queue": "q" * 256}, "queue has a name"),
        ({"prefetch": 0}, "prefetch"),
        ({"prefetch": 65_536}, "prefetch"),
        ({"prefetch": True}, "prefetch"),
        ({"decode": "utf-8"}, "decode is a function"),
        ({"on_bad_message": "drop"}, "'reject' or 'raise'"),
        ({"arguments": {"x-max-length": 1}}, "declare=True"),
        ({"fields": ("a", "a")}, "a"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options, says):
    with pytest.raises(TopologyError, match=says):
        RabbitMQSpout(**{"url": "amqp://mq", "queue": "q", **options})


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pika", None)

    with pytest.raises(MissingDependencyError, match=r"waterspout\[rabbitmq\]"):
        RabbitMQSpout("amqp://mq", "q")


@pytest.mark.parametrize("copied", [lambda s: pickle.loads(pickle.dumps(s)), copy.deepcopy])
def test_a_copy_is_a_spout_of_its_own(rabbitmq, copied):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"a"])
    spout, recorder = copied(RabbitMQSpout(rabbitmq.url, queue)), Recorder()

    with contextlib.closing(spout):
        spout.open({}, context(), recorder)
        receive(spout, recorder, 1)

    assert recorder.bodies == ["a"]


def test_a_copy_of_an_open_spout_has_neither_its_connection_nor_its_secret(
    rabbitmq, spouts, monkeypatch
):
    monkeypatch.setenv("MQ_USER", "guest")
    url = rabbitmq.url.replace("guest:guest", "${MQ_USER}:${MQ_USER}")
    spout, _ = spouts(url, rabbitmq.fresh_queue())

    pickled = pickle.dumps(spout)

    assert b"guest" not in pickled
    assert repr(pickle.loads(pickled)) == repr(spout)


def test_a_task_that_restarts_opens_again(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"a"])
    spout, recorder = spouts(rabbitmq.url, queue)
    receive(spout, recorder, 1)

    spout.open({}, context(), recorder)
    receive(spout, recorder, 2)

    assert recorder.ids[0] == recorder.ids[1]


@pytest.mark.soak
def test_fifty_thousand_messages_are_emitted_and_acked_once_each(rabbitmq, spouts):
    queue = rabbitmq.fresh_queue()
    with rabbitmq.channel() as channel:
        for number in range(50_000):
            # Not confirmed one by one: no broker dies in this test.
            channel._impl.basic_publish("", queue, b"%d" % number)
    spout, recorder = spouts(rabbitmq.url, queue)
    acked = 0

    def all_acked():
        nonlocal acked
        for msg_id in recorder.ids[acked:]:
            spout.ack(msg_id)
            acked += 1
        return acked >= 50_000

    deadline = time.monotonic() + 60
    while not all_acked():
        assert time.monotonic() < deadline
        spout.next_tuple()
    spout.close()

    assert recorder.bodies == [str(number) for number in range(50_000)]
    assert rabbitmq.waiting(queue) == 0


def test_a_queue_is_drained_when_it_is_quiet_and_nothing_is_about_to_come_back(
    rabbitmq, spouts, monkeypatch
):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"a"])
    spout, recorder = spouts(rabbitmq.url, queue)
    assert not spout.is_drained(), "nothing was asked yet"

    (msg_id,) = receive(spout, recorder, 1)
    monkeypatch.setattr("waterspout.spouts.rabbitmq._QUIET_S", 0.0)
    spout.fail(msg_id)
    assert not spout.is_drained(), "it is on its way back"
    (again,) = receive(spout, recorder, 2)[1:]
    assert (again, spout._deliveries.returning) == (msg_id, 0)
    spout.ack(again)
    assert not spout.is_drained(), "the broker does not know of the ack"
    spout.next_tuple()
    assert spout.is_drained()


def test_a_message_that_another_consumer_got_is_not_waited_for_for_ever(
    rabbitmq, spouts, monkeypatch
):
    queue = rabbitmq.fresh_queue()
    rabbitmq.publish(queue, [b"a"])
    spout, recorder = spouts(rabbitmq.url, queue)
    (msg_id,) = receive(spout, recorder, 1)
    monkeypatch.setattr("waterspout.spouts.rabbitmq._QUIET_S", 0.0)
    monkeypatch.setattr("waterspout.spouts.rabbitmq._COMES_BACK_S", 0.0)

    spout.fail(msg_id)
    spout._send()

    assert spout._deliveries.returning == 1
    assert spout.is_drained()
