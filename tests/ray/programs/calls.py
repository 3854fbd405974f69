"""Calls `launcher.extensions.ray.run` and prints what it returned or raised.

The argument says how it is called: results, thread, twice, failure, program or script.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

from launcher import WorkerFailed
from launcher.extensions.ray import run


def add(first: int, second: int) -> tuple[int, int, int]:
    rank = int(os.environ["RANK"])
    if first < 0 and rank == 1:
        raise LookupError("rank 1 has no data")
    return rank, int(os.environ["WORLD_SIZE"]), first + second


if __name__ == "__main__":
    options = {"nodes": 3, "nproc": 1, "bundle": {"CPU": 2}}
    if sys.argv[1] == "results":
        print("returned", run(add, 3, 4, **options))
    elif sys.argv[1] == "thread":
        with ThreadPoolExecutor(1) as pool:
            print("returned", pool.submit(run, add, 3, 4, **options).result())
    elif sys.argv[1] == "twice":
        import ray

        ray.init()
        run(add, 1, 2, **options)
        print("returned", run(add, 3, 4, **options))
        states = {group["state"] for group in ray.util.placement_group_table().values()}
        print("left", ray.is_initialized(), *sorted(states))
    elif sys.argv[1] == "program":
        print("returned", run("/bin/sh", "-c", "exit 0", **options))
    elif sys.argv[1] == "script":
        print("returned", run([__file__, "nothing"], **options))
    elif sys.argv[1] == "failure":
        try:
            run(add, -3, 4, **options)
        except WorkerFailed as error:
            print("raised", error.rank, error.exit_code, repr(error.__cause__))
