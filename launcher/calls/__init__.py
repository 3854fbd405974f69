"""Runs a function instead of a script: `launcher.launch(train, config, nproc=8)` returns its workers' results.

The caller never forks, since it may have threads, a CUDA context or a notebook around it. It writes the call into a
private directory, starts an agent (the same `meshrun` as everywhere, in a process of its own), and waits. Each worker
reads the call, runs it and writes its result to that directory; after the agent's success the caller reads the results
of the last round, and removes the directory.

    launch.py     the function itself, its keywords as options
    payload.py    the call and results, as files, by name or by value
    process.py    the agent's process, its output, its end
    agent.py      the entry point of that process, and of an agent on Ray
    bootstrap.py  the entry point of a worker
    failure.py    the exception
"""
