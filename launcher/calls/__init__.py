"""A function instead of a script: `launcher.launch(train, config, nproc=8)` runs it in workers and brings back
what it returned.

The picture: the caller never forks, for it may have threads, a CUDA context, a notebook around it. It writes the
call into a private directory, starts an agent of its own (the same `meshrun` as everywhere, in a process of its own),
and waits. Each worker reads the call, runs it and leaves what it returned in that directory; when the agent
has ended well the caller reads what the last round left, and removes the directory.

    launch.py      the function itself            process.py    the agent's process, its output, its end
    keywords.py    keyword options as words       agent.py      what that process begins with
    payload.py     what travels, as files         bootstrap.py  what a worker begins with
    pickling.py    by name or by value            failure.py    the exception
"""
