"""From an assignment to processes to start: command, environment, ports and streams of each worker.

`spec_builder` puts them together; `environments` has what each framework is told; `ports` offers what workers listen
on; `as_main` and `main_*` are what Python workers begin with, in the worker's own process.

What is decided here is fixed before the spawn; nothing here starts a process. Modules that run in a worker import
Python's library alone: the worker's Python may be another one.
"""
