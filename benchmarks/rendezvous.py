"""How long N members need to agree on their first round: meshrun over a real etcd, torchrun over c10d.

The members are threads of some processes (`members.py`), the same shape for both sides: on two cores hundreds of
whole agents would measure the cores. Time runs from a common barrier, after all imports, until the last member knows
its ranks. A run that has not ended after LIMIT_S is stopped, and a ratio takes it for LIMIT_S. For
meshrun the requests that etcd has served by then are counted too, from its own metrics; `--rest` does so for members
that are at rest.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import pairs
from benchmarks.agents import free_port
from benchmarks.etcd_figures import figures as etcd_figures
from benchmarks.figures import FIRST_ROUND, KEEP_ALIVES, REQUESTS, REST
from benchmarks.runs import NEVER
from tests.support.stores.etcd import EtcdServer

LIMIT_S = 180.0  # so long that torchrun's 256 members either come, or meshrun's are known to reach their aim
HOST = "127.0.0.1"
REST_SIZES, QUICK_REST_S = (4, 64), 20.0
SIZES, QUICK_SIZES = "2,4,8,16,32,64,128,256", "8,64,128,256"
MEMBERS_PER_PROCESS = 16  # quickest for torchrun: of 2, 8 and 32 processes for 128 members it likes 8 best
READY_LIMIT_S = 300.0  # torchrun's members connect to their store one after the other, before the clock runs


class Group:
    """The processes that hold the members of one job."""

    def __init__(self, side: str, endpoint: str, members: int, processes: int, *words: str) -> None:
        run_id = f"b{random.SystemRandom().randrange(10**9)}"
        command = [sys.executable, "-m", "benchmarks.members", side, "--endpoint", endpoint, "--run-id", run_id]
        command += ["--members", str(members), "--processes", str(processes), *words]
        self._process_count, self._member_count = processes, members
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=pairs.environment(), start_new_session=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._barrier, self._words = self._process.stdin, self._process.stdout
        os.set_blocking(self._words.fileno(), False)
        self._rest = ""

    def first_round_s(self) -> float:
        """Wait until all have imported what they need, then let all go; how long until the last has met the others.

        NEVER for more than LIMIT_S.
        """
        if len(self._lines(self._process_count, time.monotonic() + READY_LIMIT_S)) < self._process_count:
            raise RuntimeError(f"the members were not ready within {READY_LIMIT_S:g} s")
        started_s = time.monotonic()
        self._barrier.close()
        lines = self._lines(self._member_count, started_s + LIMIT_S)
        if len(lines) < self._member_count:
            return NEVER
        return max(float(line.split()[1]) for line in lines) - started_s

    def _lines(self, count: int, until_s: float) -> list[str]:
        """The next lines that the processes print, so many or those that came in time."""
        lines: list[str] = []
        while len(lines) < count and (left_s := until_s - time.monotonic()) > 0:
            if not select.select([self._words], [], [], left_s)[0]:
                break
            text = os.read(self._words.fileno(), 65536).decode()
            if not text:
                raise RuntimeError("the processes of the benchmark have ended")
            *some, self._rest = (self._rest + text).split("\n")
            lines += some
        return lines

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._barrier.close()
        self._words.close()


@contextlib.contextmanager
def running(side: str, members: int, processes: int, *words: str) -> Iterator[tuple[Group, str]]:
    """A job of so many members that are about to begin, and where their store is."""
    with contextlib.ExitStack() as stack:
        if side == pairs.OURS:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-"))
            endpoint = stack.enter_context(EtcdServer("3.4", Path(directory))).endpoint
        else:
            endpoint = f"{HOST}:{free_port(HOST)}"
        group = Group(side, endpoint, members, processes, *words)
        stack.callback(group.end)
        yield group, endpoint


def served(endpoint: str, method: str = "") -> float:
    """Requests that this etcd has answered so far, of one method or of all; each message of a stream counts."""
    requests = etcd_figures(f"http://{endpoint}").requests
    return requests.get(method, 0.0) if method else sum(requests.values())


def sample(side: str, members: int, processes: int) -> dict[str, float]:
    """One first round."""
    with running(side, members, processes) as (group, endpoint):
        before = served(endpoint) if side == pairs.OURS else 0.0
        found = {FIRST_ROUND.format(n=members): group.first_round_s(), "limit_s": LIMIT_S}
        if side == pairs.OURS:
            found[REQUESTS.format(n=members)] = (served(endpoint) - before) / members
    return found


def at_rest(members: int, processes: int, rest_s: float) -> dict[str, float]:
    """What members at rest ask of etcd, and what of it only keeps them alive; settings are those of agents."""
    with running(pairs.OURS, members, processes, "--lease-ttl-s", "5") as (group, endpoint):
        group.first_round_s()
        kinds = {REST: "", KEEP_ALIVES: "LeaseKeepAlive"}
        before = {figure: served(endpoint, method) for figure, method in kinds.items()}
        began_s = time.monotonic()
        time.sleep(rest_s)
        counts = {figure: served(endpoint, method) - before[figure] for figure, method in kinds.items()}
        rested_s = time.monotonic() - began_s
        return {figure.format(n=members): count / members / rested_s for figure, count in counts.items()}


def main() -> None:
    parser = pairs.arguments(__doc__ or "", pairs=3, quick=2)
    parser.add_argument("--sizes", help=f"numbers of members (default: {SIZES}, quick: {QUICK_SIZES})")
    parser.add_argument(
        "--large", type=int, default=200, help="sizes from here on have one pair (default: %(default)s)"
    )
    parser.add_argument(
        "--per-process", type=int, default=MEMBERS_PER_PROCESS, help="members in a process (default: %(default)s)"
    )
    parser.add_argument("--rest", type=float, default=40.0, metavar="S", help="how long to watch members at rest")
    options: argparse.Namespace = parser.parse_args()
    sizes = [int(size) for size in (options.sizes or (QUICK_SIZES if options.quick else SIZES)).split(",")]
    rest_s = min(options.rest, QUICK_REST_S) if options.quick else options.rest
    sides = pairs.sides(options)
    lines = []
    with pairs.recording(options) as record:
        for members in sizes:
            processes = min(members, max(2, members // options.per_process))
            samples = pairs.alternate(
                functools.partial(sample, members=members, processes=processes),
                sides=sides,
                pairs=1 if members >= options.large else options.pairs,
                record=record,
                warm_ups=1 if members == sizes[0] else 0,
            )
            line = pairs.summary(pairs.Figure(FIRST_ROUND.format(n=members), "s"), samples)
            line |= {"members": members, "processes": processes}
            if pairs.OURS in sides:
                line["requests per member"] = statistics.median(samples[pairs.OURS][REQUESTS.format(n=members)])
                print(f"N = {members}: {line['requests per member']:.1f} requests per member until all had met")
            lines.append(line)
            record({"summary": line})
        if pairs.OURS in sides and rest_s:
            for members in REST_SIZES:
                found = at_rest(members, max(2, members // options.per_process), rest_s)
                record({"sample": pairs.OURS, "pair": 1, "counts": True, **found})
                rates = [found[figure.format(n=members)] for figure in (REST, KEEP_ALIVES)]
                print(
                    f"N = {members}: {rates[0]:.3f} requests per member and second at rest, {rates[1]:.3f} keep-alives"
                )
    print(pairs.table(lines))


if __name__ == "__main__":
    main()
