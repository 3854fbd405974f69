"""From nothing to a member: find or open the job, see that it is the same as here, register.

A run id names a job key by `current`, and everything of that job lies under it. When hundreds of agents begin at
once, what they ask one after the other is what they wait for. So each step is one transaction that does what is
most likely right, guarded by all that it takes for granted, and reads everything it would take to know better:
whoever opens a job is its first member and leads it with the same write, and whoever finds one registers if its spec
is byte for byte the own one and nothing stands against it, before having read either.

A job that has failed or was stopped is over; once nobody of it is left, the next one is opened in its place by a
compare on `current`, so that of many agents one does it and the others meet there. Where something outside counts
attempts (a job set, a batch system), the job key begins with that number: an agent of a later attempt opens a new
job, one of an earlier attempt is refused.
"""

from __future__ import annotations

import math

from rendezvous import records
from rendezvous.errors import RecordError, SettingsError
from rendezvous.events import Answer, Txn
from rendezvous.records import Command, Drain, Member, Spec, Verdict
from rendezvous.stores.contract import Compare, Get, KeyValue, Put, TxnResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rendezvous.machine import MemberMachine

EXIT_REFUSED = 2  # another command or another version of meshrun: as for other errors of usage
EXIT_TEMPORARY = 75
JOB_KEY_MAX = 64


class Join:
    """`node`: what this agent says of itself; member id and worker port are filled in. `attempt` is "" or a number."""

    def __init__(
        self, member: MemberMachine, *, spec: Spec, node: Member, prefix: str, run_id: str, attempt: str
    ) -> None:
        if attempt and not (attempt.isascii() and attempt.isdigit() and len(attempt) < 16):
            raise SettingsError(f"the attempt is {attempt!r}, it must be a number")
        self._member = member
        self._spec = spec
        self._node = node
        self.run_id = run_id
        self.current_key = records.make_current_key(prefix, run_id)
        self._prefix = prefix
        self._attempt = int(attempt) if attempt else 0
        self._joined_root = ""  # the job this node has been a member of
        self._since = math.inf
        self._problem = ""  # what kept this node from joining so far
        self.job: records.Keys | None = None
        self.restart()

    def restart(self) -> None:
        """Read everything anew: a node that comes back is a new member."""
        self.current: KeyValue | None = None
        self._is_current_read = False
        self._is_inspected = False

    def make_record(self) -> Member:
        """What this agent says of itself as the member that it is now."""
        settings = self._member.settings
        ttl_s = settings.lease_ttl_s if settings.lease_ttl_s < math.inf else 0.0
        return Member(
            member_id=self._member.member_id,
            node_name=self._node.node_name,
            boot_id=self._node.boot_id,
            description=self._node.description,
            presence_address=self._node.presence_address,
            worker_port=self._member.round.worker_port,
            lease_ttl_s=ttl_s,
        )

    def note_problem(self, sentence: str) -> None:
        """What stood in the way the last time, for the message at the limit."""
        self._problem = sentence

    def advance(self, now: float) -> None:
        """Ask for the next thing that is missing to be a member."""
        member, settings = self._member, self._member.settings
        self._since = min(self._since, now)
        limit_s = settings.rejoin_timeout_s if self._joined_root else settings.start_timeout_s
        if now >= self._since + limit_s:
            reason = f"could not join run {self.run_id} within {limit_s:g} s: {self._problem}"
            member.leave.finish(EXIT_TEMPORARY, reason, None, now)
            return
        member.wake_by(self._since + limit_s)
        member.lease.advance(now)
        if member.is_busy("join"):
            return
        if member.lease.lease is None:
            member.lease.request_first_lease(now)
        elif now >= member.lease.lease_until:
            return  # the renewal that is under way tells whether it has ended
        elif not self._is_current_read:
            member.request("join", "find the job", Txn((), (Get(self.current_key),)), self._read_current, now)
        elif self.current is None:
            self._open_job(now)
        else:
            assert self.job is not None
            if not self._is_inspected:
                self._register_unseen(self.job, now)
            elif self._may_join(self.job, now):
                self._register_seen(self.job, now)

    def _read_current(self, answer: Answer, now: float) -> None:
        assert isinstance(answer, TxnResult)
        self._take_current(answer.found[0].first, now)

    def _take_current(self, current: KeyValue | None, now: float) -> bool:
        """Whether this agent may go on with what `current` names: a job, or none yet."""
        self.restart()
        self._is_current_read = True
        self.current = current
        if current is not None:
            name = current.value.decode(errors="replace")
            if not (name.isascii() and name.replace("-", "").isalnum() and len(name) <= JOB_KEY_MAX):
                sentence = f"the value of {self.current_key} is no job key, so it was not written by meshrun"
                self._member.leave.finish(EXIT_REFUSED, sentence, None, now)
                return False
            self.job = records.make_job_keys(self._prefix, self.run_id, name)
        if self._joined_root and (self.job is None or self.job.root != self._joined_root):
            self._member.leave.finish(EXIT_TEMPORARY, self.removal_reason, None, now)
            return False
        return True

    # --- may this agent join? ---

    def _may_join(self, job: records.Keys | None, now: float) -> bool:
        """Whether nothing stands against it: the job has not ended, and is the one that this agent was started for."""
        assert job is not None
        member = self._member
        verdict = member.read(Verdict, job.verdict)
        is_former = job.root == self._joined_root
        theirs = _parse_attempt(job)
        if self._attempt and theirs > self._attempt:
            reason = f"this is attempt {self._attempt}, run {self.run_id} is at attempt {theirs}"
            member.leave.finish(EXIT_REFUSED, reason, None, now)
            return False
        is_earlier = theirs < self._attempt and not is_former
        has_failed = verdict is not None and verdict.kind != "success"
        if is_earlier or (has_failed and member.settings.opens_next_job and not is_former):
            reason = f"attempt {theirs}" if is_earlier or verdict is None else verdict.reason
            self._follow_finished_job(job, reason, now)
            return False
        try:
            item = member.cache.get(job.spec)
            spec = records.decode(Spec, item.value, item.key, member.secret) if item is not None else None
        except RecordError as error:  # a job of another version, or with a secret that this agent does not know
            member.leave.finish(EXIT_REFUSED, str(error), None, now)
            return False
        difference = describe_difference(self.run_id, spec, self._spec) if spec is not None else ""
        if difference:
            member.leave.finish(EXIT_REFUSED, difference, None, now)
        elif verdict is not None:
            late = "" if is_former else f"run {self.run_id} has already ended: "
            if late and verdict.kind == "success":  # of which an agent says nothing else
                member.log(late + verdict.reason)
            member.leave.finish(verdict.exit_code, late + verdict.reason, verdict, now)
        elif self.is_drained(job):
            reason = f"node {self._node.node_name} is drained from run {self.run_id}"
            member.leave.finish(EXIT_TEMPORARY, reason, None, now)
        else:
            return True
        return False

    def is_drained(self, job: records.Keys) -> bool:
        """Whether this node shall stay away. Not if somebody asks to take that back: a leader has to, perhaps this."""
        member, name = self._member, self._node.node_name
        # By its member id, if another node has the same name.
        if all(member.read(Drain, job.make_drain_key(one)) is None for one in (name, member.member_id)):
            return False
        requests = (member.read(Command, item.key) for item in member.cache.list_under(job.commands))
        return not any(r is not None and (r.kind, r.target, r.answer) == ("undrain", name, "") for r in requests)

    def _follow_finished_job(self, job: records.Keys, reason: str, now: float) -> None:
        """Open the next job as soon as nobody of the last is left."""
        member = self._member

        def on_reply(answer: Answer, now: float) -> None:
            assert isinstance(answer, TxnResult)
            if not answer.found[0].items:
                self._open_job(now)
                return
            self._is_inspected = False
            member.pause("join", now)
            self.note_problem(f"agents of the finished job are still there ({reason})")
            member.log_status(f"waiting for the agents of the finished job to go: {reason}")

        request = Txn((), (Get(job.members, prefix=True),))
        member.request("join", "see whether anybody of the finished job is left", request, on_reply, now)

    # --- registering ---

    def _open_job(self, now: float) -> None:
        """Name a fresh job key, where there is none or where the job before it has ended for good; join and lead it."""
        member = self._member
        name = f"{self._attempt}-{member.make_token()}" if self._attempt else member.make_token()
        job = records.make_job_keys(self._prefix, self.run_id, name)
        absent = (job.spec, job.leader, job.round, job.spares)
        writes = (
            Put(self.current_key, name.encode()),
            Put(job.spec, member.encode(self._spec, job.spec)),
            member.election.make_leader_put(job),
        )
        self._register(job, "open the job", tuple(Compare(key, "mod", "=", 0) for key in absent), writes, now)

    def _register_unseen(self, job: records.Keys, now: float) -> None:
        """Join a job that was not read yet, if it is what is hoped for; else it is read by this."""
        if self._attempt and _parse_attempt(job) != self._attempt:
            self._request_about(job, "read the job", (), (), now)
            return
        member = self._member
        guards = (
            Compare(job.spec, "value", "=", member.encode(self._spec, job.spec)),
            Compare(job.make_drain_key(self._node.node_name), "create", "=", 0),
            Compare(job.make_drain_key(member.member_id), "create", "=", 0),
        )
        self._register(job, "register", guards, (), now)

    def _register_seen(self, job: records.Keys, now: float) -> None:
        """Join a job that was read and found to be the right one, if it has not changed since."""
        member = self._member
        guards = (Compare(job.spec, "mod", "=", member.cache.get_revision(job.spec)),)
        is_missing = member.cache.get(job.spec) is None
        writes = (Put(job.spec, member.encode(self._spec, job.spec)),) if is_missing else ()
        self._register(job, "register", guards, writes, now)

    def _register(
        self, job: records.Keys, why: str, guards: tuple[Compare, ...], writes: tuple[Put, ...], now: float
    ) -> None:
        """Put the own key into a job that has not ended, if these guards hold too."""
        member = self._member
        assert member.lease.lease is not None
        own_key = job.make_member_key(member.member_id)
        compares = (
            Compare(self.current_key, "mod", "=", self.current.mod_revision if self.current else 0),
            Compare(job.verdict, "create", "=", 0),
            Compare(own_key, "create", "=", 0),
            *guards,
        )
        own = Put(own_key, member.encode(self.make_record(), own_key), member.lease.lease)
        self._request_about(job, why, compares, (own, *writes), now)

    def _request_about(
        self, job: records.Keys, why: str, compares: tuple[Compare, ...], writes: tuple[Put, ...], now: float
    ) -> None:
        """Write if all these hold, and read the job in any case: the own key in it makes a member of this agent."""
        mirror, own_key = self._member.cache, job.make_member_key(self._member.member_id)
        read = (job.spec, job.control, own_key)
        reads = (Get(self.current_key), *(Get(key, prefix=key == job.control) for key in read))

        def on_reply(answer: Answer, now: float) -> None:
            assert isinstance(answer, TxnResult)
            current, *found = answer.found
            if not self._take_current(current.first, now) or self.current is None or self.job != job:
                return
            for each, key in zip(found, read, strict=True):
                mirror.load(each, key, now)
            self._is_inspected = True
            own = mirror.get(own_key)
            if own is not None:  # by this request, or by one whose answer was lost
                self._become_member(own, answer.revision)

        request = Txn(compares, (*writes, *reads), reads)
        self._member.request("join", why, request, on_reply, now, lambda now: self.restart())

    def _become_member(self, own: KeyValue, revision: int) -> None:
        """The own key is in the store, and everything under control is known as of `revision`."""
        assert self.job is not None
        self._joined_root = self.job.root
        self._since = math.inf
        self._member.become_member(own, revision)

    # --- is the job still there? ---

    def is_removed(self, current: KeyValue | None, spec: KeyValue | None) -> bool:
        """Whether these two keys say that this member's job is no more: deleted, or another begun in its place."""
        assert self.current is not None
        return spec is None or current is None or current.value != self.current.value

    @property
    def removal_reason(self) -> str:
        return f"run {self.run_id} was removed from the store, or another job was begun under its name"


def _parse_attempt(job: records.Keys) -> int:
    """The number that the job key begins with, 0 if nobody counts."""
    number, dash, _ = job.root.rpartition("/")[2].partition("-")
    return int(number) if dash and number.isdigit() else 0


def describe_difference(run_id: str, theirs: Spec, ours: Spec) -> str:
    """In what this agent's job is another one than the run's; empty if they are the same."""
    if theirs.has_secret != ours.has_secret:
        return f"run {run_id} was started {'with' if theirs.has_secret else 'without'} a job secret, this agent is not"
    for name in ("mesh", "limits", "digest"):
        first, own = getattr(theirs, name), getattr(ours, name)
        if first != own:
            what = "command" if name == "digest" else name
            return f"run {run_id} was started with {what} {first!r}, this agent has {own!r}"
    return ""
