"""The fork server: a Python of the workers' own that imports once what all of them need, and forks them from then on.

The picture: the supervisor starts `fork_server.py`. That becomes, by exec, the very command by which a worker would be
started cold, `python -u train.py a b`, with one thing added: a module which Python's `site` loads before it comes to
the script. There the process stays and serves: it imports, and forks a worker for every order. A worker that is let
go returns from that module, and Python goes on by itself, as if nothing had been: it runs the script as `__main__`,
prints its tracebacks and ends as it always does. So a script finds itself as it is under `python train.py` because it
is under `python train.py`.

    fork_server.py        what the supervisor starts: looks whether this Python can, then becomes the worker's command
    hook/sitecustomize.py what `site` loads in that
    server.py             orders in, forks out               worker.py       parked, then turned into the worker ordered
    importing.py          the modules, one by one            fork_safety.py  what they leave that a fork would lose
    env_reads.py          what they read too early           reseed.py       what each process must have for itself
    wire.py               messages with descriptors          linux.py        what Python's library lacks

All this runs in the workers' Python, which may be another than the agent's, from 3.10 on. It uses nothing else of this
project, and nothing of it is left in `sys.modules` or on `sys.path` when a script begins.
"""
