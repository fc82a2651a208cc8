"""Every error that waterspout raises, in one tree.

    WaterspoutError
    ├── BuildError                 refused before anything ran
    │   ├── ConfigError              an option is unknown or has a bad value
    │   ├── TopologyError            the topology does not fit together
    │   ├── NotPicklableError        a component cannot travel to the executors
    │   └── MissingDependencyError   an optional package is not installed
    ├── BatchError                 raised while a batch runs
    │   ├── FailedException          user code asks for the batch to be replayed
    │   ├── BatchTimeoutError        a phase of a batch took longer than it may
    │   ├── StaleBatchError          a batch met a record newer than itself
    │   ├── FencedError              a write of an attempt that no longer may write
    │   ├── SerdeError               a key or value has no safe encoding
    │   │   └── NumberTooLargeError    a sum has outgrown the type of its field
    │   ├── EmitError                a tuple that does not fit its stream
    │   ├── AckError                 an ack or fail of a tuple that is not open
    │   ├── StateUseError            a bolt uses its state as it may not
    │   ├── MalformedRowError        a record of a source that is not what its schema says
    │   ├── DeadLettersFullError     no room for a message that cannot be processed
    │   └── TooManyBadRowsError      a batch has more bad rows than max_bad_ratio allows
    ├── UserCodeError              code that was given to the library failed; the text says where
    │   ├── SpoutCrash               a method of a spout raised
    │   ├── BoltCrash                a bolt raised, and the policy is to end the run
    │   └── ResultError              a function returned too much, too little, or another type
    └── OutsideError               the world around is not as it must be
        ├── JavaError                no usable Java
        ├── SourceError              a spout cannot read what it is told to
        │   └── DataLossError            what it is told to read is gone, or no longer what it was
        ├── StoreError               a store cannot be used
        │   ├── OutageError            it, or a source, cannot be reached for now
        │   ├── DamagedStoreError      its content does not match its checksum
        │   ├── ForeignStoreError      it belongs to something else
        │   └── NewerFormatError       a newer waterspout wrote it
        ├── StateMismatchError       state and coordination store disagree
        ├── WorkerLostError          a process of Spark died under its work
        ├── CommandError             a run did not obey a command from another terminal
        ├── DRPCExecutionException   a call of a function has no result; its kind says why
        ├── LeaseHeldError           another driver runs this topology
        └── LeaseLostError           another driver took this topology over

`RunFailedError` is what `Run` raises when a run stopped by itself; its cause is one of
the above, or an exception of user code that reached the driver as it is.
"""

from __future__ import annotations

__all__ = [
    "AckError",
    "BatchError",
    "BatchTimeoutError",
    "BoltCrash",
    "BuildError",
    "CommandError",
    "ConfigError",
    "DRPCExecutionException",
    "DamagedStoreError",
    "DataLossError",
    "DeadLettersFullError",
    "EmitError",
    "FailedException",
    "FencedError",
    "ForeignStoreError",
    "JavaError",
    "LeaseHeldError",
    "LeaseLostError",
    "MalformedRowError",
    "MissingDependencyError",
    "NewerFormatError",
    "NotPicklableError",
    "NumberTooLargeError",
    "OutageError",
    "OutsideError",
    "ResultError",
    "RunFailedError",
    "SerdeError",
    "SourceError",
    "SpoutCrash",
    "StaleBatchError",
    "StateMismatchError",
    "StateUseError",
    "StoreError",
    "TooManyBadRowsError",
    "TopologyError",
    "UserCodeError",
    "WaterspoutError",
    "WorkerLostError",
]


class WaterspoutError(Exception):
    """The root of all errors of this library.

    What to do: catch it where every error of the library is to be handled alike.
    """


class BuildError(WaterspoutError):
    """Raised when a description is refused before anything ran.

    What to do: mend the description; nothing was run or written.
    """


class ConfigError(BuildError, ValueError):
    """Raised when a configuration key is unknown or its value is out of range.

    What to do: correct the option that the text names; docs/configuration.md lists them all.
    """


class TopologyError(BuildError, ValueError):
    """Raised when a topology does not fit together.

    What to do: correct what the text names; `waterspout check FILE` looks again and runs
    nothing.
    """


class NotPicklableError(BuildError, TypeError):
    """Raised when a component cannot be sent to the executors.

    What to do: open connections, locks and files in `prepare()`, and name those of a bolt in
    `transient`.
    """

    def __init__(self, component: str, attribute: str | None, reason: str) -> None:
        where = f"{component}, attribute {attribute!r}" if attribute else component
        super().__init__(
            f"{where} cannot be pickled, so it cannot be sent to the executors: {reason}. "
            "Open connections, locks and files in prepare() instead of the constructor."
        )
        self.component = component
        self.attribute = attribute


class MissingDependencyError(BuildError, ImportError):
    """Raised when a feature needs a package that is not installed.

    What to do: run the `pip install` line of the text, for the driver and for the executors.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; run: pip install 'waterspout[{extra}]'")
        self.package = package
        self.extra = extra


class BatchError(WaterspoutError):
    """Raised while a batch is processed or committed.

    What to do: see the class of the error; nothing of the batch counts until it commits.
    """


class FailedException(BatchError):
    """Raise this in user code to have the batch (or the tuple) failed and replayed.

    What to do: raise it for what will go right another time; what never does is replayed for
    ever.
    """


class BatchTimeoutError(BatchError):
    """Raised when a phase of a batch takes longer than `batch_timeout_secs`.

    What to do: make batches smaller, or raise `batch_timeout_secs`.
    """


class StaleBatchError(BatchError):
    """Raised when a batch meets a record that a later batch has written.

    What to do: use the coordination store that belongs to the state, or another table.
    """

    def __init__(self, txid: int, stored: int, key: object = None) -> None:
        where = "" if key is None else f" at key {key!r}"
        super().__init__(
            f"batch {txid} is behind the state{where}, which holds batch {stored}. "
            "The state belongs to a run that is further on: use that run's coordination "
            "store, or another table."
        )
        self.txid = txid
        self.stored = stored
        self.key = key

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.txid, self.stored, self.key))


class FencedError(BatchError):
    """Raised when a write comes from an attempt that no longer owns the state.

    What to do: look for a second driver (`waterspout list`); an attempt that was given up needs
    nothing.
    """


class SerdeError(BatchError, ValueError):
    """Raised when a key or a value cannot be encoded or decoded safely.

    What to do: make the key or value of types that a field can have (docs/operations.md#types).
    """


class NumberTooLargeError(SerdeError):
    """Raised when a number, most often a sum, does not fit the type of its field.

    What to do: make the field a wider one, such as decimal(38,0), before it is added up.
    """

    @classmethod
    def of(cls, where: str, value: object, limits: str) -> NumberTooLargeError:
        """Return the error of a value that is beyond the limits of its type."""
        return cls(
            f"{where} cannot hold {value}: {limits}. A sum that may grow beyond its type needs a "
            "wider one: make the field a decimal(38,0), say, before it is added up."
        )


class EmitError(BatchError, ValueError, TypeError):
    """Raised in a component that emits what its streams do not allow.

    What to do: emit on a stream that is declared, with as many values as it has fields.
    """


class AckError(BatchError, ValueError):
    """Raised in a bolt that acks or fails a tuple twice, or one that is not its own.

    What to do: ack or fail a tuple once, in the task that got it.
    """


class StateUseError(BatchError, ValueError):
    """Raised in a bolt that reads or changes a state as it may not.

    What to do: read an opaque state in the commit phase, and only keys of the task's own.
    """


class MalformedRowError(BatchError):
    """Raised when a record of a source is not what its schema says, or is too long.

    What to do: leave the file as it is; run again with `on_error="dead_letter"` or `"null"`.
    """


class DeadLettersFullError(BatchError):
    """Raised when a message must be put aside and the dead letters are full.

    What to do: replay or drop letters, or raise `dead_letters_max`; then run the same command.
    """


class TooManyBadRowsError(BatchError):
    """Raised when more rows of a batch are bad than `max_bad_ratio` allows.

    What to do: mend the operation or the source, or raise `max_bad_ratio`.
    """


class UserCodeError(WaterspoutError):
    """Raised when code of the user's failed; `trace` has the frames of one on an executor.

    `operation` is what `explain()` calls the operation that it failed in, where that is known.

    What to do: mend the line of your code that the text names, and run the same command again.
    """

    trace: str = ""
    operation: str | None = None


class SpoutCrash(UserCodeError):
    """Raised when a method of a spout has raised; its cause is what it raised.

    What to do: mend the spout; let it raise `OutageError` where its source is only away.
    """

    def __init__(self, component: str, task: int, method: str, error: str) -> None:
        super().__init__(f"spout {component!r} (task {task}) raised in {method}: {error}")
        self.method = method


class BoltCrash(UserCodeError):
    """Raised where the policy says that an error of a bolt ends the run.

    What to do: mend the bolt, or leave `bolt_errors` at "fail", which fails the tuple alone.
    """


class ResultError(UserCodeError, ValueError, TypeError):
    """Raised when a function returned too many values, too few, or some of another type.

    What to do: return as many values as `out` has fields, of their types.
    """


class OutsideError(WaterspoutError):
    """Raised when something outside this process is not as it must be.

    What to do: see the class of the error; the same command goes on once the cause is mended.
    """


class JavaError(OutsideError):
    """Raised when there is no Java that Spark can run on.

    What to do: install Java 17 or newer, or set JAVA_HOME; `waterspout doctor` looks.
    """


class SourceError(OutsideError):
    """Raised when a spout's source is missing or unreadable.

    What to do: check the path, the queue or the address that the text names, and who may read
    it.
    """


class DataLossError(SourceError):
    """Raised when data that was to be read is lost: deleted, expired, or overwritten.

    Emitters raise it too, where their source says so. It ends the run at once: to wait would not
    bring the data back, and to go on without a word would hide that it is missing.

    What to do: put the data back, or decide: `waterspout batch skip` or `accept`
    (docs/failure.md).
    """


class StoreError(OutsideError):
    """Raised when a store cannot be read or written.

    What to do: check the store that the text names; then run the same command again.
    """


class DamagedStoreError(StoreError):
    """Raised when the content of a store does not match its checksum.

    What to do: restore the store and the waterspout home of one moment, never one alone.
    """


class ForeignStoreError(StoreError):
    """Raised when a store belongs to another program, topology or owner.

    What to do: use another table, prefix or folder, or the topology that owns this one.
    """


class NewerFormatError(StoreError):
    """Raised when a store was written by a newer version.

    What to do: upgrade waterspout.
    """

    def __init__(self, what: str, found: object, known: int, instead: str = "") -> None:
        advice = f", or use {instead}" if instead else ""
        super().__init__(
            f"{what} was written by a newer waterspout (format {found}, this one knows {known}). "
            f"Upgrade waterspout{advice}."
        )
        self._given = (what, found, known, instead)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self._given)


class OutageError(StoreError, SourceError):
    """Raised when a store, a broker or ZooKeeper cannot be reached for now.

    A run waits for it, for up to `outage_secs`; it does not count against `max_retries`. Stores and
    spouts of your own may raise it. `service` is what the run says it waits for.

    What to do: bring the service back and run the same command; `outage_secs` is how long it is
    waited for.
    """

    def __init__(self, service: str, message: str) -> None:
        super().__init__(message)
        self.service = service

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.service, str(self)))


class StateMismatchError(OutsideError):
    """Raised when a state and the coordination store tell different histories.

    What to do: restore both of one moment; `waterspout state rollback` takes a half batch back.
    """


class WorkerLostError(OutsideError):
    """Raised when processes of Spark die again and again under the same work.

    What to do: look into the log of the executor: memory, a crash of native code, a killed
    machine.
    """


class CommandError(OutsideError):
    """Raised when a command for a run elsewhere was not carried out; the text says why.

    What to do: do what the text says; `waterspout show TOPOLOGY` has how the run stands.
    """


class DRPCExecutionException(OutsideError):
    """Raised when a call of a DRPC function has no result.

    `kind` is one of FAILED_REQUEST (the function failed on this call), SERVER_TIMEOUT,
    SERVER_SHUTDOWN (the run ended) and INTERNAL_ERROR (it could not be asked). `operation` is where
    it failed, where that is known; `status` that of HTTP, if the server answered.

    What to do: by `kind`: mend the call, ask again later, or start the run (docs/drpc.md).
    """

    def __init__(
        self,
        kind: str,
        message: str,
        operation: str | None = None,
        *,
        status: int | None = None,
    ) -> None:
        where = f" in {operation}" if operation else ""
        super().__init__(f"{kind}{where}: {message}")
        self.kind = kind
        self.message = message
        self.operation = operation
        self.status = status


class LeaseHeldError(OutsideError):
    """Raised when another driver already runs the topology.

    `wait_s` is set if the driver cannot be seen from here: if it is gone, its lease is free after
    so many seconds.

    What to do: stop the other driver, or wait until its lease has run out.
    """

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class LeaseLostError(OutsideError):
    """Raised when another driver has taken the topology over.

    What to do: nothing, if the other driver is wanted; else stop one of the two.
    """


class RunFailedError(WaterspoutError):
    """Raised by `Run` when the run stopped by itself; `__cause__` says why.

    What to do: mend the cause and run the same command again; it goes on where it was.
    """
