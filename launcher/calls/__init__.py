"""Runs a function instead of a script: `launcher.launch(train, config, nproc=8)` returns its workers' results.

The caller never forks, since it may have threads, a CUDA context or a notebook around it. It writes the call into a
private directory, starts an agent (the same `meshrun` as everywhere, in a process of its own), and waits. Each worker
reads the call, runs it and writes its result to that directory; after the agent's success the caller reads the results
of the last round, and removes the directory.

    launch.py      the function itself            process.py    the agent's process, its output, its end
    keywords.py    keyword options as arguments   agent.py      the entry point of that process
    payload.py     the call and results, as files bootstrap.py  the entry point of a worker
    pickling.py    by name or by value            failure.py    the exception
"""
