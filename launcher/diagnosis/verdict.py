"""Concludes from what all ranks saw which of them the job waits for.

A rank that has entered a collective waits for those of its group that have not. Followed from rank to rank, this leads
to those that wait for nobody: the others wait for them, so they are named, with what they are doing instead. Ranks
that wait for each other in a circle are a deadlock. Two operations, or two sizes, under one number are a mismatch: then
nobody is late. If all have entered and none comes out, the network or a device is at fault, or one that is stopped.

A member whose recorder has not answered may be late: it is named if nobody else is, and if nothing shows that it
communicates. A rank of which nothing is known, because its node has not answered, is named as that.

Where the recorder tells nothing, stacks do: those are named that are not in a communication while others are, or else
the few beside the many. If neither tells, nobody is accused, and it is said which ranks are where. Of a job that runs,
most ranks wait for a moment at any time: calls younger than MOMENT_S are no evidence. A rank that has given up waiting
is not the one that the others need.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from launcher.diagnosis.evidence import Call, Frame, GroupCalls, RankEvidence, State
from launcher.model.text import format_count, format_list
from launcher.worker.grid import WorkerMesh

_EQUAL_SIZES = frozenset(("all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base"))
"""Operations in which all members have to give as much."""
_MEETINGS = frozenset((
    "all_reduce", "barrier", "all_gather", "_all_gather_base", "reduce_scatter", "_reduce_scatter_base", "all_to_all",
))  # fmt: skip
"""Operations out of which nobody comes before all members are in."""
_COMMUNICATION = ("torch/distributed/", "jax/_src/", "jax/experimental/multihost_utils", "jaxlib/")
"""Parts of file names: who stands there may wait for others."""
_LIBRARIES = ("site-packages/", "dist-packages/", "lib/python3", "<frozen ", "launcher/ranks/")
"""Parts of the names of files that are not the script's."""
_HELD: tuple[State, ...] = ("stopped", "blocked", "ended")
"""States in which a rank does nothing, wherever its stack stands."""
STATES: dict[State, str] = {
    "runs": "running",
    "sleeps": "asleep",
    "blocked": "blocked in the kernel",
    "stopped": "stopped by a signal or a debugger",
    "ended": "ended",
    "unknown": "unknown",
}
"""In words."""
MOMENT_S = 1.0
ACTIVE_S = 60.0
"""A job whose last collective is not older makes progress, if nobody waits."""
_BUSY = 0.5  # cores: a rank that uses more computes
_SHOWN = 3  # culprits whose position is told, and waits for them
_PLACES_SHOWN = 6
_WAITS_SHOWN = 8  # of a deadlock
_DEFAULT_GROUP = "default_pg"
_MESH_PREFIX = "mesh_"
"""torch's description of the groups of a DeviceMesh, before the name of the dimension."""

Kind = Literal["late", "mismatch", "deadlock", "stuck", "unknown", "odd", "unclear", "healthy"]
"""`late`: the culprits have not entered what others wait in. `stuck`: all have entered. `unknown`: nothing tells what
the culprits do, and the others wait. `odd`: told by stacks alone. `healthy`: nobody waits longer than a moment.
"""


class Place(Struct, frozen=True, kw_only=True):
    """Where some ranks are, all at the same line of the script."""

    ranks: tuple[int, ...]
    state: State
    """Of the first of them."""
    function: str = ""
    """The innermost of the script's own, as file and line; "" if the stack is not known."""
    file: str = ""
    line: int = 0
    inside: str = ""
    """The innermost function of a library that it has called, "" for none."""
    call: str = ""
    """The collective in which they wait, such as "all_reduce 4 of tp", if the recorder knows one."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """Which ranks hold up the job, and how that is known."""

    kind: Kind
    culprits: tuple[int, ...] = ()
    """Ranks, ascending; none if no rank can be named."""
    sentences: tuple[str, ...]
    """The verdict, then what supports it."""
    is_sure: bool = True
    """Recorders show it, or the state of a process; else stacks alone do."""


class _Wait(Struct, frozen=True, kw_only=True):
    """The call of a group that some members have entered and not left."""

    label: str
    call: Call
    members: tuple[int, ...]
    inside: tuple[int, ...]
    """Members that wait in the call."""
    late: tuple[int, ...]
    """Members that have not entered it."""
    is_seen: bool = True
    """Recorders confirm that they have not; otherwise they only may be late."""


def diagnose(ranks: Sequence[RankEvidence], mesh: WorkerMesh) -> Diagnosis:
    """Name the ranks that the others wait for. `ranks`: those of which something is known. `mesh`: of any rank."""
    world = {rank: RankEvidence(rank=rank, state="unknown") for rank in range(mesh.world_size)}
    world |= {one.rank: one for one in sorted(ranks, key=lambda one: one.rank)}
    groups = _collect_groups(world, mesh)
    waits = [wait for group in groups for wait in _list_waits(group, world)]
    waiting = {rank for wait in waits if wait.late for rank in wait.inside}
    awaited = sorted({rank for wait in waits for rank in wait.late} - waiting)
    return (
        _find_mismatch(groups, mesh)
        or _conclude_late(awaited, waits, world, mesh)
        or _conclude_deadlock(waiting, waits, mesh)
        or _conclude_stuck(waits, world, mesh)
        or _conclude_healthy(world)
        or _conclude_by_stacks(world, mesh)
    )


def describe_ranks(ranks: Sequence[int], mesh: WorkerMesh) -> str:
    """Describe ranks in terms of the mesh: "rank 5 (pp=1 tp=1)", "all of pp=1", "ranks 1, 2 and 7".

    Along the only axis of a mesh, which may be that of a run without one, ranks count: the number says it all.
    """
    coordinates = [mesh._replace(rank=rank).coordinates for rank in ranks]
    if len(ranks) == 1 and not mesh.axes[1:]:
        return f"rank {ranks[0]}"
    if len(ranks) == 1:
        where = " ".join(f"{axis}={at}" for axis, at in zip(mesh.axes, coordinates[0], strict=True))
        return f"rank {ranks[0]} ({where})"
    wanted = set(ranks)
    for count in range(1, len(mesh.axes)):
        for indices in combinations(range(len(mesh.axes)), count):
            places = {tuple((mesh.axes[index], place[index]) for index in indices) for place in coordinates}
            size = mesh.world_size // math.prod(mesh.shape[index] for index in indices)
            if len(places) == 1 and size == len(wanted) > 1:
                return "all of " + " ".join(f"{axis}={at}" for axis, at in places.pop())
    return f"ranks {format_list(list(map(str, ranks)))}"


# --- groups ---


class _Group(Struct, frozen=True, kw_only=True):
    """A process group as its members' recorders show it."""

    description: str
    members: tuple[int, ...]
    calls: Mapping[int, GroupCalls]
    """Rank to its calls, without members that have called nothing."""
    unseen: tuple[int, ...]
    """Members whose calls are unknown."""


def _collect_groups(world: Mapping[int, RankEvidence], mesh: WorkerMesh) -> list[_Group]:
    calls: defaultdict[tuple[str, str], dict[int, GroupCalls]] = defaultdict(dict)
    for rank, one in world.items():
        for group in one.groups or ():
            calls[group.name, group.description][rank] = group
    found = []
    for (_, description), each in calls.items():
        members = _find_members(description, sorted(each), world, mesh)
        unseen = [rank for rank in members if rank not in each and not _is_recorded(world[rank])]
        found.append(_Group(description=description, members=tuple(members), calls=each, unseen=tuple(unseen)))
    return found


def _find_members(
    description: str, present: list[int], world: Mapping[int, RankEvidence], mesh: WorkerMesh
) -> Sequence[int]:
    """Return the members of a group: those that have used it, and those that its description adds."""
    if description == _DEFAULT_GROUP:
        return list(world)
    axis = description.removeprefix(_MESH_PREFIX)
    if axis in mesh.axes and axis in mesh.group_names:
        declared = mesh._replace(rank=present[0]).group(axis)
        if set(present) <= set(declared):
            return declared
    return present


def _is_recorded(one: RankEvidence) -> bool:
    """Whether a group that its recorder does not name is one that it has not used."""
    return one.state == "ended" or (one.groups is not None and not one.is_truncated)


def _is_waiting(call: Call) -> bool:
    return call.is_open and call.age_s >= MOMENT_S


def name_group(description: str) -> str:
    """Name a group for people, as the mesh does where it is one of a mesh."""
    return description.removeprefix(_MESH_PREFIX)


def _label_group(description: str, members: Sequence[int]) -> str:
    return f"{name_group(description)} {format_members(members)}"


def format_members(ranks: Sequence[int]) -> str:
    """Format the members of a group: "[4-7]", "[1, 5]"."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"[{ranks[0]}-{ranks[-1]}]"
    return f"[{format_list(list(map(str, ranks)))}]"


def _find_mismatch(groups: Sequence[_Group], mesh: WorkerMesh) -> Diagnosis | None:
    """Find members that have called different operations, or with different sizes, under one number."""
    for group in groups:
        said: defaultdict[int, dict[tuple[str, str], list[int]]] = defaultdict(lambda: defaultdict(list))
        for rank, calls in group.calls.items():
            for call in calls.calls:
                shape = call.shape if call.operation in _EQUAL_SIZES else ""
                said[call.number][call.operation, shape].append(rank)
        for number, kinds in sorted(said.items()):
            is_held = any(
                _is_waiting(call) for calls in group.calls.values() for call in calls.calls if call.number == number
            )
            if len(kinds) < 2 or not is_held:
                continue
            shown = sorted(kinds.items(), key=lambda each: (-len(each[1]), each[1]))
            same = len({operation for operation, _ in kinds}) == 1
            told = [
                f"{operation}{f' of {shape}' if same else ''} by {describe_ranks(ranks, mesh)}"
                for (operation, shape), ranks in shown
            ]
            few = tuple(sorted(rank for _, ranks in shown[1:] for rank in ranks))
            all_ranks = tuple(sorted(few + tuple(shown[0][1])))
            is_clear = len(shown[0][1]) > len(few)
            members = _label_group(group.description, group.members)
            sentence = f"the members of {members} call different operations as call {number}: {format_list(told)}"
            return Diagnosis(kind="mismatch", culprits=few if is_clear else all_ranks, sentences=(sentence,))
    return None


# --- who waits for whom ---


def _list_waits(group: _Group, world: Mapping[int, RankEvidence]) -> Iterator[_Wait]:
    """Yield the oldest open call of each number in a group, with those inside and those that have not come."""
    inside: defaultdict[int, list[int]] = defaultdict(list)
    calls: dict[int, Call] = {}
    for rank, each in group.calls.items():
        call = each.oldest_open
        if call and _is_waiting(call) and world[rank].state != "ended":
            inside[call.number].append(rank)
            calls[call.number] = max(call, calls.get(call.number, call), key=lambda one: one.age_s)
    for number, ranks in inside.items():
        strangers = _find_strangers(group, ranks, number)
        members = [rank for rank in group.members if rank not in strangers]
        behind = [rank for rank in members if rank not in group.calls or group.calls[rank].last < number]
        late = [rank for rank in behind if rank not in group.unseen]
        maybe = [rank for rank in group.unseen if _is_held(world[rank]) or not is_communicating(world[rank])]
        yield _Wait(
            label=_label_group(group.description, members),
            call=calls[number],
            members=tuple(members),
            inside=tuple(ranks),
            late=tuple(late or maybe),
            is_seen=bool(late),
        )


def _find_strangers(group: _Group, inside: Collection[int], number: int) -> set[int]:
    """Return the ranks of another group of this name: those far behind one that has met all members since.

    Replicas of a model that do not talk to each other may each have a default group, all called alike.
    """
    has_met = any(
        call.number == number - 1 and call.operation in _MEETINGS  # not open: theirs that is oldest has this number
        for rank in inside
        for call in group.calls[rank].calls
    )
    return {rank for rank, calls in group.calls.items() if has_met and calls.last < number - 1}


def _find_circle(waiting: Collection[int], waits: Sequence[_Wait]) -> tuple[int, ...]:
    """Return the fewest ranks that wait for each other, and for nobody else. `waiting`: all that wait for others."""
    ways = [(wait.inside, wait.late) for wait in waits]
    ends = [found for wait in waits if wait.late and (found := _follow(wait.late, ways)) <= set(waiting)]
    return tuple(sorted(min(ends, key=len, default=())))


def _follow(ranks: Collection[int], ways: Sequence[tuple[Collection[int], Collection[int]]]) -> set[int]:
    """Return these ranks and all that are reached from them: each way leads from any of some ranks to others."""
    found, count = set(ranks), 0
    while len(found) > count:
        count = len(found)
        for begin, end in ways:
            if not found.isdisjoint(begin):
                found.update(end)
    return found


# --- conclusions ---


def _conclude_late(
    awaited: Sequence[int], waits: Sequence[_Wait], world: Mapping[int, RankEvidence], mesh: WorkerMesh
) -> Diagnosis | None:
    """Name the ranks that wait for nobody. Those that communicate in a way that is not recorded come second."""
    culprits = [rank for rank in awaited if _is_held(world[rank]) or not is_communicating(world[rank])]
    hidden = [rank for rank in awaited if not any(rank in wait.inside for wait in waits)]
    if not culprits and not hidden:
        return None
    if not culprits:
        where = "in a communication that is not recorded (point-to-point, for example)"
        verdict = f"others wait for {describe_ranks(hidden, mesh)} {where}"
        return Diagnosis(kind="unclear", sentences=(verdict, *_describe_places(world, mesh)))
    oldest = sorted(waits, key=lambda wait: -wait.call.age_s)
    told = [(wait, [rank for rank in wait.late if rank in culprits]) for wait in oldest]
    sentences = [_describe_wait(wait, late, mesh) for wait, late in told if late][:_SHOWN]
    direct = {rank for wait, late in told if late for rank in wait.inside}
    if more := _follow(culprits, [(wait.late, wait.inside) for wait in waits]) - direct - set(culprits):
        sentences.append(f"{format_count(len(more), 'more rank')} {_agree(more, 'waits', 'wait')} for these")
    sentences += [_describe_position(world[rank], mesh) for rank in culprits[:_SHOWN]]
    is_sure = any(wait.is_seen for wait, late in told if late) or any(_is_held(world[rank]) for rank in culprits)
    is_known = is_sure or any(world[rank].stack is not None for rank in culprits)
    kind: Kind = "late" if is_known else "unknown"
    return Diagnosis(kind=kind, culprits=tuple(culprits), sentences=tuple(sentences), is_sure=is_sure)


def _conclude_deadlock(waiting: Collection[int], waits: Sequence[_Wait], mesh: WorkerMesh) -> Diagnosis | None:
    members = _find_circle(waiting, waits)
    if not members:
        return None
    sentences = [f"{describe_ranks(members, mesh)} wait for each other"]
    is_sure = any(wait.is_seen for wait in waits if not set(members).isdisjoint(wait.late))
    for wait in waits:
        inside, late = ([rank for rank in ranks if rank in members] for ranks in (wait.inside, wait.late))
        if inside and late:
            who = f"{describe_ranks(inside, mesh)} {_agree(inside, 'waits', 'wait')}"
            sentences.append(f"{who} in {_name_call(wait)} for {describe_ranks(late, mesh)}")
    shown = tuple(sentences[: 1 + _WAITS_SHOWN])
    return Diagnosis(kind="deadlock", culprits=members, sentences=shown, is_sure=is_sure)


def _conclude_stuck(waits: Sequence[_Wait], world: Mapping[int, RankEvidence], mesh: WorkerMesh) -> Diagnosis | None:
    """All have entered and none comes out: one of them is stopped, or the network or a device does not carry it."""
    if not waits:
        return None
    wait = max(waits, key=lambda wait: (not wait.late, wait.call.age_s))
    sentence = f"all {len(wait.members)} members have entered {_name_call(wait)}, and for {wait.call.age_s:.0f} s "
    if len(wait.inside) == len(wait.members):
        sentence += "none has left it"
    else:
        sentence += f"{describe_ranks(wait.inside, mesh)} {_agree(wait.inside, 'has', 'have')} not left it"
    held = tuple(rank for rank in wait.members if _is_held(world[rank]))
    if not held:
        sentence += ": check the network and the devices"
    positions = (_describe_position(world[rank], mesh) for rank in held[:_SHOWN])
    return Diagnosis(kind="stuck", culprits=held, sentences=(sentence, *positions))


def _conclude_healthy(world: Mapping[int, RankEvidence]) -> Diagnosis | None:
    """Say that nobody waits, if the recorders of all ranks can tell; called where no old wait has been found."""
    for one in world.values():
        calls = [call for group in one.groups or () for call in group.calls]
        if _is_held(one) or not calls or min(call.age_s for call in calls) > ACTIVE_S:
            return None
        has_none = min(call.age_s for call in calls) > MOMENT_S and not any(call.is_open for call in calls)
        if has_none and is_communicating(one):
            return None  # from point to point, or in the store: that is not recorded
    last_s = min(call.age_s for one in world.values() for group in one.groups or () for call in group.calls)
    verdict = f"no rank has been waiting for another for more than {MOMENT_S:g} s"
    return Diagnosis(kind="healthy", sentences=(verdict, f"the last collective was entered {last_s:.1f} s ago"))


def _conclude_by_stacks(world: Mapping[int, RankEvidence], mesh: WorkerMesh) -> Diagnosis:
    """Name the ranks whose state or stack is unlike that of the others, or else those of which nothing is known."""
    known = {rank: one for rank, one in world.items() if one.state != "unknown"}
    lost = tuple(rank for rank in world if rank not in known)
    held = [rank for rank, one in known.items() if _is_held(one)]
    odd = held if 0 < len(held) < len(known) else _find_odd_stacks(known)
    if not odd and 0 < len(lost) < len(world):
        told = f"nothing is known about {describe_ranks(lost, mesh)}"
        if all(one.stack and is_communicating(one) for one in known.values()):
            return Diagnosis(kind="unknown", culprits=lost, sentences=(f"{told}; all other ranks are communicating",))
        return Diagnosis(kind="unclear", sentences=(told,))
    if not odd:
        is_busy = len(known) > 0 and all(one.cpu > _BUSY for one in known.values())
        count = sum(bool(place.function) for place in find_places(known.values()))
        told = {0: "no stack is known", 1: "all ranks are at one line"}.get(count, f"the ranks are at {count} lines")
        verdict = f"it is unclear which rank the others wait for: {told}"
        more = ["all of them are computing"] if is_busy else []
        return Diagnosis(kind="unclear", sentences=(verdict, *_describe_places(known, mesh), *more))
    others = [rank for rank in known if rank not in odd]
    rest = next((rank for rank in others if world[rank].stack), others[0])
    of_all = f"of the other {len(others)} ranks, " if len(others) > 1 else ""
    positions = [_describe_position(world[rank], mesh) for rank in odd[:_SHOWN]]
    sentences = (*positions, of_all + _describe_position(world[rest], mesh))
    return Diagnosis(kind="odd", is_sure=False, culprits=tuple(odd), sentences=sentences)


def _find_odd_stacks(world: Mapping[int, RankEvidence]) -> list[int]:
    stacks: defaultdict[tuple[tuple[str, str], ...], list[int]] = defaultdict(list)
    for rank, one in world.items():
        if one.stack:
            stacks[tuple(frame.place for frame in one.stack)].append(rank)
    outside = [rank for rank, one in world.items() if one.stack and not is_communicating(one)]
    if outside and len(outside) < sum(1 for one in world.values() if one.stack or one.has_given_up):
        return outside
    most = max(stacks.values(), key=len, default=[])
    if 2 * len(most) > len(world) and len(stacks) > 1:
        return sorted(rank for ranks in stacks.values() if ranks is not most for rank in ranks)
    return []


def find_places(ranks: Iterable[RankEvidence]) -> tuple[Place, ...]:
    """Group the ranks that live by the line at which the script's own code stands, and by the collective.

    The places of the fewest ranks come first.
    """
    groups: defaultdict[tuple[object, ...], list[Place]] = defaultdict(list)
    for one in ranks:
        if one.state not in ("ended", "unknown"):
            place, own = _find_place_of(one), find_own_frame(one.stack)
            # Whether a rank runs or sleeps at this moment says little, but a stopped one goes nowhere.
            state = "" if one.state == "runs" else one.state.replace("sleeps", "")
            stands_at = (*own.place, own.line) if own else (place.function, place.line)
            groups[state, stands_at, place.call].append(place)
    found = [replace(each[0], ranks=tuple(place.ranks[0] for place in each)) for each in groups.values()]
    return tuple(sorted(found, key=lambda place: (not place.function, len(place.ranks), place.ranks)))


def _find_place_of(one: RankEvidence) -> Place:
    waits = [(group, call) for group in one.groups or () if (call := group.oldest_open) and _is_waiting(call)]
    oldest = max(waits, key=lambda each: each[1].age_s, default=None)
    name = f"{oldest[1].operation} {oldest[1].number} of {name_group(oldest[0].description)}" if oldest else ""
    place = Place(ranks=(one.rank,), state=one.state, call=name)
    if not one.stack:
        return place
    inner = one.stack[0]
    own = find_own_frame(one.stack) or inner
    inside = "" if own is inner else _format_place(inner.function, inner.file, inner.line)
    return replace(place, function=own.function, file=own.file, line=own.line, inside=inside)


def find_own_frame(stack: Sequence[Frame] | None) -> Frame | None:
    """Return the innermost frame that belongs to the script, and to no library."""
    return next((frame for frame in stack or () if not is_library(frame.file)), None)


def _describe_places(world: Mapping[int, RankEvidence], mesh: WorkerMesh) -> list[str]:
    """Describe where all ranks are, one sentence for each place."""
    places = find_places(world.values())
    told = [_describe_place(place, world[place.ranks[0]], mesh) for place in places[:_PLACES_SHOWN]]
    if rest := places[_PLACES_SHOWN:]:
        count = sum(len(place.ranks) for place in rest)
        who = f"{format_count(count, 'more rank')} {_agree(range(count), 'is', 'are')}"
        told.append(f"{who} at {len(rest)} other places")
    return told


def _describe_place(place: Place, first: RankEvidence, mesh: WorkerMesh) -> str:
    who = describe_ranks(place.ranks, mesh)
    call = f", waiting in {place.call}" if place.call else ""
    return f"{who} {_agree(place.ranks, 'is', 'are')} {_describe_state(place, first)}{call}"


def _is_held(one: RankEvidence) -> bool:
    return one.state in _HELD and not one.has_given_up


def is_communicating(one: RankEvidence) -> bool:
    """Whether the libraries that a rank's own code has called last have to do with other ranks.

    What has called its own code does not count: torch's `record` stands there as well.
    """
    if one.has_given_up:
        return True
    for frame in one.stack or ():
        if any(part in frame.file for part in _COMMUNICATION):
            return True
        if not is_library(frame.file):
            return False
    return False


def is_library(file: str) -> bool:
    """Whether a file belongs to Python or to what is installed, rather than to the script."""
    return any(part in file for part in (*_COMMUNICATION, *_LIBRARIES))


def _name_call(wait: _Wait) -> str:
    return f"{wait.call.operation} {wait.call.number} of {wait.label}"


def _agree(ranks: Collection[int], one: str, many: str) -> str:
    """Choose the verb that agrees with so many ranks."""
    return one if len(ranks) == 1 else many


def _describe_wait(wait: _Wait, late: Sequence[int], mesh: WorkerMesh) -> str:
    who = format_count(len(wait.inside), "other")
    entered = "not entered" if wait.is_seen else "not been seen in"
    waited = f"{_agree(wait.inside, 'has', 'have')} waited for {wait.call.age_s:.0f} s"
    return f"{describe_ranks(late, mesh)} {_agree(late, 'has', 'have')} {entered} {_name_call(wait)}; {who} {waited}"


def _describe_position(one: RankEvidence, mesh: WorkerMesh) -> str:
    """Describe what a rank is doing: "rank 5 (tp=1) is in load (loader.py:31), inside read (codecs.py:322), asleep"."""
    who = describe_ranks([one.rank], mesh)
    if one.state == "unknown":
        return f"nothing is known about {who}: its node has not answered"
    if one.state == "ended":
        return f"{who} has ended" + ("" if one.exit_code is None else f" with exit code {one.exit_code}")
    return f"{who} is {_describe_state(_find_place_of(one), one)}"


def _describe_state(place: Place, one: RankEvidence) -> str:
    if one.state == "stopped":
        return f"stopped, traced by {one.tracer}" if one.tracer else STATES["stopped"]
    state = STATES[one.state] + (f" ({one.wait})" if one.state == "blocked" and one.wait else "")
    if not place.function:
        return f"{state}, stack unknown"
    inside = f", inside {place.inside}" if place.inside else ""
    return f"in {_format_place(place.function, place.file, place.line)}{inside}, {state}"


def _format_place(function: str, file: str, line: int) -> str:
    return f"{function} ({file.rpartition('/')[2]}:{line})"
