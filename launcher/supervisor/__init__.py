"""The supervisor: a small process beside the agent that starts the workers and kills them if necessary.

Who may kill a worker:

- The supervisor (loop.py), with a signal that the agent orders, and with a sweep when a round ends, when the watchdog
  runs out (watchdog.py), and when the agent or the keeper is gone.
- The kernel, when the supervisor dies: every worker asks for that (child.py, fork_server/worker.py). A timer of the
  supervisor's own (watchdog.py) kills it where it is frozen when the watchdog runs out.
- The keeper (keeper.py), what is left when the supervisor or the agent has ended.
- The agent, through its handle (handle.py), only when the supervisor is lost or has not answered beyond the watchdog.
  What it orders: the end of a round (agent/lifecycle.py), and a worker without heartbeat (agent/worker_channel.py).
- An agent that starts later on this node, what an earlier one has left (agent/startup/stale_agents.py).

The agreement kills nothing: it asks for the end of a round (member/local_round.py) and extends the watchdog.
"""
