"""How long N members need to agree on their first round: meshrun over a real etcd, torchrun over c10d.

The members are threads of some processes (`members.py`), the same shape for both sides: on two cores hundreds of whole
agents would measure the cores. Time runs from when all are told to begin, after all imports, until the last member
knows its ranks. A run that has not ended after LIMIT_S is stopped. For meshrun the requests that etcd has served by
then are counted too, from its own metrics; and those of members that are at rest.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import time
from collections.abc import Iterator, Sequence

import click

from benchmarks import etcd_figures, pairs
from benchmarks.figures import FIRST_ROUND, KEEP_ALIVES, REQUESTS, REST
from benchmarks.members import HOST, Crowd, Job, NotInTime
from benchmarks.runs import NEVER, WATCHES_MIN
from tests.support.stores.etcd import EtcdServer

LIMIT_S = 180.0
READY_LIMIT_S = 300.0  # torchrun's members connect to their store one after the other, before the clock runs
SIZES, QUICK_SIZES = (2, 4, 8, 16, 32, 64, 128, 256), (8, 64, 128, 256)
REST_SIZES, QUICK_REST_S = (4, 64), 20.0
LARGE = 200  # from here on torchrun needs minutes for each run: as few pairs as count, and none with --quick
PER_PROCESS = 16  # quickest for torchrun: of 2, 8 and 32 processes for 128 members it likes 8 best
LEASE_TTL_S = 60.0  # long, since hundreds of members share the cores of one machine here


@contextlib.contextmanager
def running(side: str, members: int, lease_ttl_s: float = LEASE_TTL_S) -> Iterator[tuple[Crowd, EtcdServer | None]]:
    """A job of so many members that are about to begin, and meshrun's store."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(pairs.running_etcd()) if side == pairs.OURS else None
        endpoint = server.endpoint if server else f"{HOST}:{pairs.find_free_port(HOST)}"
        crowd = stack.enter_context(Crowd(Job(endpoint, secrets.token_hex(4), members, members, lease_ttl_s)))
        process_count = max(2, members // PER_PROCESS)
        for index in range(process_count):
            crowd.add_process("own" if server else pairs.THEIRS, range(index, members, process_count))
        crowd.wait_ready(READY_LIMIT_S)
        crowd.order("prepare", range(members))
        crowd.wait_ready(READY_LIMIT_S)
        yield crowd, server


def begin(crowd: Crowd) -> float:
    """Let all members go; how long until the last knows its ranks, NEVER for more than LIMIT_S."""
    started_s = time.monotonic()
    crowd.order("begin", range(crowd.job.members))
    try:
        crowd.wait(lambda: len(crowd.rounds.get(1, ())) == crowd.job.members, LIMIT_S, "a first round")
    except NotInTime:
        return NEVER
    return max(crowd.rounds[1].values()) - started_s


def sample(side: str, members: int) -> dict[str, float]:
    """One first round."""
    with running(side, members) as (crowd, server):
        before = etcd_figures.read(server.url).requests if server else None
        found = {FIRST_ROUND.format(n=members): begin(crowd), "limit_s": LIMIT_S}
        if server and before is not None:
            requests = etcd_figures.read(server.url).requests - before
            found[REQUESTS.format(n=members)] = requests.total() / members
    return found


def rest(members: int, rest_s: float) -> dict[str, float]:
    """What members at rest ask of etcd, and what of it only keeps them alive; settings are those of agents."""
    with running(pairs.OURS, members, 5.0) as (crowd, server):
        assert server is not None
        begin(crowd)
        before, began_s = etcd_figures.read(server.url).requests, time.monotonic()
        time.sleep(rest_s)
        requests = etcd_figures.read(server.url).requests - before
        all_s = members * (time.monotonic() - began_s)
    counts = {REST: requests.total(), KEEP_ALIVES: requests["LeaseKeepAlive"]}
    return {figure.format(n=members): count / all_s for figure, count in counts.items()}


def plan_large(bench: pairs.Bench) -> pairs.Bench:
    """The same with as many pairs as it takes to say that torchrun is late, and without torchrun in a quick run."""
    sides = [side for side in bench.sides if side == pairs.OURS or not bench.is_quick]
    return bench._replace(pairs=WATCHES_MIN, sides=sides)


def parse_sizes(_: click.Context, option: click.Parameter, words: str | None) -> Sequence[int] | None:
    """The numbers of an option such as `--sizes 8,64`."""
    try:
        return None if words is None else [int(word) for word in words.split(",") if word]
    except ValueError:
        raise click.BadParameter(f"{words!r} are no numbers such as 8,64") from None


@pairs.benchmark(pairs=3, quick=2)
@click.option("--sizes", callback=parse_sizes, help=f"Numbers of members (default: {','.join(map(str, SIZES))}).")
@click.option(
    "--rest", "rest_s", type=float, default=40.0, show_default=True, help="How long to watch members at rest."
)
def main(bench: pairs.Bench, sizes: Sequence[int] | None, rest_s: float) -> None:
    sizes = sizes or (QUICK_SIZES if bench.is_quick else SIZES)
    for members in sizes:
        each = plan_large(bench) if members >= LARGE else bench
        each.alternate(functools.partial(sample, members=members), warm_ups=int(members == sizes[0]))
    rest_s = min(rest_s, QUICK_REST_S) if bench.is_quick else rest_s
    for members in REST_SIZES if pairs.OURS in bench.sides and rest_s else ():
        bench.note(pairs.OURS, 1, rest(members, rest_s))


if __name__ == "__main__":
    main()
