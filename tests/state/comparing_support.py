"""What tests of stores share that compare key by key: tasks that read now and write later."""

from __future__ import annotations

from tests.state_support import OWNER, Add
from waterspout.state._head import Writer
from waterspout.state._kinds import OpaqueMap


class Task:
    """A commit task that reads now and writes when it is told to."""

    def __init__(self, backing, txid, attempt, updates):
        self.backing = backing
        self.txid = txid
        self.state = OpaqueMap(backing)
        self.state.enroll(Writer(OWNER, 1))
        self.state.begin_commit(txid, attempt, {})
        self.state.multi_update([(k,) for k in updates], [Add(n) for n in updates.values()])

    def write(self):
        self.state.commit(self.txid)


def pause_after_the_head(task, meanwhile):
    """Let a task find the head as it must be, and then let others do their work first."""
    backing = task.backing
    real = backing.read_head

    def read_head():
        head = real()
        backing.read_head = real
        meanwhile()
        return head

    backing.read_head = read_head
