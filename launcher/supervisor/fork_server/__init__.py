"""The fork server: a process of the workers' Python that imports once what all of them need, and forks them from then.

The supervisor starts `fork_server.py`. That becomes, by exec, the very command with which a worker would be started
cold, `python -u train.py a b`, with one addition: a module which Python's `site` loads before it comes to the script.
There the process stays and serves: it imports, and forks a worker for every order. A worker that gets its spec returns
from that module, and Python continues as usual: it runs the script as `__main__`, prints its tracebacks and ends as
always. So a script sees the same state as under `python train.py`, because it runs under `python train.py`.

    fork_server.py         what the supervisor starts: tests this Python, then becomes the worker's command
    hook/sitecustomize.py  what `site` loads in that
    server.py              orders in, forks out              worker.py       standby, then the worker that was ordered
    importing.py           the modules, one by one           fork_safety.py  what they leave that a fork would lose

All this runs in the workers' Python, which may be another than the agent's, from 3.10 on. Of the rest of this project
it imports the supervisor's channel, `launcher/hardware/linux/kernel.py` and `launcher/model/value.py` alone, and it
leaves nothing in `sys.modules` or on `sys.path` when a script begins.
"""
