"""Options of Storm's that have no meaning here, each with the reason.

A configuration that has served a cluster of Storm's names many of them. They change nothing here,
so they are accepted, with a word; a key that nobody knows is refused, since it is most likely a
wrong spelling of one that counts.
"""

from __future__ import annotations

__all__ = ["meaningless"]

_WORKERS = "Spark's executors take the place of workers; they are set for Spark"
_QUEUES = "there are no queues between tasks; the size of a wave follows from wave_secs"
_COPIES = "tuples travel as Arrow and pickle"
_LOOKS = "counts are exact, and told by Run.last_progress and Run.subscribe"
_STATES = "states are given to topologies, and kept at each batch or wave"
_SHELLS = "components are Python: there is no subprocess"
_WHO = "whoever may use Spark and the stores may use a topology"
_CLUSTER = "it is a setting of Storm's cluster, and there is none"
_ZOOKEEPER = "name the ZooKeeper as transactional.zookeeper.servers, .port and .root"

# By what stands behind "topology.".
_TOPOLOGY = {
    _WORKERS: """workers tasks max.task.parallelism worker.childopts worker.gc.childopts
        worker.logwriter.childopts worker.max.heap.size.mb worker.shared.thread.pool.size
        worker.receiver.thread.count worker.timeout.secs worker.nimbus.reassignment.timeout.secs
        component.resources.onheap.memory.mb component.resources.offheap.memory.mb
        component.cpu.pcore.percent acker.resources.onheap.memory.mb
        acker.resources.offheap.memory.mb acker.cpu.pcore.percent priority scheduler.strategy
        scheduler.favored.nodes scheduler.unfavored.nodes isolate.machines classpath
        classpath.beginning environment ras.acker.executors.per.worker
        ras.one.executor.per.worker ras.one.component.per.worker""",
    _QUEUES: """executor.receive.buffer.size executor.send.buffer.size transfer.buffer.size
        receiver.buffer.size executor.overflow.limit disruptor.wait.strategy
        disruptor.wait.timeout.millis disruptor.batch.size disruptor.batch.timeout.millis
        backpressure.enable backpressure.check.millis backpressure.wait.strategy
        producer.batch.size transfer.batch.size batch.flush.interval.millis flush.tuple.freq.millis
        spout.wait.strategy sleep.spout.wait.strategy.time.ms bolt.wait.strategy
        spout.recvq.skips optimize load.aware.messaging disable.loadaware.messaging""",
    _COPIES: """kryo.register kryo.decorators kryo.factory skip.missing.kryo.registrations
        fall.back.on.java.serialization tuple.serializer testing.always.try.serialize""",
    _LOOKS: """debug stats.sample.rate stats.ewma.enable builtin.metrics.bucket.size.secs
        metrics.consumer.register metrics.aggregate.per.worker metrics.aggregate.metric.evict.secs
        metrics.reporters v2.metrics.tick.interval.seconds enable.v2.metrics.tick
        eventlogger.executors event.logger.register error.throttle.interval.secs
        max.error.report.per.interval logging.sensitivity worker.metrics""",
    _STATES: """state.provider state.provider.config state.checkpoint.interval.ms
        state.synchronization.timeout.secs transactional.id
        trident.windowing.inmemory.cache.limit""",
    _SHELLS: """multilang.serializer shellbolt.max.pending subprocess.timeout.secs
        shell.command.timeout.secs""",
    _WHO: """submitter.user submitter.principal users groups readonly.users readonly.groups
        auto-credentials auto.credentials acl""",
    "a topology's name is given where it is made": "name",
    "hooks are subscribed to a run: Run.subscribe": "auto.task.hooks",
}
_REASONS = {f"topology.{key}": why for why, keys in _TOPOLOGY.items() for key in keys.split()}

_DAEMONS = """storm. nimbus. supervisor. worker. executor. task. ui. logviewer. pacemaker.
    drpc.servers drpc.port drpc.http drpc.worker. drpc.max drpc.invocations. drpc.childopts
    drpc.authorizer. drpc.disable. zmq. blacklist.scheduler. resource.aware.scheduler.
    multitenant.scheduler. isolation.scheduler. scheduler. client. java. dev.zookeeper.
    num.stat.buckets"""
# None of our own options begins with these.
_FAMILIES = {
    "storm.zookeeper.": _ZOOKEEPER,
    **dict.fromkeys(_DAEMONS.split(), _CLUSTER),
}


def meaningless(key: str) -> str | None:
    """Return why an option of Storm's has no meaning here; None if it is none of those.

    >>> meaningless("storm.local.dir"), meaningless("topology.wokers")
    ("it is a setting of Storm's cluster, and there is none", None)
    """
    if key in _REASONS:
        return _REASONS[key]
    return next((why for begin, why in _FAMILIES.items() if key.startswith(begin)), None)
