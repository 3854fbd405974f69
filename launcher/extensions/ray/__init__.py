"""meshrun on Ray: the nodes of a Ray cluster as the nodes of a job. `run` from Python, `meshrun-ray` as a command.

The driver serves the store of the job and starts an actor on every node that Ray gives it; the actor starts the agent
of its node as a child. Ray places agents, and places them again after a loss; meshrun does everything else without
Ray: nothing here may start a worker, choose ranks, or take part in the agreement. Ray itself is imported where it is
called, so that help and mistakes need none.

A bundle becomes an agent: `agent_pool` yields `StartAgent`, `job_driver` carries it out by `cluster.start_agent`, the
actor in the bundle (`actor`) starts `launcher.calls.agent`, and that is the command as anywhere.

Pure:  options.py      what `meshrun-ray` has beside the options of meshrun
       bundles.py      what the job asks Ray for, on how many nodes, and why it does not fit
       environment.py  what an agent inherits of what Ray has set
       agent_pool.py   what the driver does next: states of agents in, actions and reasons out
Over Ray:  cluster.py  all calls to Ray
       actor.py        what runs on a node
       job_driver.py   one job, from options to exit code
       store_service.py  the store of the job, served by the driver
       call.py         `run`
       main.py         `meshrun-ray`
"""

from __future__ import annotations

__all__ = ["run"]


def __getattr__(name: str) -> object:
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from launcher.extensions.ray.call import run

    return run
