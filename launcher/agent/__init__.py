"""The agent of one node: from a command line that runs something to the exit code of the job.

`command` forks the keeper and the supervisor while the process is small; `startup` finds the store and the other
nodes; `node_main` takes the node from its examination, with `health_gate` where it has to wait, to its end. `build`
composes the agent, `cluster` its membership in the agreement (`membership`), `composition` the parts. `loop` connects
the agreement, the supervisor, the signals and the parts; `lifecycle` is the state machine of a round's processes.

The loop may not wait for anything: workers and a lease depend on it. It decides nothing about the job, which is the
agreement's, kills no worker itself, which is the supervisor's, and knows no feature by name (launcher/parts).
"""
