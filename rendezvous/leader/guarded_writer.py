"""The leader's pen: every write is one transaction that names what it was decided on.

The guards name the leader key by its mod revision, the leader's own member key, the absence of a verdict, and
whatever else the decision rested on. So a leader that has been replaced, or that decided on something old,
writes nothing. When a write is refused by its guards, or its outcome is unknown, everything is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rendezvous import records
from rendezvous.events import Answer, Txn
from rendezvous.stores.contract import Batch, Compare, Delete, Get, KeyEvent, KeyValue, Operation, Put, TxnResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rendezvous.machine import MemberMachine

OPERATIONS_PER_TXN = 100  # within etcd's 128; of assignments so many stay far below 1.5 MiB at 10 kB each


class GuardedWriter:
    """`on_doubt` is called when what was decided on is no longer known to be so."""

    def __init__(
        self, member: MemberMachine, job: records.Keys, leader_revision: int, on_doubt: Callable[[], None]
    ) -> None:
        self._member = member
        self._job = job
        self.leader_guard = Compare(job.leader, "mod", "=", leader_revision)
        self._on_doubt = on_doubt

    def write(
        self,
        why: str,
        guards: Sequence[Compare],
        writes: Sequence[Operation],
        now: float,
        on_done: Callable[[float], None] = lambda now: None,
    ) -> None:
        """Ask for one guarded transaction, and go on with `then` once it is known to have happened."""

        def on_reply(answer: Answer, now: float) -> None:
            assert isinstance(answer, TxnResult)
            if not answer.succeeded:
                self._member.cache.load(answer.found[0], self._job.control, now)
                self._on_doubt()
                return
            for write in writes:
                self._note(write, answer.revision, now)
            on_done(now)

        def on_unknown(now: float) -> None:
            self._on_doubt()

        own = Compare(self._job.make_member_key(self._member.member_id), "create", "=", self._member.member_revision)
        compares = (self.leader_guard, own, Compare(self._job.verdict, "create", "=", 0), *guards)
        request = Txn(compares, tuple(writes), (Get(self._job.control, prefix=True),))
        self._member.request("lead", why, request, on_reply, now, on_unknown)

    def guard_unchanged(self, *names: str) -> tuple[Compare, ...]:
        """Guards: these keys are as this leader knows them."""
        return tuple(Compare(key, "mod", "=", self._member.cache.get_revision(key)) for key in names)

    def make_put(self, key: str, record: records.AnyRecord, lease: int = 0) -> Put:
        return Put(key, self._member.encode(record, key), lease)

    def _note(self, write: Operation, revision: int, now: float) -> None:
        """Take an own write in without waiting for the watch. Assignments are known from the plan."""
        if isinstance(write, Put) and not write.key.startswith(self._job.all_assignments):
            self._member.note_own_write(write, revision, now)
        elif isinstance(write, Delete) and not write.prefix:
            event = KeyEvent("delete", KeyValue(write.key, b"", 0, revision, 0, 0))
            self._member.cache.apply(Batch(revision, (event,)), now)
