"""Transcripts of one member: what comes out of the machine for what goes in, on the bench of `member_harness`.

A line that begins with ">" is what happens, the lines below it are what the member does, then and in whatever follows
from the store's answers: its requests first, each kind once with how often; of its watchdogs the last one counts. The
member is `me`, a later membership of its agent `me2`; keys are below the job's; the time is 100 s at first.

    # Why this transcript exists.
    > agent secret=quiet               one that has not begun; settings and options as of a machine. `served`: its store
                                       is served by the agent of "head", `hosts`: by itself
    > leads                            one that leads and runs round 1 alone
    > follows                          one of round 1 with L, which leads, and S; `follows as spare`, `as outsider`
    > cut off                          `follows`, and its store has just gone away; `cut off, leading`: it leads them;
                                       `cut off for 10 s`: L and all others have confirmed that since, `renewed`: while
                                       the store renews the lease
    > another attempt=4                an agent beside it, of which the next lines are; `other answer seal`: the first
    > start, tick, watchdog, leave     what is told; `start offset=1000`: with a clock for people
    > succeed, stopped, saved          of round 1, `succeed round=7`: of another; `fail 3 is_final=yes`
    > up L, down L, gone L             presence, `up L behind a proxy`, `up L at 10.0.0.7:1`
    > hear L probe 7 plan              messages: probe, ack, confirmed, known, note; `the-plan`: the token of the seal
    > note leader look                 a note of the program above; `reply t1 late`: its answer to a request
    > wait 3, pass 3, late 3           one leap; steps of half a second; time that nothing wakes the member for
    > beats 3 from 8                   L and all others confirm an outage each second, with these numbers
    > write ctl/stop mode=kill         a record, with something in the fields that are not named; `lease=5`: on a lease
                                       of its own, `lease=others`; also `put KEY TEXT`, `spoil KEY`, `delete KEY`
    > revoke own, others, verdict      a lease ends; `lose KEY`: that watch ends, `silence KEY`: it brings nothing more
    > away, back                       the store; `away as ended`: it says goodbye, `as replaced`: it is another one
    > step fail 3                      the same, for any of them, and nothing is answered
    > until seal                       until this is asked for; then `answer seal`, `refuse seal`, `refuse seal as
                                       gone`, `deny seal`: its comparisons do not hold, `drop seal`: not applied,
                                       outcome unknown, `keep seal`: applied, likewise, `apply seal`: what was dropped
                                       comes late, `hold seal`: applied, and answered by `release seal`
    > deliver, settle                  what watches have to say; that and all answers
    > renewed 5 created=0              the next renewal is answered so; `stale`: not confirmed; `revision=now-1`
    > set leadership.is_loaded no      in the member's state; `show lease.ends_at`: what it is
    > stored KEY                       the record there, `KEY*`: under the first such key; `item KEY`: its version
                                       and lease; `count KEY/`: of the keys below; `leases`; `guards seal`: the
                                       comparisons and writes of the last of these
"""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import fields

from rendezvous import __version__, events, records
from rendezvous.errors import LeaseNotFound, StoreEnded, StoreError, StoreReplaced
from rendezvous.peers import messages
from rendezvous.reasons import Reason
from rendezvous.settings import Settings
from rendezvous.stores.contract import Delete, Put, Renewal, TxnResult
from tests.support.protocol.follower import L_IS, Follower
from tests.support.protocol.member_harness import Bench
from tests.support.protocol.views import list_changes, show

S_IS = "10.0.0.8:7000"
OWNER = records.StoreOwner(prefix="p", run_id="r", node_name="head", presence_address="10.0.0.9:7000")
ENDS = {
    "ended": StoreEnded("the store at head:29400 has ended with the agent that served it"),
    "replaced": StoreReplaced("the store at h:1 belongs to cluster b"),
}
RECORDS = {
    "spec": records.Spec, "members": records.Member, "leader": records.LeaderRecord, "round": records.Seal,
    "stop": records.Stop, "verdict": records.Verdict, "spares": records.Spares, "drained": records.Drain,
    "command": records.Command,
    "answer": records.Command, "assign": records.Assignment, "status": records.Status, "history": records.RoundHistory,
}  # fmt: skip
SOMETHING = {
    "mesh": "dp=*", "options": {"--nnodes": "1:1"}, "digest": "train.py", "boot_id": "", "description": "", "round": 1,
    "plan_token": "plan", "world_size": 2, "coordinator": "c:1", "reason": "over", "content": "ranks", "mode": "kill",
    "exit_code": 0, "kind": "failure", "presence_address": "", "member_ids": [],
}  # fmt: skip
MESSAGES = {
    "probe": messages.OutageProbe, "ack": messages.OutageAck, "confirmed": messages.OutageConfirmed,
    "known": messages.KnownRevision, "note": messages.Note,
}  # fmt: skip
QUESTIONS = {"show", "stored", "item", "count", "leases", "guards"}
NOT_SETTLED = {"until", "late", "deliver", "set"} | QUESTIONS


def play(text: str) -> str:
    """The transcript with what happens in place of what is written there."""
    player = _Player()
    played = []
    for line in text.strip().split("\n"):
        if line.startswith("# "):
            played.append(line)
        elif line.startswith("> "):
            played += [line, *player.play(line.removeprefix("> "))]
    return "\n".join(played)


class _Player:
    def __init__(self) -> None:
        self.bench = self.other = Bench()
        self.dropped: dict[str, events.Request] = {}
        self.held: dict[str, events.Event] = {}
        self.has_led = False
        self.names: dict[str, str] = {}

    def play(self, line: str) -> list[str]:
        """What the member does when this happens."""
        if line.startswith("other "):
            self.bench, self.other = self.other, self.bench
            said = self.play(line.removeprefix("other "))
            self.bench, self.other = self.other, self.bench
            return said
        is_step, line = line.startswith("step "), line.removeprefix("step ")
        words = line.split() if line.startswith("put ") else shlex.split(line)
        given = {name: value for name, is_pair, value in (word.partition("=") for word in words) if is_pair}
        plain = [word for word in words if "=" not in word]
        if bench := self._begin(plain, given):
            self.bench, self.has_led = bench, leads(bench)
            self._name("")
            return []
        if plain[0] in QUESTIONS:
            return [self._name(said) for said in self._answer(plain)]
        start = len(self.bench.made)
        self._happen(plain, given, line)
        if not is_step and plain[0] not in NOT_SETTLED:
            self.bench.settle()
        return [self._name(said) for said in self._describe(self.bench.made[start:])]

    def _begin(self, plain: list[str], given: dict[str, str]) -> Bench | None:
        """The agent that the transcript is about from here on."""
        match plain:
            case ["agent", *more]:
                return Bench(**_read_options(more, given))
            case ["another", *more]:
                self.other = self.bench
                return Bench(self.bench.store, chance_from=500, **_read_options(more, given))
            case ["leads", *more]:
                bench = Bench(**_read_options(more, given))
                bench.tell(events.Start())
                return bench
            case ["follows", *more]:
                role = more[more.index("as") + 1] if "as" in more else "active"
                successors = tuple(name for name in given.pop("successors", "").split(",") if name)
                return Follower(role, successors, **_read_options(more, given))
            case ["cut", *more]:
                follower = _cut_off(_read_options(more, given), is_leading="leading" in more)
                if "for" in more:
                    follower.pass_time(1.5)
                    _beat(follower, range(1, 11), is_renewed="renewed" in more)
                return follower
        return None

    def _happen(self, plain: list[str], given: dict[str, str], line: str) -> None:
        bench, step = self.bench, self.bench.step
        number = int(given.pop("round", 1)) if plain[0] in ("succeed", "stopped", "saved", "fail", "examined") else 0
        match plain:
            case ["start"]:
                step(events.Start(float(given.get("offset", 0))))
            case ["tick"]:
                step(events.Tick())
            case ["watchdog"]:
                step(events.WatchdogExpired())
            case ["leave"]:
                step(events.LeaveRequest(Reason.of("sigterm"), 143))
            case ["succeed"]:
                step(events.RoundSucceeded(number))
            case ["stopped"]:
                step(events.RoundStopped(number, 4001))
            case ["saved"]:
                step(events.CheckpointSaved(number))
            case ["examined", *finding]:
                step(events.RoundExamined(number, tuple(finding)))
            case ["fail", code]:
                told = {"round": number, "exit_code": int(code), "is_peer_loss": False, "failure": "", **_read(given)}
                step(msgspec.convert(told, events.RoundFailed))
            case ["up", member_id, *how]:
                address = how[1] if "at" in how else {"L": L_IS}.get(member_id, S_IS)
                step(events.PeerUp(member_id, address, "behind" not in how))
            case ["down", member_id]:
                step(events.PeerDown(member_id))
            case ["gone", member_id]:
                step(events.PeerGone(member_id))
            case ["hear", member_id, kind, *content]:
                values = [self._get_plan_token() if word == "the-plan" else _read_value(word) for word in content]
                step(_hear(member_id, MESSAGES[kind](*values)))
            case ["note", to, text]:
                step(events.SendNote(to, text))
            case ["reply", token, text]:
                step(events.AnswerCommand(token, text))
            case ["wait", duration]:
                bench.now += float(duration)
                step(events.Tick())
            case ["pass", duration]:
                for _ in range(math.ceil(float(duration) / 0.5)):
                    bench.wait(0.5)
            case ["late", duration]:
                bench.now += float(duration)
            case ["beats", count, *how]:
                first = int(how[1]) if how else 1
                _beat(bench, range(first, first + int(count)))
            case ["renewed", ttl, *how]:
                (ask,) = (ask for ask in bench.asks if isinstance(ask.request, events.KeepAlive))
                bench.asks.remove(ask)
                own = bench.state.membership.revision
                base, _, before = given.get("revision", "now").partition("-")
                revision = (own if base == "own" else bench.store.get("any").revision) - int(before or 0)
                renewal = Renewal(float(ttl), "stale" not in how, revision, int(given.get("created", own)))
                step(events.StoreReply(ask.id, renewal))
            case ["set", path, value]:
                *owners, last = path.split(".")
                setattr(_follow(bench.state, owners), last, _read_value(value))
            case ["settle"]:
                bench.settle()
            case ["deliver"]:
                bench.deliver()
            case ["until" | "answer" | "refuse" | "deny" | "drop" | "keep" | "apply" | "hold" | "release", *kind]:
                self._settle_request(plain[0], *" ".join(kind).split(" as "))
            case _:
                self._change_store(plain, given, line)

    def _settle_request(self, verb: str, kind: str, how: str = "") -> None:
        """What becomes of the first request of this kind that has no answer yet."""
        bench = self.bench
        if verb == "apply":
            bench.serve(self.dropped.pop(kind))
            return
        if verb == "release":
            bench.step(self.held.pop(kind))
            return
        ask = _find_ask(bench, kind)
        match verb:
            case "until":
                return
            case "answer":
                bench.answer(ask)
                return
            case "refuse":
                error = LeaseNotFound("it is gone") if how == "gone" else StoreError("it is busy")
                outcome: events.Event = events.StoreRejected(ask.id, error)
            case "deny":
                found = bench.store.get(bench.job.control, prefix=True)
                outcome = events.StoreReply(ask.id, TxnResult(False, found.revision, (found,)))
            case "hold":
                bench.asks.remove(ask)
                self.held[kind] = events.StoreReply(ask.id, bench.serve(ask.request))
                return
            case _:
                outcome = events.StoreOutcomeUnknown(ask.id)
                if verb == "keep":
                    bench.serve(ask.request)
                else:
                    self.dropped[kind] = ask.request
        bench.asks.remove(ask)
        bench.step(outcome)

    def _change_store(self, plain: list[str], given: dict[str, str], line: str) -> None:
        bench, store = self.bench, self.bench.store
        others = bench.lease if isinstance(bench, Follower) else 0
        match plain:
            case ["write", name]:
                lease, secret, key = given.pop("lease", ""), given.pop("secret", "").encode(), self._key(name)
                on = others if lease == "others" else store.lease_grant(float(lease)).id if lease else 0
                kind = _get_kind(key)
                record = msgspec.convert({**_fill(kind, key), **_read(given)}, kind)
                store.put(key, records.encode(record, key, secret), lease=on)
            case ["put", name, *_]:
                text = "".join(line.split(" ", 2)[2:]).replace("VERSION", __version__)
                store.put(self._key(name), text.encode())
            case ["spoil", name]:
                (item,) = store.get(self._key(name), prefix=True).items
                store.put(item.key, b"rubbish")
            case ["delete", name]:
                store.delete(bench.job.root + "/" if name == "/" else self._key(name), prefix=name.endswith("/"))
            case ["revoke", "verdict"]:
                request = _find_ask(bench, "end job").request
                assert isinstance(request, events.Txn)
                (lease_id,) = {one.lease for one in request.success if isinstance(one, Put)} - {0}
                store.lease_revoke(lease_id)
            case ["revoke", whose]:
                store.lease_revoke(others if whose == "others" else bench.state.lease.id or 0)
            case ["silence", name]:
                bench.silence(self._key(name))
            case ["lose", name] if name.startswith("/") or bench.is_away:
                bench.step(events.WatchLost(self._key(name), bench.away_error))
            case ["lose", name]:
                bench.lose(self._key(name))
            case ["away", *how]:
                bench.is_away = True
                bench.away_error = ENDS[how[1]] if how else bench.away_error
            case ["back"]:
                bench.is_away = False
            case _:
                raise ValueError(line)

    def _answer(self, question: list[str]) -> Iterator[str]:
        bench, store = self.bench, self.bench.store
        match question:
            case ["show", path]:
                yield f"{path} {show(_follow(bench.state, path.split('.')))}"
            case ["leases"]:
                yield f"{len(store.list_leases())} in the store"
            case ["count", name]:
                yield f"{len(store.get(self._key(name), prefix=True).items)} below {name}"
            case ["item", name]:
                (item,) = store.get(self._key(name)).items
                left_s = store.lease_remaining(item.lease) if item.lease else math.inf
                yield f"version {item.version}, for {left_s:.0f} s"
            case ["stored", name]:
                item = store.get(self._key(name.removesuffix("*")), prefix=name.endswith("*")).first
                if item is None:
                    yield "nothing"
                elif name == "current":
                    yield item.value.decode()
                else:
                    record = records.decode(_get_kind(item.key), item.value, item.key, bench.state.cache.secret)
                    yield " ".join(f"{name}={show(value)}" for name, value in list_changes(record).items())
            case ["guards", *kind]:
                made = [
                    act for act in bench.made if isinstance(act, events.StoreRequest) and act.kind == " ".join(kind)
                ]
                request = made[-1].request
                assert isinstance(request, events.Txn)
                yield "if " + ", ".join(sorted(f"{one.key} {one.target}" for one in request.compares))
                writes = [one.key for one in request.success if isinstance(one, Put)]
                deletions = [f"no {one.key}" for one in request.success if isinstance(one, Delete)]
                yield "then " + ", ".join([*writes, *deletions])

    def _get_plan_token(self) -> str:
        seal = self.bench.store.get(self.bench.job.round).items[0]
        return records.decode(records.Seal, seal.value, seal.key).plan_token

    def _key(self, name: str) -> str:
        if name == "current":
            return records.make_current_key("p", "r")
        name = re.sub(r"\bme\b", self.bench.protocol.member_id, name)
        return name if name.startswith("/") else f"{self.bench.job.root}/{name}"

    def _describe(self, actions: Sequence[events.Action]) -> list[str]:
        asks = Counter(action.kind for action in actions if isinstance(action, events.StoreRequest))
        said = ["asks " + ", ".join(map(_count, asks.items()))] if asks else []
        for verb, kind in (("watches", events.StartWatch), ("unwatches", events.StopWatch)):
            keys = [action.key for action in actions if isinstance(action, kind)]
            said += [f"{verb} " + ", ".join(keys)] if keys else []
        lines = [line for action in actions if (line := _show_action(action))]
        told = Counter(line.partition(":")[0] for line in lines if line.startswith("tells "))
        short = {line: kind for line in lines if told[kind := line.partition(":")[0]] > 2}  # whatever it says each time
        said += map(_count, Counter(short.get(line, line) for line in lines).items())
        until = [action.until for action in actions if isinstance(action, events.ExtendWatchdog)]
        said += [f"watchdog until {until[-1]:g}"] if until else []
        if (is_leader := leads(self.bench)) != self.has_led:
            self.has_led = is_leader
            said.append("leads" if is_leader else "leads no more")
        return said

    def _name(self, text: str) -> str:
        """The text with names for what is drawn."""
        own_id = self.bench.protocol.member_id
        self.names.setdefault(own_id, f"me{len(self.names) + 1}" if self.names else "me")
        for member_id, name in self.names.items():
            text = text.replace(member_id, name)
        return re.sub(r"\b[0-9a-f]{16}\b", "...", re.sub(r"/p/r/[\w-]*/", "", text)).rstrip()


def leads(bench: Bench) -> bool:
    """Whether the store says so."""
    current = bench.store.get(records.make_current_key("p", "r")).first
    if current is None or not re.fullmatch(rb"[\w-]+", current.value):
        return False
    leader = bench.store.get(bench.job.leader).first
    return leader is not None and f'"{bench.protocol.member_id}"'.encode() in leader.value


def _cut_off(options: dict[str, Any], *, is_leading: bool) -> Follower:
    """Its lease was renewed last as it lost its store."""
    follower = Follower(**options)
    follower.pass_time(0.5)
    if is_leading:
        follower.store.delete(follower.job.leader)
        follower.settle()
        follower.wait(1.0)
        for member_id, address in (("L", L_IS), ("S", S_IS)):
            follower.tell(events.PeerUp(member_id, address, True))
    follower.wait(1.0)
    follower.is_away = True
    return follower


def _beat(bench: Bench, beats: range, *, is_renewed: bool = False) -> None:
    for beat in beats:
        bench.tell(_hear("L", messages.OutageProbe(beat, "plan")))
        bench.tell(_hear("L", messages.OutageConfirmed(beat, "plan")))
        for _ in range(2):
            bench.wait(0.5)
        if is_renewed:
            bench.store.lease_keep_alive(bench.state.lease.id or 0)


def _hear(member_id: str, message: messages.Message) -> events.PeerMessage:
    return events.PeerMessage(member_id, messages.encode_message(message))


def _find_ask(bench: Bench, kind: str) -> events.StoreRequest:
    """The first request of this kind; until there is one, all else is answered, and time passes."""
    for _ in range(200):
        if found := [ask for ask in bench.asks if ask.kind == kind]:
            return found[0]
        if not bench.settle_one():
            bench.now += 0.1
            bench.step(events.Tick())
    raise ValueError(f"nothing asks for {kind!r}")


def _follow(owner: Any, path: Sequence[str]) -> Any:
    for name in path:
        owner = getattr(owner, name)
    return owner


# --- what is written


def _read_options(plain: list[str], given: dict[str, str]) -> dict[str, Any]:
    """The words of a line as arguments of a bench."""
    known = {field.name for field in fields(Settings)}
    settings = {name: _read_value(value) for name, value in given.items() if name in known or name == "digest"}
    options: dict[str, Any] = {name: value for name, value in given.items() if name not in settings}
    readers = {"secret": str.encode, "attempt": int}
    options |= {name: read(options[name]) for name, read in readers.items() if name in options}
    if arguments := options.pop("arguments", ""):
        options["spec"] = records.Spec(**_fill(records.Spec, ""), arguments_digest=arguments)
    if "served" in plain:
        options["store_owner"] = OWNER
    if "hosts" in plain:
        options["hosts_store"] = True
    return {"options": options, **settings}


def _read(given: dict[str, str]) -> dict[str, Any]:
    return {name: _read_reason(name, _read_value(value)) for name, value in given.items()}


def _read_reason(name: str, value: Any) -> Any:
    return {"kind": value} if name in ("reason", "failure_class", "final_reason", "leaving") else value


def _read_value(word: str) -> Any:
    if word in ("yes", "no"):
        return word == "yes"
    if re.fullmatch(r"-?\d+", word):
        return int(word)
    return float(word) if re.fullmatch(r"-?\d+\.\d+|inf", word) else word


def _fill(kind: type[records.Record], key: str) -> dict[str, Any]:
    """Something for every field of the record that has no default."""
    last = key.rpartition("/")[2]
    something = {"member_id": last, "node_name": f"node {last}", **SOMETHING}
    return {field.name: _read_reason(field.name, something[field.name]) for field in fields(kind) if field.required}


def _get_kind(key: str) -> type[records.Record]:
    """What a record of this key is."""
    last = key.rpartition("/")[2]
    return RECORDS.get(last) or RECORDS[next(part for part in key.split("/") if part in RECORDS)]


# --- what is shown


def _count(found: tuple[str, int]) -> str:
    what, times = found
    return f"{what} * {times}" if times > 1 else what


def _show_action(action: events.Action) -> str:
    match action:
        case events.Log(reason, is_remark):
            return f"{'remarks' if is_remark else 'says'} {reason}"
        case events.StartRound(number, restarts, ranks, coordinator, assignment):
            return f"starts round {number} of {ranks} ranks at {coordinator}, restart {restarts}: {assignment}"
        case events.StopRound(number, mode, reason, cause, nodes):
            return f"stops round {number} ({mode}) for {cause or 'itself'} {','.join(nodes)}".rstrip() + f": {reason}"
        case events.Exit(code, reason, verdict):
            return f"exits {code}" + (f" with {verdict.kind}" if verdict else "") + f": {reason}"
        case events.SetIdentity(_, member_id):
            return f"is {member_id}" if member_id else "is no member"
        case events.ConnectTo(member_id, address):
            return f"connects to {member_id} at {address}" if member_id else "connects to no leader"
        case events.SendToPeer(member_id, text):
            message = messages.decode_message(text)
            content = " ".join(f"{name}={show(value)}" for name, value in list_changes(message).items())
            return f"tells {member_id} {type(message).__name__}: {content}"
        case events.NoteReceived(member_id, text):
            return f"hears {member_id}: {text}"
        case events.PassOn(token, question):
            return f"passes on {token}: {question}"
        case events.MakePlan():
            known = [f"{member_id} ({name})" for member_id, name in sorted(action.names.items())]
            return "plans" + (" after a round of " + ", ".join(known) if known else "")
    return ""
