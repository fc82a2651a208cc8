"""The mutants of `tests/mutants.py`: a rule of the library, how it is broken, who must notice."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MUTANTS", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """One replacement in one file of `src/waterspout`, and the tests that must then fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


COORDINATOR = "transactional/_coordinator.py"
LEDGER = "transactional/_ledger.py"
HEAD = "state/_head.py"
PROTOCOL = "coordination/commit_protocol.py"
FOREACH_BATCH = "state/_foreach_batch.py"
LEASE = "coordination/lease.py"
FILES = "spouts/files.py"
VERDICTS = "trident/plan/verdicts.py"

MUTANTS = (
    Mutant(
        "coordinator: an attempt id is used again",
        COORDINATOR,
        "self._attempts.get(txid, -1) + 1)",
        "max(0, self._attempts.get(txid, 0)))",
        ("tests/transactional/test_coordinator.py", "tests/semantics/test_simulation.py"),
    ),
    Mutant(
        "coordinator: later batches survive a failure",
        COORDINATOR,
        "if t >= txid)",
        "if t == txid)",
        ("tests/transactional/test_coordinator.py",),
    ),
    Mutant(
        "coordinator: one crash too many is forgiven",
        COORDINATOR,
        "self._crashes > self._policy.max_retries",
        "self._crashes > self._policy.max_retries + 1",
        ("tests/transactional/test_coordinator.py",),
    ),
    Mutant(
        "coordinator: a lost batch is not emitted again when its source is dry",
        COORDINATOR,
        "if txid not in self._attempts and not ready(txid):",
        "if not ready(txid):",
        ("tests/transactional/test_coordinator.py", "tests/semantics/test_simulation.py"),
    ),
    Mutant(
        "tries: Spark's second try of a task hides a failure on purpose",
        "spark/tries.py",
        "                if reason is not None:",
        "                if reason is None:",
        ("tests/spark/test_tries.py",),
    ),
    Mutant(
        "tries: a second try elsewhere hides a failure on purpose",
        "spark/tries.py",
        "        if not known:",
        "        if False:",
        ("tests/spark/test_tries.py",),
    ),
    Mutant(
        "tries: tasks that write do not ask how the first try ended",
        "spark/tasks.py",
        "        self.setting.enter()\n        with one_try():",
        "        self.setting.enter()\n        if True:",
        ("tests/spark/test_worker_faults.py",),
    ),
    Mutant(
        "waves: Spark's second try of a task hides a crash that must end the run",
        "waves/over_waves.py",
        "    gives_up_on = BoltCrash\n",
        "",
        ("tests/spark/test_core.py",),
    ),
    Mutant(
        "ledger: two begun attempts are not resolved",
        LEDGER,
        "if keep_resolved and len(self.begun) > 1:",
        "if keep_resolved and len(self.begun) > 2:",
        ("tests/transactional/test_ledger.py", "tests/semantics/test_simulation.py"),
    ),
    Mutant(
        "protocol: the head is settled before the mark",
        PROTOCOL,
        "        self.mark(claim.attempt)\n        self.settle()\n",
        "        self.settle()\n        self.mark(claim.attempt)\n",
        ("tests/coordination/test_commit_protocol.py",),
    ),
    Mutant(
        "protocol: nothing is recorded before the claim",
        PROTOCOL,
        "        self._save(self.ledger.begin(attempt))\n        ledger = self.ledger\n",
        "        self.ledger = ledger = self.ledger.begin(attempt)\n",
        ("tests/coordination/test_commit_protocol.py", "tests/semantics/test_simulation.py"),
    ),
    Mutant(
        "head: a driver of an older epoch may claim",
        HEAD,
        "if stamp.writer.epoch < head.stamp.writer.epoch:",
        "if False:",
        ("tests/state/test_head.py",),
    ),
    Mutant(
        "head: an earlier attempt may claim again",
        HEAD,
        "if stamp.attempt < lowest:",
        "if stamp.attempt < lowest - 1:",
        ("tests/state/test_head.py",),
    ),
    Mutant(
        "head: a write after the settling is let through",
        HEAD,
        "if head is None or head.stamp != stamp or head.committed:",
        "if head is None or head.stamp != stamp:",
        ("tests/state/test_head.py", "tests/contracts/test_backing_map.py"),
    ),
    Mutant(
        "head: readers see the batch that is being committed",
        HEAD,
        "return self.committed and attempt == self.stamp.attempt",
        "return attempt == self.stamp.attempt",
        ("tests/state/test_head.py", "tests/state/test_opaque.py"),
    ),
    Mutant(
        "head: two states of a driver may be kept in one table",
        HEAD,
        "        if head.stamp.writer == stamp.writer:\n"
        "            refuse_other_name(head, name, state)\n",
        "",
        ("tests/semantics/test_one_table.py",),
    ),
    Mutant(
        "head: a state of another name is not refused before the run",
        HEAD,
        "        )\n    refuse_other_name(head, name, state)\n",
        "        )\n",
        ("tests/semantics/test_one_table.py",),
    ),
    Mutant(
        "protocol: states are claimed one by one, though a later one refuses",
        PROTOCOL,
        "name: state.prepare_claim(claim) for",
        "name: (lambda state=state: state.claim(claim)) for",
        ("tests/coordination/test_commit_protocol.py",),
    ),
    Mutant(
        "sink: a state is written before the others are claimed",
        "spark/sink.py",
        "finish = [start() for start in due]",
        "finish = [lambda frame, start=start: start()(frame) for start in due]",
        ("tests/spark/test_sinks.py",),
    ),
    Mutant(
        "head: another home's history passes",
        HEAD,
        "or head.stamp.writer.history != stamp.writer.history",
        "or False",
        ("tests/state/test_head.py", "tests/semantics/test_homes.py"),
    ),
    Mutant(
        "fence of SQLite: nobody looks at the head",
        "state/sqlite/_state.py",
        "check_stamp(head, rows.stamp, state=self._name)",
        "pass",
        ("tests/contracts/test_backing_map.py", "tests/state/test_sqlite_commit.py"),
    ),
    Mutant(
        "fence of SQLite: a crash of the machine may lose a commit",
        "state/sqlite/_state.py",
        "PRAGMA synchronous=FULL",
        "PRAGMA synchronous=NORMAL",
        ("tests/state/test_sqlite.py", "tests/state/test_sqlite_faults.py"),
    ),
    Mutant(
        "fence of PostgreSQL: the head may move during a write",
        "state/postgres/_map.py",
        "check_stamp(found, stamp, state=self._name)",
        "pass",
        ("tests/contracts/test_postgres.py", "tests/state/test_postgres.py"),
    ),
    Mutant(
        "fence of Redis: the script lets any attempt write",
        "state/redis/_scripts.py",
        "or (ARGV[2] ~= '' and header[2] ~= ARGV[2])",
        "",
        ("tests/contracts/test_redis.py", "tests/state/test_redis.py"),
    ),
    Mutant(
        "slots of Redis: nobody looks where the others are before the master is moved",
        "state/redis/_state.py",
        "        if found[0].head == expected:\n            self._refuse_unfit(found, new)\n",
        "",
        ("tests/state/test_redis_slots.py",),
    ),
    Mutant(
        "slots of Redis: a claim does not note what was before it",
        "state/redis/_state.py",
        "fields += [BEFORE, text]",
        "pass",
        ("tests/state/test_redis_slots.py",),
    ),
    Mutant(
        "slots of Redis: one from the middle of a batch passes for a settled one",
        "state/redis/_header.py",
        "return same and (self.head.committed or not other.committed)",
        "return same",
        ("tests/state/test_redis_slots.py",),
    ),
    Mutant(
        "slots of Redis: the epoch of a sink bars the topology that adopts it",
        "state/redis/_header.py",
        "if self.head is not None and not self._is_of(at.writer, new.stamp.writer):",
        "if self.head is not None and self.head.stamp.writer.epoch > new.stamp.writer.epoch:",
        ("tests/state/test_redis_slots.py",),
    ),
    Mutant(
        "fence of files: nobody looks at the head",
        "state/files/_state.py",
        "check_stamp(head, stamp, state=self._title)",
        "pass",
        ("tests/contracts/test_file_state.py",),
    ),
    Mutant(
        "fence of comparing stores: a lost comparison counts as written",
        "state/_base.py",
        "if repr(record) != repr(value):",
        "if False:",
        ("tests/contracts/test_backing_map.py", "tests/contracts/test_memcached.py"),
    ),
    Mutant(
        "fence of Memcached: the token is not compared",
        "state/memcached/_state.py",
        'Command("cas", slot.name, slot.before + data, seen.token, expire)',
        'Command("set", slot.name, slot.before + data, None, expire)',
        ("tests/contracts/test_memcached.py", "tests/state/test_memcached.py"),
    ),
    Mutant(
        "fence of Cassandra (single writer): nobody looks at the head",
        "state/cassandra/_state.py",
        "check_stamp(self.read_head(), stamp, state=self.title)",
        "pass",
        ("tests/contracts/test_cassandra.py", "tests/state/test_cassandra.py"),
    ),
    Mutant(
        "opaque: a replay starts from the lost attempt's value",
        "state/_kinds.py",
        "        if txid == self.txid:\n            return self.prev\n",
        "        if txid == self.txid:\n            return self.value\n",
        ("tests/state/test_opaque.py",),
    ),
    Mutant(
        "lease: a holder of another boot under our host name is taken for dead",
        LEASE,
        "        here = this_process()\n",
        "        here = this_process()\n"
        "        if self.host == here.host and self.boot != here.boot:\n            return False\n",
        ("tests/coordination/test_lease.py",),
    ),
    Mutant(
        "lease: a holder with the pid of another process counts as alive",
        LEASE,
        "return self.started == _start_time(self.pid)",
        "return _start_time(self.pid) is not None",
        ("tests/coordination/test_lease.py",),
    ),
    Mutant(
        "lease: a holder on another machine is taken over at once",
        LEASE,
        "return boot in self.watched and now >= self.watched[boot] + self.duration_s",
        "return True",
        ("tests/coordination/test_lease.py", "tests/coordination/test_embedded.py"),
    ),
    Mutant(
        "XOR ledger: a report about an unknown root hits another tree",
        "acking/tracker.py",
        "self._values[positions] ^= values[known]",
        "self._values[positions] ^= values[: len(positions)]",
        ("tests/acking",),
    ),
    Mutant(
        "XOR ledger: a reset tree keeps its age",
        "acking/tracker.py",
        "self._ages[positions] = 0",
        "pass",
        ("tests/acking",),
    ),
    Mutant(
        "XOR: a root that is reported twice counts once",
        "acking/xor.py",
        "np.bitwise_xor.reduceat(all_values, starts)",
        "all_values[starts]",
        ("tests/acking",),
    ),
    Mutant(
        "sink: a batch that is there is counted again",
        FOREACH_BATCH,
        "        if head.committed:\n            return None\n",
        "",
        ("tests/state/test_foreach_batch.py",),
    ),
    Mutant(
        "sink: it remembers the query of its first batch",
        "sinks/_exactly_once.py",
        "if run is None or run.query != query:",
        "if run is None:",
        (
            "tests/spark/test_sinks.py::test_one_sink_given_to_two_queries_serves_the_first_and_refuses_the_second",
        ),
    ),
    Mutant(
        "sink: another first batch than the state's is let through",
        FOREACH_BATCH,
        "if who.starts_at not in (None, noted):",
        "if False:",
        ("tests/state/test_foreach_batch.py",),
    ),
    Mutant(
        "sink: batch 0 of an unknown query is taken for the one that is there",
        FOREACH_BATCH,
        "    if batch_id > 0:\n        return\n",
        "    if batch_id >= 0:\n        return\n",
        ("tests/state/test_foreach_batch.py",),
    ),
    Mutant(
        "sink: the second attempt at a batch is not remembered",
        FOREACH_BATCH,
        "if head.stamp.attempt == 0:",
        "if head.stamp.attempt <= 1:",
        ("tests/state/test_foreach_batch.py", "tests/sinks"),
    ),
    Mutant(
        "cache: records of a lost attempt stay",
        "state/_cache.py",
        "return new.committed or new.stamp == expected.stamp or "
        "new.stamp.txid > expected.stamp.txid",
        "return True",
        ("tests/state/test_cache.py", "tests/contracts/test_backing_map.py"),
    ),
    Mutant(
        "cache: keys whose write failed stay",
        "state/_cache.py",
        "        except BaseException:\n            self._cache.drop(names)\n            raise\n",
        "        except BaseException:\n            raise\n",
        ("tests/state/test_cache.py", "tests/contracts/test_backing_map.py"),
    ),
    Mutant(
        "letters: a replayed letter stays",
        "trident/isolation/store.py",
        "        state.remove(gone)\n",
        "",
        ("tests/trident/test_isolation.py", "tests/semantics/test_letters.py"),
    ),
    Mutant(
        "letters: bad rows are one more than max_bad_ratio allows",
        "trident/isolation/store.py",
        "if bad > self._max_bad_ratio * seen[node]:",
        "if bad > self._max_bad_ratio * seen[node] + 1:",
        ("tests/trident/test_isolation.py", "tests/trident/test_isolation_store.py"),
    ),
    Mutant(
        "windows: a window that ends now is not due",
        "trident/windowing/config.py",
        "while end <= now and",
        "while end < now and",
        ("tests/trident/test_windows_rules.py", "tests/trident/test_windows.py"),
    ),
    Mutant(
        "windows: tuples of the next window are dropped",
        "trident/windowing/config.py",
        "return self._next_end(now) - self.span",
        "return self._next_end(now) - self.span + 1",
        ("tests/trident/test_windows_rules.py", "tests/trident/test_windows.py"),
    ),
    Mutant(
        "emitters: a range without tuples is the end of the source",
        "transactional/_spouts.py",
        "(not taken.count and _is_same(metadata, last))",
        "not taken.count",
        ("tests/transactional/test_emitters.py",),
    ),
    Mutant(
        "emitters: a batch spout never goes on behind a batch without tuples",
        "spouts/_emitting.py",
        "bool(collector.rows) or is_batch is True",
        "bool(collector.rows)",
        ("tests/spouts/test_emitting.py",),
    ),
    Mutant(
        "emitters: what an attempt has taken is asked for again",
        "transactional/_runtime.py",
        "if taken is not None:",
        "if taken is None:",
        ("tests/transactional/test_emitters.py", "tests/spouts/test_emission.py"),
    ),
    Mutant(
        "emitters: a lost attempt's tuples go into the next one",
        "spouts/_emitters.py",
        "if names == {name}:",
        "if names:",
        ("tests/transactional/test_emitters.py",),
    ),
    Mutant(
        "positions: a log hears of them before they are stored",
        "coordination/spout_tasks.py",
        '            store.save(self._ledger)\n            faults.point("positions.after")\n'
        "            for each in logs:\n",
        '            faults.point("positions.after")\n'
        "            for each in [*logs, None]:\n"
        "                if each is None:\n"
        "                    store.save(self._ledger)\n"
        "                    continue\n",
        ("tests/coordination/test_log_tasks.py", "tests/spouts/test_positions.py"),
    ),
    Mutant(
        "verdicts: a replay may ask a transactional state of its own topology",
        VERDICTS,
        "if update is None or spec.factory.kind is not StateKind.TRANSACTIONAL:",
        "if True:",
        ("tests/trident/test_explain.py", "tests/semantics/test_asking.py"),
    ),
    Mutant(
        "verdicts: what an updater emits of a transactional state is exact",
        VERDICTS,
        "            if _is_transactional(plan, update):\n",
        "            if False:\n",
        ("tests/trident/test_explain.py", "tests/semantics/test_asking.py"),
    ),
    Mutant(
        "verdicts: a static state never changes",
        VERDICTS,
        "if isinstance(node, Query) and plan.states[node.state].static:",
        "if False:",
        ("tests/trident/test_explain.py", "tests/semantics/test_asking.py"),
    ),
    Mutant(
        "files: a list that is not the one of the ledger is used",
        FILES,
        "        if wanted is not None and found != wanted:\n",
        "        if False:\n",
        ("tests/spouts/test_read_files.py",),
    ),
    Mutant(
        "files: the oldest files are taken for the list unseen",
        FILES,
        "        if Tally().plus(oldest) != wanted:\n",
        "        if False:\n",
        ("tests/spouts/test_read_files.py",),
    ),
    Mutant(
        "files: a list that changes under the run is used",
        FILES,
        "if listed.changed_outside() and",
        "if False and",
        ("tests/spouts/test_read_files.py",),
    ),
    Mutant(
        "files: a plan that was not stored is lost",
        FILES,
        "        if txid not in self._planned:\n",
        "        if True:\n",
        ("tests/spouts/test_read_files.py",),
    ),
    Mutant(
        "files: nobody looks whether a file has changed while it was read",
        "coordination/loop.py",
        "                planner.confirm(metadata[spout_id])\n",
        "                pass\n",
        ("tests/spouts/test_files.py",),
    ),
    Mutant(
        "files: a list in memory ends with its run",
        "coordination/store.py",
        "        return self._shared.kept\n",
        "        return {}\n",
        ("tests/spouts/test_read_files.py",),
    ),
    Mutant(
        "kit: a run in process keeps no list of files",
        "coordination/embedded.py",
        "    def folder(self) -> Path:\n        return self._folder\n",
        "    def folder(self) -> Path | None:  # type: ignore[override]\n        return None\n",
        ("tests/testing/test_engine.py",),
    ),
    Mutant(
        "kit: a run in process is not checked before it starts",
        "testing/_local.py",
        "        check_plan(self.plan, conf)\n",
        "",
        ("tests/testing/test_engine.py",),
    ),
    Mutant(
        "security: a password behind a / is taken for the path of its URL",
        "_addresses.py",
        'return None if ":" in place and "@" in rest else',
        "return",
        ("tests/test_addresses.py",),
    ),
    Mutant(
        "security: what a client says is chained, whatever it says",
        "_addresses.py",
        "            if any(self._without(text) != text for text in (str(one), repr(one))):",
        "            if False:",
        ("tests/test_addresses.py",),
    ),
    Mutant(
        "keys of a map: rows of an updater are dealt by all fields",
        "testing/_engine.py",
        "    keys = node.keys\n",
        "    keys = None if hasattr(node.updating, 'by_partition') else node.keys\n",
        ("tests/trident/test_updater_keys.py",),
    ),
    Mutant(
        "keys of a map: on Spark rows of an updater are dealt by all fields",
        "spark/compiler.py",
        "if node.keys is not None:",
        "if not isinstance(updating, UpdateWith):",
        ("tests/spark/operations/test_partition_persist.py",),
    ),
    Mutant(
        "keys of a map: an updater without keys may have many partitions",
        "trident/plan/partitions.py",
        "if kind is None or not isinstance(updating, UpdateWith):",
        "if True:",
        ("tests/trident/test_updater_keys.py",),
    ),
    Mutant(
        "keys of a map: an updater touches keys of others",
        "state/_batched.py",
        "if encode_key(beginning) not in self.keys:",
        "if False:",
        ("tests/trident/test_updater_keys.py",),
    ),
    Mutant(
        "states: a value beyond its type is stored",
        "state/_batched.py",
        "self._refuse_misfits((entry.key, entry.value) for entry in changed)",
        "pass",
        ("tests/contracts/test_backing_map.py",),
    ),
    Mutant(
        "states: a key of another type is looked for",
        "state/_batched.py",
        "            self._types.check_keys(keys)",
        "            pass",
        ("tests/contracts/test_backing_map.py",),
    ),
    Mutant(
        "states: a timestamp without a zone is a key of its own",
        "state/_columns.py",
        "    if value.utcoffset() is None:\n        raise ValueError(",
        "    if value.utcoffset() is None and False:\n        raise ValueError(",
        ("tests/contracts/test_backing_map.py",),
    ),
    Mutant(
        "memory: a state forgets its types",
        "state/_memory.py",
        "return replace(self, types=Layout(keys, values))",
        "return self",
        ("tests/contracts/test_backing_map.py",),
    ),
    Mutant(
        "sums: decimals are rounded to 28 digits",
        "trident/operations/aggregators.py",
        "return _EXACT.add(left, right)",
        "return left + right",
        ("tests/contracts/test_backing_map.py", "tests/trident/test_operations_builtins.py"),
    ),
    Mutant(
        "sums: the JVM wraps around",
        "spark/native.py",
        "return F.when(none, F.lit(0)).when(total.isNull(), refusal).otherwise(total)",
        "return F.coalesce(F.sum(field), F.lit(0))",
        ("tests/spark/operations/test_aggregate.py",),
    ),
    Mutant(
        "sqlite: a removed row stays",
        "state/sqlite/_state.py",
        "            if goes_on(expected, new):",
        "            if False:",
        ("tests/contracts/test_backing_map.py", "tests/state/test_sqlite_commit.py"),
    ),
    Mutant(
        "memory: what a lost attempt removed is gone",
        "state/_memory.py",
        "if _is_empty(record) and head.holds(txid, attempt):",
        "if _is_empty(record):",
        ("tests/contracts/test_backing_map.py",),
    ),
)
