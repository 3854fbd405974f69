"""The members of `rendezvous.py`: threads of some processes, of one job, on one side.

Nothing of a node is here but its part in the agreement: no devices, no supervisor, no workers. meshrun's member is the
production driver, protocol, planner, presence and etcd client; torchrun's is its c10d rendezvous handler. Imports
are done once, then the processes are forked, each says "ready" and waits for the end of stdin. Then it starts its
members at once and prints for each the time (CLOCK_MONOTONIC, one clock for all processes of a machine) at which it
knew its ranks. They stay members until nobody is left to read that.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import threading
import time
from collections.abc import Callable, Sequence

Meet = Callable[[int], None]  # a member's number -> returns when it knows its ranks
Prepare = Callable[[argparse.Namespace, Sequence[int]], Meet]  # in the process of these members, outside the time


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def ours() -> Prepare:
    """Members on a real etcd, with presence connections among them as agents have."""
    import importlib

    # Else these were imported within the time, by each of the processes; torchrun's libraries are there by now, too.
    for name in ("grpc", "grpc._channel", "grpc.experimental", "encodings.idna", "fractions"):
        importlib.import_module(name)

    from launcher.model.mesh import Axis, Mesh
    from launcher.placement.adapter import planner_adapter
    from launcher.placement.adapter.description import Description, encode_description
    from launcher.placement.limits import Costs, Limits
    from rendezvous.driver.driver import Driver
    from rendezvous.events import Exit, Start, StartRound
    from rendezvous.machine import MemberMachine
    from rendezvous.peers.connections import PeerConnections, bind
    from rendezvous.records import Spec
    from rendezvous.settings import Settings
    from rendezvous.stores.etcd.store import EtcdStore

    def prepare(options: argparse.Namespace, numbers: Sequence[int]) -> Meet:
        mesh = Mesh(axes=(Axis(name="dp", size=None),))
        limits = Limits(nodes_min=options.members, nodes_max=options.members)
        settings = Settings(lease_ttl_s=options.lease_ttl_s)

        def member(number: int, wakeup: threading.Event) -> Driver:
            planner = planner_adapter.PlannerAdapter(mesh, limits, Costs())
            listener = bind("127.0.0.1", (0,))
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            description = Description(slot_count=8, address="127.0.0.1", role="default", name=f"node{number}")
            protocol = MemberMachine(
                settings=settings,
                spec=Spec(mesh=str(mesh), limits="", digest=""),
                node_name=f"node{number}",
                boot_id="",
                description=encode_description(description),
                worker_port=20_000 + number,
                prefix="meshrun",
                run_id=options.run_id,
                sizer=planner.compute_size,
                rng=random.Random(f"{options.run_id} {number}").random,
                presence_address=address,
            )
            presence = PeerConnections(
                listener=listener,
                address=address,
                secret=b"",
                submit=lambda event: driver.submit(event),  # there is one before anybody appears
                clock=now,
                silence_s=settings.silence_s,
            )
            driver = Driver(
                machine=protocol,
                store=EtcdStore([options.endpoint], call_limit_s=settings.call_limit_s),
                planner=planner.plan,
                clock=now,
                wake=wakeup.set,
                is_local=False,
                presence=presence,
            )
            return driver

        def meet(number: int) -> None:
            wakeup, has_met = threading.Event(), threading.Event()

            def live() -> None:
                driver = member(number, wakeup)
                driver.submit(Start())
                while True:
                    wakeup.clear()
                    for action in driver.run():
                        if isinstance(action, StartRound):
                            has_met.set()
                        if isinstance(action, Exit):
                            raise RuntimeError(action.reason)
                    wakeup.wait(max(0.0, min(driver.wake_at - now(), 60.0)))

            threading.Thread(target=live, daemon=True).start()
            has_met.wait()

        return meet

    return prepare


def theirs() -> Prepare:
    """Members of torchrun's dynamic rendezvous; member 0 hosts the store.

    They are connected to their store before the clock runs. meshrun's members connect within the time.
    """
    from torch.distributed.elastic.rendezvous.api import RendezvousParameters
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, create_handler

    def handler(options: argparse.Namespace, number: int) -> DynamicRendezvousHandler:
        parameters = RendezvousParameters(
            "c10d",
            options.endpoint,
            options.run_id,
            options.members,
            options.members,
            local_addr="127.0.0.1",
            is_host="1" if number == 0 else "0",
            join_timeout="600",
            read_timeout="120",
        )
        backend, store = create_backend(parameters)
        return create_handler(store, backend, parameters)

    def prepare(options: argparse.Namespace, numbers: Sequence[int]) -> Meet:
        # One after the other: threads that connect at once wait for each other, for seconds if there are dozens.
        handlers = {number: handler(options, number) for number in numbers}

        def meet(number: int) -> None:
            handlers[number].next_rendezvous()

        return meet

    return prepare


def live(prepare: Prepare, options: argparse.Namespace, numbers: Sequence[int]) -> None:
    """One process with these members, until nobody reads its stdout."""
    meet = prepare(options, numbers)

    def run(number: int) -> None:
        meet(number)
        os.write(1, b"met %.6f\n" % time.clock_gettime(time.CLOCK_MONOTONIC))

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in numbers]
    os.write(1, b"ready\n")
    os.read(0, 1)
    for thread in threads:
        thread.start()
    reader = select.poll()
    reader.register(1, 0)  # errors and hang-ups are told unasked
    reader.poll()
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=["meshrun", "torchrun"])
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--members", type=int, required=True)
    parser.add_argument("--processes", type=int, required=True)
    # Long, since hundreds of members share the cores of one machine here.
    parser.add_argument("--lease-ttl-s", type=float, default=60.0)
    options = parser.parse_args()
    prepare = ours() if options.side == "meshrun" else theirs()
    for index in range(options.processes):
        if os.fork() == 0:
            live(prepare, options, range(index, options.members, options.processes))
    for _ in range(options.processes):
        os.wait()


if __name__ == "__main__":
    main()
